//! The lab's servers and clients report successes and failures correctly.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lb_tests::traffic::{Capacity, Loads, Protocol};
use lb_tests::{
    Failure, FailureKind, Family, Grace, Held, Host, Lab, Load, PATIENCE, Request, SILENCE, Serve,
    Topology, eventually,
};

/// Requests arrive within this time even on a busy machine, so it separates those made before an
/// event from those made after it.
const ARRIVAL: Duration = Duration::from_secs(1);

/// Waits until each of a load's four workers has a connection to a port of a server.
fn all_connected(server: &Host, port: u16) {
    eventually(|| {
        let line = format!("ss --no-header --tcp --numeric state established sport = :{port}");
        let sockets = server.run(&line)?;
        ensure!(sockets.lines().count() == 4, "connections:\n{sockets}");
        Ok(())
    });
}

fn one_node_one_pod() -> Result<Lab> {
    Lab::up(Topology {
        nodes: 1,
        pods_per_node: 1,
        ..Topology::default()
    })
}

#[test]
fn failures_are_told_apart() -> Result<()> {
    let lab = one_node_one_pod()?;
    let pod = lab.pod("pod-1-1");
    let node = lab.node(1);
    node.feed(
        "nft -f -",
        "table inet filter {
            chain forward {
                type filter hook forward priority filter;
                th dport 7 drop
                th dport 9 reject with icmpx type host-unreachable
                th dport 11 reject with icmpx type admin-prohibited
            }
        }",
    )?;
    for host in [node.as_ref(), pod] {
        host.set_sysctl("net/ipv4/icmp_ratelimit", "0")?;
        host.set_sysctl("net/ipv6/icmp/ratelimit", "0")?;
    }
    for family in Family::BOTH {
        for protocol in [Protocol::Tcp, Protocol::Http, Protocol::Udp] {
            let kind = |port, limit| {
                let request = Request::new(protocol, pod.at(family, port)).deadline(limit);
                request.send(lab.client()).map(drop).map_err(|e| e.kind)
            };
            let what = format!("{protocol:?} {family:?}");
            assert_eq!(kind(1, PATIENCE), Err(FailureKind::Refused), "{what}");
            assert_eq!(kind(7, SILENCE), Err(FailureKind::Timeout), "{what}");
            // Linux does not pass this error to UDP sockets, because the host may come back.
            let soft = match protocol {
                Protocol::Udp => kind(9, SILENCE) == Err(FailureKind::Timeout),
                _ => kind(9, PATIENCE) == Err(FailureKind::Unreachable),
            };
            assert!(soft, "{what}");
            assert_eq!(kind(11, PATIENCE), Err(FailureKind::Unreachable), "{what}");
        }
        let unconnected = Request::udp_unconnected(pod.at(family, 1)).in_vain();
        // An unconnected socket gets no ICMP errors.
        let failure = unconnected.send(lab.client()).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Timeout);
    }
    lab.down()
}

#[test]
fn a_request_comes_from_where_it_was_told_to() -> Result<()> {
    let lab = one_node_one_pod()?;
    let pod = lab.pod("pod-1-1");
    let _server = Serve::new("pod")
        .tcp(1000)
        .http(1001)
        .udp(1002)
        .start(pod)?;
    lab.client().run("ip addr add 172.29.77.20/24 dev eth0")?;
    let cases = [
        (Protocol::Tcp, 1000),
        (Protocol::Http, 1001),
        (Protocol::Udp, 1002),
        (Protocol::UdpUnconnected, 1002),
    ];
    for (protocol, port) in cases {
        let request = Request::new(protocol, pod.at(Family::V4, port));
        let request = request
            .from_ip("172.29.77.20".parse()?)
            .from_port(20_000 + port);
        let reply = request.send(lab.client())?;
        let source = format!("172.29.77.20:{}", 20_000 + port).parse()?;
        assert_eq!((reply.peer, reply.source), (source, source), "{protocol:?}");
    }
    let foreign = Request::tcp(pod.at(Family::V4, 1000)).from_ip("192.0.2.1".parse()?);
    let Failure { kind, .. } = foreign.send(lab.client()).unwrap_err();
    assert_eq!(kind, FailureKind::Local);
    lab.down()
}

#[test]
fn payloads_arrive_whole() -> Result<()> {
    let lab = one_node_one_pod()?;
    let pod = lab.pod("pod-1-1");
    let _server = Serve::new("pod")
        .tcp(1000)
        .http(1001)
        .udp(1002)
        .start(pod)?;
    for family in Family::BOTH {
        Request::tcp(pod.at(family, 1000))
            .payload(1_000_000)
            .send(lab.client())?;
        Request::http(pod.at(family, 1001))
            .payload(1_000_000)
            .send(lab.client())?;
        // Several fragments each way.
        Request::udp(pod.at(family, 1002))
            .payload(5_000)
            .send(lab.client())?;
    }
    lab.down()
}

#[test]
fn a_graceful_server_finishes_what_is_under_way() -> Result<()> {
    let lab = one_node_one_pod()?;
    let pod = lab.pod("pod-1-1");
    let server = Serve::new("pod")
        .tcp(1000)
        .http(1001)
        .udp(1002)
        .start(pod)?;
    let targets = [
        (Protocol::Tcp, 1000),
        (Protocol::Http, 1001),
        (Protocol::UdpUnconnected, 1002),
    ];
    let slow = targets
        .map(|(protocol, port)| Request::new(protocol, pod.at(Family::V6, port)))
        .map(|request| request.held_for(2 * ARRIVAL).deadline(PATIENCE))
        .map(|request| request.start(lab.client()));
    thread::sleep(ARRIVAL);
    let served = server.shut_down(Grace::SHORT)?;
    assert!(served.drained);
    assert_eq!(served.answers, 3);
    for request in slow {
        request?.reply()?;
    }
    let late = Request::tcp(pod.at(Family::V6, 1000))
        .send(lab.client())
        .unwrap_err();
    assert_eq!(late.kind, FailureKind::Refused);
    lab.down()
}

#[test]
fn an_impatient_server_cuts_what_takes_too_long() -> Result<()> {
    let lab = one_node_one_pod()?;
    let pod = lab.pod("pod-1-1");
    let server = Serve::new("pod").http(1001).start(pod)?;
    let request = Request::http(pod.at(Family::V4, 1001)).held_for(PATIENCE);
    let slow = request.deadline(2 * PATIENCE).start(lab.client())?;
    thread::sleep(ARRIVAL);
    let drain_for = Duration::from_millis(50);
    let served = server.shut_down(Grace {
        accept_for: Duration::ZERO,
        drain_for,
    })?;
    assert!(!served.drained);
    let failure = slow.reply().unwrap_err();
    let cut = [FailureKind::Closed, FailureKind::Reset];
    assert!(cut.contains(&failure.kind), "{failure}");
    lab.down()
}

#[test]
fn a_shutting_down_server_accepts_until_its_delay_is_over() -> Result<()> {
    let lab = one_node_one_pod()?;
    let pod = lab.pod("pod-1-1");
    let server = Serve::new("pod").http(1001).start(pod)?;
    let target = pod.at(Family::V4, 1001);
    let grace = Grace {
        accept_for: ARRIVAL,
        ..Grace::SHORT
    };
    let end = thread::spawn(move || server.shut_down(grace));
    thread::sleep(ARRIVAL / 10);
    Request::http(target).send(lab.client())?;
    let served = end.join().expect("no panic")?;
    assert!(served.drained && served.answers == 1, "{served:?}");
    assert_eq!(
        Request::http(target).send(lab.client()).unwrap_err().kind,
        FailureKind::Refused
    );
    lab.down()
}

#[test]
fn load_counts_every_answer_and_every_failure() -> Result<()> {
    let lab = one_node_one_pod()?;
    let pod = lab.pod("pod-1-1");
    let server = Serve::new("pod")
        .tcp(1000)
        .http(1001)
        .udp(1002)
        .start(pod)?;
    let mut answers = 0;
    for load in [
        Load::new(Request::tcp(pod.at(Family::V4, 1000))),
        Load::new(Request::http(pod.at(Family::V6, 1001))).persistent(),
        Load::new(Request::udp(pod.at(Family::V4, 1002))),
        Load::new(Request::udp(pod.at(Family::V6, 1002))).persistent(),
    ] {
        let load = load.pause(Duration::from_millis(2)).at_least(20);
        let report = load.run_for(Duration::from_millis(300), lab.client())?;
        assert_eq!((report.failed, report.reconnects), (0, 0), "{report}");
        assert!(report.ok >= 20, "{report}");
        assert_eq!(report.servers["pod"], report.ok);
        assert!(
            report.p50 <= report.p99 && report.p99 <= report.max,
            "{report}"
        );
        assert!(report.connects.p50 <= report.p50, "{report:?}");
        assert!(!report.connects.max.is_zero(), "{report:?}");
        answers += report.ok;
    }
    let request = Request::http(pod.at(Family::V4, 1001));
    let load = Load::new(request)
        .pause(Duration::from_millis(2))
        .start(lab.client())?;
    thread::sleep(Duration::from_millis(100));
    let served = server.shut_down(Grace::SHORT)?;
    thread::sleep(ARRIVAL);
    let report = load.stop()?;
    assert_eq!(served.answers, answers + report.ok, "{report}");
    // A worker's connection that waits to be accepted when the server closes is reset. All later
    // ones are refused.
    let kinds = report.failures.iter().map(|(_, failure)| failure.kind);
    let (refused, others): (Vec<_>, Vec<_>) = kinds.partition(|kind| *kind == FailureKind::Refused);
    assert!(!refused.is_empty(), "{report}");
    assert!(
        others.len() <= 4 && others.iter().all(|kind| *kind == FailureKind::Reset),
        "{report}"
    );
    lab.down()
}

#[test]
fn a_server_leaves_connections_beyond_its_capacity_in_the_backlog() -> Result<()> {
    let lab = one_node_one_pod()?;
    let pod = lab.pod("pod-1-1");
    let capacity = Capacity {
        served: 1,
        backlog: 8,
    };
    let _server = Serve::new("pod").tcp(1000).capacity(capacity).start(pod)?;
    let target = pod.at(Family::V4, 1000);
    let mut first = Held::open(lab.client(), target)?;
    first.ask()?;
    let mut second = Held::open(lab.client(), target)?;
    let third = Request::tcp(target).in_vain().send(lab.client());
    assert_eq!(third.unwrap_err().kind, FailureKind::Timeout);
    drop(first);
    second.ask()?;
    lab.down()
}

#[test]
fn a_load_backs_off_after_failures() -> Result<()> {
    let lab = one_node_one_pod()?;
    let nobody = Request::tcp(lab.pod("pod-1-1").at(Family::V4, 1000));
    let pause = Duration::from_millis(400);
    let load = Load::new(nobody).workers(2).pause_after_failure(pause);
    let report = load.run_for(Duration::from_millis(600), lab.client())?;
    // Each worker at the start, and after each pause.
    let most = 2 * (1 + report.elapsed.as_millis() / pause.as_millis());
    assert!(
        report.ok == 0 && (1..=most).contains(&report.failed.into()),
        "{report}"
    );
    lab.down()
}

/// A client that waits does not notice a lost SYN, except for the second until the next one.
#[test]
fn a_lost_syn_is_told_although_the_request_is_answered() -> Result<()> {
    let lab = one_node_one_pod()?;
    let pod = lab.pod("pod-1-1");
    let _server = Serve::new("pod").tcp(1000).start(pod)?;
    for (lost, flawless) in [(false, true), (true, false)] {
        if lost {
            // One of all SYNs, in the middle of the load.
            lab.node(1).feed(
                "nft -f -",
                "table ip loss {
                    chain forward {
                        type filter hook forward priority 0;
                        tcp dport 1000 tcp flags syn / syn,ack numgen inc mod 100 == 3 drop
                    }
                }",
            )?;
        }
        let mut loads = Loads::beside(lab.router())?;
        let load = Load::new(Request::tcp(pod.at(Family::V4, 1000))).workers(2);
        loads.start(lab.client(), load.pause(Duration::from_millis(20)))?;
        thread::sleep(Duration::from_secs(2));
        let reports = loads.stop()?;
        let found = catch_unwind(AssertUnwindSafe(|| reports.assert_flawless()));
        assert_eq!(found.is_ok(), flawless, "{reports}");
        let Err(panic) = found else { continue };
        let message = panic.downcast_ref::<String>().context("no message")?;
        assert!(message.starts_with("SYNs were lost"), "{message}");
        assert!(message.contains(" 0 failed"), "{message}");
    }
    lab.down()
}

#[test]
fn a_persistent_client_moves_on_without_failure_when_its_server_is_replaced() -> Result<()> {
    let lab = one_node_one_pod()?;
    let pod = lab.pod("pod-1-1");
    for (protocol, port) in [(Protocol::Tcp, 1000), (Protocol::Http, 1001)] {
        // Both are behind one address, like endpoints behind a Service.
        lab.node(1).feed(
            "nft -f -",
            "table ip lb {
                chain prerouting {
                    type nat hook prerouting priority dstnat;
                }
            }",
        )?;
        let steer_to = |server_port: u16| {
            let rule = format!(
                "tcp dport {port} dnat to {}:{server_port}",
                pod.ip(Family::V4)
            );
            let script =
                format!("flush chain ip lb prerouting\nadd rule ip lb prerouting {rule}\n");
            lab.node(1).feed("nft -f -", &script)
        };
        steer_to(port)?;
        let old = Serve::new("old").tcp(1000).http(1001).start(pod)?;
        let new = Serve::new("new").tcp(2000).http(2001).start(pod)?;
        let request = Request::new(protocol, format!("172.30.78.1:{port}").parse()?);
        let load = Load::new(request)
            .persistent()
            .pause(Duration::from_millis(1));
        let load = load.start(lab.client())?;
        all_connected(pod, port);
        steer_to(port + 1000)?;
        assert!(old.shut_down(Grace::SHORT)?.drained);
        all_connected(pod, port + 1000);
        let report = load.stop()?;
        assert_eq!(report.failed, 0, "{report}");
        assert_eq!(report.reconnects, 4, "each of four workers once: {report}");
        assert!(
            report.servers["old"] > 0 && report.servers["new"] > 0,
            "{report}"
        );
        lab.node(1).run("nft delete table ip lb")?;
        drop(new);
    }
    lab.down()
}

#[test]
fn a_nodes_traffic_is_in_the_nodes_cgroup() -> Result<()> {
    let lab = one_node_one_pod()?;
    let node = lab.node(1);
    let members = |dir: &std::path::Path| -> Result<usize> {
        Ok(fs::read_to_string(dir.join("cgroup.procs"))?
            .lines()
            .count())
    };
    assert!(node.cgroup().starts_with(&node.cgroup_root));
    assert_eq!(members(node.cgroup())?, 0);
    let server = Serve::new("node").tcp(1000).start(node)?;
    assert_eq!(members(node.cgroup())?, 1);
    let target = node.at(Family::V4, 1000);
    assert_eq!(Request::tcp(target).send(node)?.server, "node");
    let load = Load::new(Request::tcp(target)).workers(1).start(node)?;
    assert_eq!(members(node.cgroup())?, 2);
    assert_eq!(load.stop()?.failed, 0);
    let own = node.run("cat /proc/self/cgroup")?;
    let path = node
        .cgroup()
        .strip_prefix(lb_tests::lab::Cgroup::mount_point()?)?;
    assert!(
        own.lines()
            .any(|line| line == format!("0::/{}", path.display())),
        "{own}"
    );
    drop(server);
    assert_eq!(members(node.cgroup())?, 0);

    let pod = lab.pod("pod-1-1");
    assert!(pod.cgroup().starts_with(&node.cgroup_root) && pod.cgroup() != node.cgroup());
    let _server = Serve::new("pod").tcp(1000).start(pod.with_processes())?;
    assert_eq!(members(pod.cgroup())?, 1);
    lab.down()
}

#[test]
fn a_port_in_use_is_an_error_in_threads_and_processes() -> Result<()> {
    let lab = one_node_one_pod()?;
    for host in [
        lab.pod("pod-1-1").clone(),
        lab.pod("pod-1-1").with_processes(),
    ] {
        let _first = Serve::new("first").tcp(1000).start(&host)?;
        let second = Serve::new("second").tcp(1000).start(&host);
        second.map(drop).err().context("two servers on one port")?;
    }
    lab.down()
}
