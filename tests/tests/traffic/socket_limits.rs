//! Limits of connections, for those that are translated at the socket. With `--socket-lb=all` that is for pods,
//! too, if their addresses do not matter.

use std::{
    collections::BTreeSet,
    fs,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use lb_datapath::bpf::Link;
use lb_tests::{
    Endpoint, FailureKind, Family, Request, Topology, eventually, lab::Host, patient,
    traffic::Protocol,
};

use serde_json::json;

use crate::ground::{Frontend, Ground, Vips, servers};

const VIPS: Vips = Vips(1);
/// The most connections of the Service.
const LIMIT: usize = 3;
/// How long a server takes to answer. Meanwhile the agent looks several times whether it has counted right.
const HELD: Duration = Duration::from_secs(5);
/// What such a socket is asked to wait for an answer.
const DEADLINE: Duration = Duration::from_secs(20);
const KINDS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::UdpUnconnected];
/// What an agent says in a kernel that does not let sockets be listed.
const FROM_COPIES: &str = "what sockets hold of limits is known from copies";
const CORRECTED: &str = "node_lb_connection_limit_corrected_total";

/// The connections within the limit of the Service, or within the node's, and those refused, as node 1's
/// agent says.
fn counted(ground: &Ground, service: Option<&str>) -> Result<(usize, u64)> {
    let status = ground.status(1)?;
    let mut limits = status.connection_limits.iter();
    let found = limits.find(|limit| match (service, &limit.service) {
        (Some(name), Some(found)) => found.ends_with(name),
        (None, None) => true,
        _ => false,
    });
    let limit = found.context("no such limit")?;
    Ok((limit.in_use as usize, limit.refused))
}

/// Publishes the Service with its limit, and one endpoint on the other node.
fn publish_limited(ground: &Ground) -> Result<()> {
    ground.publish(
        VIPS,
        |service| service.annotation("node-lb.io/max-connections", &LIMIT.to_string()),
        [Endpoint::ready(ground.lab().pod("pod-2-1"))],
    )?;
    ground.settle()
}

/// Waits until so many connections are within the Service's limit.
#[track_caller]
fn wait_for(ground: &Ground, wanted: usize) {
    eventually(|| {
        let (found, _) = counted(ground, Some("/service-1")).map_err(|e| format!("{e:#}"))?;
        match found == wanted {
            true => Ok(()),
            false => Err(format!("{found} in use, not {wanted}")),
        }
    });
}

/// What becomes of one more connection at this moment.
fn one_more(request: Request, host: &Host) -> Result<String, FailureKind> {
    let sent = request.send(host);
    sent.map(|reply| reply.server)
        .map_err(|failure| failure.kind)
}

/// Several agents' looks, each of which would correct what the last one has found wrong as well.
fn several_passes() {
    thread::sleep(patient(Duration::from_secs(3)));
}

#[test]
fn sockets_of_the_nodes_processes_keep_to_the_limits_of_services() -> Result<()> {
    let ground = Ground::with(Topology::default(), &["--max-connections=100"])?;
    let lab = ground.lab();
    publish_limited(&ground)?;
    let process = lab.node(1);
    let (mut refused, mut cases) = (0, 0);
    for (family, kind) in Family::BOTH
        .into_iter()
        .flat_map(|family| KINDS.map(|kind| (family, kind)))
    {
        let case = format!("{family:?} {kind:?}");
        let frontend = if cases % 2 == 0 {
            Frontend::ClusterIp
        } else {
            Frontend::NodePort
        };
        cases += 1;
        let request = Request::new(kind, VIPS.at(frontend, family, lab.node(1)));
        wait_for(&ground, 0);
        let held: Vec<_> = (0..LIMIT)
            .map(|_| request.held_for(HELD).deadline(DEADLINE).start(process))
            .collect::<Result<_, _>>()?;
        wait_for(&ground, LIMIT);
        several_passes();
        assert_eq!(counted(&ground, Some("/service-1"))?.0, LIMIT, "{case}");
        assert_eq!(counted(&ground, None)?.0, LIMIT, "{case}: the node's");
        assert_eq!(
            one_more(request, process),
            Err(FailureKind::Refused),
            "{case}"
        );
        refused += 1;
        assert_eq!(counted(&ground, Some("/service-1"))?.1, refused, "{case}");
        for held in held {
            let reply = held.reply()?;
            assert_eq!(reply.server, "pod-2-1", "{case}");
        }
        wait_for(&ground, 0);
        assert_eq!(one_more(request, process).as_deref(), Ok("pod-2-1"));
    }
    assert_eq!(ground.balanced().metric(1, CORRECTED)?, 0.0);
    Ok(())
}

/// A socket's end is not seen while the program for it is missing. (The kernel calls none for subflows of
/// Multipath TCP.)
#[test]
fn sockets_whose_end_nobody_sees_give_their_places_back() -> Result<()> {
    let mut ground = Ground::new()?;
    ground.expect_differences();
    let lab = ground.lab();
    publish_limited(&ground)?;
    let process = lab.node(1);
    let request = Request::tcp(VIPS.at(Frontend::ClusterIp, Family::V4, process));
    let held: Vec<_> = (0..LIMIT)
        .map(|_| request.held_for(HELD).deadline(DEADLINE).start(process))
        .collect::<Result<_, _>>()?;
    wait_for(&ground, LIMIT);
    let links = ground.balanced().map_dir(1)?.with_file_name("later-links");
    let link = links.join("cgroup-sock_release");
    // The agent attaches it again before long.
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                if let Ok(link) = Link::open(&link) {
                    let _ = link.detach();
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        let replies: Vec<_> = held.into_iter().map(|held| held.reply()).collect();
        is_over.store(true, Relaxed);
        assert!(replies.iter().all(Result::is_ok), "{replies:?}");
    });
    if ground.balanced().agents[0].log()?.contains(FROM_COPIES) {
        println!("this kernel lists no sockets, and copies do not tell which ones are gone");
        several_passes();
        assert!(counted(&ground, Some("/service-1"))?.0 > 0);
        return Ok(());
    }
    wait_for(&ground, 0);
    let corrected = ground.balanced().metric(1, CORRECTED)?;
    assert!(
        corrected > 0.0,
        "by comparison with the sockets that there are"
    );
    let answered = one_more(request, process);
    assert_eq!(answered.as_deref(), Ok("pod-2-1"));
    Ok(())
}

#[test]
fn sockets_keep_to_the_limits_of_levels_and_flows() -> Result<()> {
    let objects = tempfile::tempdir()?;
    fs::write(
        objects.path().join("objects.yaml"),
        "
apiVersion: node-lb.io/v1alpha1
kind: PriorityLevel
metadata: {name: web}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 10
    borrowingLimitPercent: 0
    limitResponse: {type: Queue, queuing: {queues: 4, handSize: 2, queueLengthLimit: 5}}
    connections: {maxConnectionsPerFlow: 2}
---
apiVersion: node-lb.io/v1alpha1
kind: FlowSchema
metadata: {name: web}
spec:
  priorityLevelConfiguration: {name: web}
  distinguisherMethod: {type: ByDestinationService}
  rules: [{subjects: [{kind: Any}], destinations: [{namespaces: ['*'], services: [service-1, service-2]}]}]
",
    )?;
    let objects = format!("--admission-objects={}", objects.path().display());
    // Catch-all has half as many shares.
    let arguments = ["--admission=enforce", "--max-connections=4", &objects];
    let ground = Ground::with(Topology::default(), &arguments)?;
    let lab = ground.lab();
    for vips in [VIPS, Vips(2)] {
        let endpoints = ["pod-2-1", "pod-2-2"].map(|name| Endpoint::ready(lab.pod(name)));
        ground.publish(vips, |service| service, endpoints)?;
    }
    ground.settle()?;
    let process = lab.node(1);
    let at = |vips: Vips, family| Request::tcp(vips.cluster(family, 80));
    for family in Family::BOTH {
        let hold = |vips| {
            let request = at(vips, family).held_for(HELD).deadline(DEADLINE);
            request.start(process)
        };
        let level = || -> Result<_> {
            let status = ground.status(1)?;
            let level = status.priority_level("web").context("no level")?;
            let schema = status.flow_schema("web").context("no schema")?;
            Ok((level.in_use, level.limit, schema.clone()))
        };
        let held = [hold(VIPS)?, hold(VIPS)?];
        eventually(|| match level() {
            Ok((2, ..)) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        several_passes();
        let (in_use, limit, before) = level()?;
        assert_eq!((in_use, limit), (2, 3));
        let refused = Err(FailureKind::Refused);
        assert_eq!(
            one_more(at(VIPS, family), process),
            refused,
            "the flow's part"
        );
        let other = hold(Vips(2))?;
        eventually(|| match level() {
            Ok((3, ..)) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        assert_eq!(one_more(at(Vips(2), family), process), refused, "no seat");
        let (_, _, after) = level()?;
        assert_eq!(after.flow_limit, before.flow_limit + 1, "{after:?}");
        assert_eq!(after.refused, before.refused + 1, "{after:?}");
        for held in held.into_iter().chain([other]) {
            held.reply()?;
        }
        eventually(|| match level() {
            Ok((0, ..)) => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }
    Ok(())
}

/// To Services that tell clients apart, pods' connections are translated where they leave the pod.
#[test]
fn pods_are_told_apart_by_their_own_addresses() -> Result<()> {
    const TRANSLATED: &str = r#"node_lb_packets_total{hook="socket",reason="socket-translated"}"#;
    let ground = Ground::with(Topology::default(), &["--socket-lb=all"])?;
    let lab = ground.lab();
    let pods = ["pod-1-1", "pod-1-2"].map(|name| lab.pod(name).with_processes());
    let [first, second] = &pods;
    let everywhere = ["pod-2-1", "pod-2-2"].map(|name| Endpoint::ready(lab.pod(name)));
    let (plain, sticky, ranged) = (Vips(1), Vips(2), Vips(3));
    ground.publish(plain, |service| service, everywhere.clone())?;
    ground.publish(
        sticky,
        |service| service.client_ip_affinity(10_800),
        everywhere.clone(),
    )?;
    let ranges = Family::BOTH.map(|family| match family {
        Family::V4 => format!("{}/32", first.ip(family)),
        Family::V6 => format!("{}/128", first.ip(family)),
    });
    ground.publish(
        ranged,
        |service| service.set("loadBalancerSourceRanges", json!(ranges)),
        everywhere,
    )?;
    ground.settle()?;
    let node = lab.node(1);
    for family in Family::BOTH {
        for kind in KINDS {
            let case = format!("{family:?} {kind:?}");
            let at = |vips: Vips, frontend| Request::new(kind, vips.at(frontend, family, node));
            let before = ground.balanced().metric(1, TRANSLATED)?;
            at(plain, Frontend::ClusterIp).send(first)?;
            let translated = ground.balanced().metric(1, TRANSLATED)? - before;
            assert!(translated > 0.0, "{case}");
            let allowed = at(ranged, Frontend::LoadBalancerIp);
            allowed.send(first).with_context(|| case.clone())?;
            let barred = allowed.deadline(Duration::from_secs(1)).in_vain();
            assert!(barred.send(second).is_err(), "{case}");
        }
    }
    // Each of many pods draws by itself: 16 agree once in 32,768 tests.
    let mut all = BTreeSet::new();
    for number in 0..16 {
        let pod = lab.add_pod(node, &format!("client-{number}"))?;
        let pod = pod.with_processes();
        let request = Request::tcp(sticky.cluster(Family::V4, 80));
        let drawn = BTreeSet::from_iter(servers(&pod, request, 4));
        assert_eq!(drawn.len(), 1, "{number}: {drawn:?}");
        all.extend(drawn);
    }
    assert_eq!(all.len(), 2, "{all:?}");
    Ok(())
}

#[test]
fn a_full_endpoint_is_passed_over_for_sockets_as_well() -> Result<()> {
    let ground = Ground::new()?;
    let lab = ground.lab();
    let endpoints = ["pod-2-1", "pod-2-2"].map(|name| Endpoint::ready(lab.pod(name)));
    ground.publish(
        VIPS,
        |service| service.annotation("node-lb.io/max-connections-per-endpoint", "2"),
        endpoints,
    )?;
    ground.settle()?;
    let process = lab.node(1);
    for kind in KINDS {
        let request = Request::new(kind, VIPS.cluster(Family::V4, 80));
        wait_for(&ground, 0);
        let held: Vec<_> = (0..4)
            .map(|_| request.held_for(HELD).deadline(DEADLINE).start(process))
            .collect::<Result<_, _>>()?;
        wait_for(&ground, 4);
        let fifth = one_more(request, process);
        assert_eq!(fifth, Err(FailureKind::Refused), "{kind:?}");
        let mut servers = Vec::new();
        for held in held {
            servers.push(held.reply()?.server);
        }
        servers.sort_unstable();
        assert_eq!(servers, ["pod-2-1", "pod-2-1", "pod-2-2", "pod-2-2"]);
    }
    Ok(())
}
