//! Starting, inspecting and removing node-lb.

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    os::unix::net::UnixStream,
    path::Path,
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result, ensure};
use lb_common::abi::{Latencies, ServiceFlows, ServiceStats, Shortages, VERSION};
use lb_datapath::bpf::MappedArray;
use lb_tests::{
    Endpoint, FailureKind, Family, Held, Node, Request, balanced, patience::try_eventually,
};
use node_lb::{
    agent::local_api::traffic::{PortTraffic, ServiceEndpoints},
    http::get,
    latency::Answered,
};
use serde_json::Value;

use crate::ground::{Frontend, Ground, Vips};

#[test]
fn cleanup_removes_everything_once_the_agent_is_gone() -> Result<()> {
    let ground = Ground::new()?;
    let vips = Vips(1);
    let endpoint = [Endpoint::ready(ground.lab().pod("pod-2-1"))];
    ground.publish(vips, |service| service, endpoint)?;
    ground.settle()?;
    let node = ground.lab().node(1).clone();
    let cleanup = || {
        let root = node.pin_root.display().to_string();
        output(
            node.command(balanced::node_lb()?)?
                .args(["cleanup", "--bpf-root", &root]),
        )
    };

    let busy = cleanup()?;
    assert_eq!(busy.status.code(), Some(1), "{busy:?}");
    assert!(stderr(&busy).contains("in use"), "{}", stderr(&busy));
    let target = vips.at(Frontend::NodePort, Family::V4, &node);
    Request::tcp(target).send(ground.lab().client())?;

    let lab = ground.without_agents()?;
    Request::tcp(target).send(lab.client())?;
    let done = cleanup()?;
    assert!(done.status.success(), "{}", stderr(&done));
    assert!(!node.pin_root.join(format!("v{VERSION}")).exists());
    assert!(!node.run("ip -details link")?.contains("prog/xdp"));
    assert_eq!(
        node.run("bpftool -j net show")?.matches("\"id\"").count(),
        0
    );
    let cgroup = node.cgroup_root.display();
    let left = node.run(&format!("bpftool cgroup show {cgroup}"))?;
    assert!(left.trim().is_empty(), "{left}");
    let refused = Request::tcp(target).send(lab.client()).map(drop);
    assert_eq!(
        refused.map_err(|failure| failure.kind),
        Err(FailureKind::Refused)
    );
    assert!(
        cleanup()?.status.success(),
        "nothing left to remove is no error"
    );
    Ok(())
}

#[test]
fn an_agent_that_cannot_start_says_why() -> Result<()> {
    let ground = Ground::new()?;
    let node = ground.lab().node(1);
    let manifests = format!("--source=dir:{}", node.manifests().display());
    let root = format!("--bpf-root={}", node.pin_root.display());
    let cgroup = format!("--cgroup-path={}", node.cgroup_root.display());
    let own = [&*manifests, &*root, &*cgroup, "--node=node-1"];
    for (arguments, code, words) in [
        (&["--xdp-mode=sometimes"][..], 2, "--xdp-mode"),
        (&["--bpf-rot=/x"], 2, "--bpf-rot"),
        (&["--cluster-cidr=10.244.0.0/33"], 2, "--cluster-cidr"),
        (&["--flow-table-size=3"], 2, "--flow-table-size"),
        (&own, 1, "another"),
    ] {
        let agent = balanced::node_lb()?;
        let ended = output(
            node.command("timeout")?
                .arg("60")
                .arg(agent)
                .arg("agent")
                .args(arguments),
        )?;
        let said = stderr(&ended);
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    Ok(())
}

#[test]
fn maps_read_well_in_bpftool() -> Result<()> {
    let ground = Ground::new()?;
    let (lab, vips) = (ground.lab(), Vips(1));
    let node = lab.node(1);
    ground.publish(
        vips,
        |service| service,
        [Endpoint::ready(lab.pod("pod-1-1"))],
    )?;
    ground.settle()?;
    Request::tcp(vips.at(Frontend::NodePort, Family::V4, node)).send(lab.client())?;

    let maps = node.pin_root.join(format!("v{VERSION}/maps"));
    let frontends = bpftool(node, "dump", &maps.join("FRONTENDS4"), "")?;
    let frontends = frontends.as_array().context("a list")?;
    let one = &frontends[0]["formatted"];
    for field in ["address", "port", "protocol"] {
        assert!(!one["key"][field].is_null(), "no {field} in {one}");
    }
    let service = one["value"]["service"]
        .as_u64()
        .context("a service's number")?;

    let entry = lookup(node, &maps.join("SERVICES"), service)?;
    let plan = entry["plan"].as_u64().context("a plan's number")?;
    let plan = lookup(node, &maps.join("PLANS"), plan)?;
    assert_eq!(plan["service"].as_u64(), Some(service), "{plan}");
    assert_eq!(plan["counts"].as_array().map(Vec::len), Some(6), "{plan}");
    let first = plan["first"].as_u64().context("its first endpoint")?;
    let endpoint = lookup(node, &maps.join("ENDPOINTS"), first)?;
    assert!(
        !endpoint["address"].is_null() && !endpoint["port"].is_null(),
        "{endpoint}"
    );
    Ok(())
}

#[test]
fn top_shows_exactly_what_the_kernel_has_counted() -> Result<()> {
    let ground = Ground::new()?;
    let (lab, web, empty) = (ground.lab(), Vips(1), Vips(2));
    let node = lab.node(1);
    let pod = lab.pod("pod-2-1");
    ground.publish(web, |service| service, [Endpoint::ready(pod)])?;
    ground.publish(empty, |service| service, [])?;
    ground.settle()?;

    let at = |vips: Vips| vips.at(Frontend::NodePort, Family::V4, node);
    let held = Held::open_all(lab.client(), at(web), 5);
    assert_eq!(held.len(), 5);
    for _ in 0..3 {
        let refused = Request::tcp(at(empty)).send(lab.client()).map(drop);
        let refused = refused.map_err(|failure| failure.kind);
        assert_eq!(refused, Err(FailureKind::Refused));
    }

    // Other flows end meanwhile, which is seen one by one.
    let ports = try_eventually(|| {
        let ports = top(node)?;
        for port in &ports {
            let counted = in_kernel(&ground.balanced().map_dir(1)?, port)?;
            ensure!(*port == counted, "{port:?}, the kernel has {counted:?}");
        }
        Ok(ports)
    })?;
    let lines = |vips: Vips| {
        let name = format!("/{}:lines", vips.name());
        let mut ports = ports.iter();
        let port = ports.find(|port| port.service_port.ends_with(&name));
        port.with_context(|| format!("no {name} in {ports:?}"))
    };
    let of_web = lines(web)?;
    assert_eq!(
        (of_web.open, of_web.half_open, of_web.connections),
        (5, 0, 5)
    );
    assert_eq!((of_web.rejected, of_web.dropped), (0, 0));
    assert_eq!(of_web.answered.flows(), 5, "{of_web:?}");
    assert_eq!(of_web.ids.len(), 2, "one of each family: {of_web:?}");
    assert_eq!(
        (of_web.ready, of_web.terminating, of_web.failing),
        (2, 0, 0)
    );
    let of_empty = lines(empty)?;
    assert_eq!((of_empty.open, of_empty.connections), (0, 0));
    assert_eq!((of_empty.rejected, of_empty.dropped), (3, 0));

    let agent = UnixStream::connect(balanced::socket(node))?;
    let (code, body) = get(agent, &format!("/traffic/{}", of_web.service))?;
    assert_eq!(code, 200, "{body}");
    let endpoints: ServiceEndpoints = serde_json::from_str(&body)?;
    let mut endpoints = endpoints.endpoints.iter();
    let endpoint = endpoints.find(|endpoint| {
        endpoint.service_port == of_web.service_port && endpoint.address.ip() == pod.ip(Family::V4)
    });
    let endpoint = endpoint.context("the pod is an endpoint")?;
    assert_eq!((endpoint.ready, endpoint.connections), (true, 5));
    assert!(endpoint.latency_us.is_some(), "{endpoint:?}");
    Ok(())
}

#[test]
fn top_shows_what_connections_carry() -> Result<()> {
    const PIECE: usize = 60_000;
    let ground = Ground::new()?;
    let (lab, web) = (ground.lab(), Vips(1));
    let node = lab.node(1);
    ground.publish(
        web,
        |service| service,
        [Endpoint::ready(lab.pod("pod-2-1"))],
    )?;
    ground.settle()?;
    for family in Family::BOTH {
        let mut held = Held::open(lab.client(), web.at(Frontend::NodePort, family, node))?;
        let mut child = top_of(node, &["--interval", "500ms"])?
            .stdout(Stdio::piped())
            .spawn()?;
        let printed = child.stdout.take().context("a pipe")?;
        let mut frames = BufReader::new(printed).lines();
        let name = format!("/{}:lines", web.name());
        // What the Service's TCP and UDP ports have carried in the next interval.
        let mut carried = || -> Result<[Option<f64>; 4]> {
            let frame: Value = serde_json::from_str(&frames.next().context("more lines")??)?;
            let bytes = |port: &str, direction: &str| {
                let mut ports = frame["servicePorts"].as_array()?.iter();
                let port = ports.find(|of| {
                    let service_port = of["servicePort"].as_str();
                    of["protocol"] == port && service_port.is_some_and(|it| it.ends_with(&name))
                })?;
                Some(port["perSecond"][direction].as_f64()? * frame["seconds"].as_f64()?)
            };
            Ok([
                bytes("TCP", "bytesFromClients"),
                bytes("TCP", "bytesToClients"),
                bytes("UDP", "bytesFromClients"),
                bytes("UDP", "bytesToClients"),
            ])
        };
        let first = carried()?;
        let before = held.numbers()?;
        for _ in 0..40 {
            held.ask_for(PIECE)?;
        }
        let after = held.numbers()?;
        let mut sums = [0.0; 2];
        let mut silent = 0;
        while silent < 2 {
            let [from_clients, to_clients, udp @ ..] = carried()?;
            ensure!(udp == [None; 2], "datagrams have no numbers: {udp:?}");
            let now = [from_clients, to_clients].map(|bytes| bytes.unwrap_or(f64::NAN));
            sums = [sums[0] + now[0], sums[1] + now[1]];
            silent = if now == [0.0; 2] { silent + 1 } else { 0 };
            ensure!(sums[0].is_finite(), "{now:?} of an open connection");
        }
        child.kill()?;
        child.wait()?;
        assert_eq!(first[..2], [Some(0.0); 2], "{family:?}: nothing was sent");
        let truth = [
            after.to_send.wrapping_sub(before.to_send),
            after.to_receive.wrapping_sub(before.to_receive),
        ];
        assert!(truth[0] as usize > 40 * PIECE, "{truth:?}");
        for (sum, truth) in sums.into_iter().zip(truth) {
            // The agent's readings, which say how long an interval is, are not those of the flow tables.
            let error = (sum / f64::from(truth) - 1.0).abs();
            assert!(error < 0.1, "{family:?}: {sum} instead of {truth}");
        }
    }
    Ok(())
}

#[test]
fn the_agent_explains_as_the_command_does() -> Result<()> {
    let ground = Ground::new()?;
    let (lab, web, empty) = (ground.lab(), Vips(1), Vips(2));
    let node = lab.node(1);
    let near = Endpoint::ready(lab.pod("pod-1-1"));
    ground.publish(
        web,
        |service| service,
        [near, Endpoint::ready(lab.pod("pod-2-1"))],
    )?;
    ground.publish(empty, |service| service, [])?;
    ground.settle()?;
    let explained = || -> Result<Vec<Value>> {
        let mut reasons = Vec::new();
        for family in Family::BOTH {
            let from = [
                lab.client().ip(family),
                node.ip(family),
                lab.pod("pod-1-2").ip(family),
            ];
            let mut targets: Vec<_> = [Frontend::ClusterIp, Frontend::NodePort]
                .into_iter()
                .flat_map(|kind| [web, empty].map(|vips| vips.at(kind, family, node)))
                .collect();
            let cluster_ip = targets[0].ip();
            targets.push(SocketAddr::new(cluster_ip, 82));
            targets.push(SocketAddr::new(lab.client().ip(family), 80));
            for (from, to) in from
                .iter()
                .flat_map(|from| targets.iter().map(move |to| (from, to)))
            {
                let by_agent = ask(node, &format!("/explain?from={from}&to={to}"))?;
                let [from, to] = [format!("--from={from}"), format!("--to={to}")];
                let by_command = ground.balanced().explain(1, &[&from, &to])?;
                let by_command: Value = serde_json::from_str(&by_command)?;
                ensure!(
                    by_agent == by_command,
                    "{from} {to}: {by_agent}, {by_command}"
                );
                let live = ground.balanced().explain(1, &[&from, &to, "--live"])?;
                let live: Value = serde_json::from_str(&live)?;
                ensure!(live == by_agent, "{from} {to}: {live}, {by_agent}");
                reasons.push(by_agent["reason"].clone());
            }
        }
        Ok(reasons)
    };
    let reasons = try_eventually(explained)?;
    for reason in ["opened", "no-endpoints", "unknown-port", "not-service"] {
        assert!(reasons.iter().any(|found| found == reason), "{reasons:?}");
    }

    // What the node is may change at any time.
    let address = "192.0.2.77";
    let path = format!("/explain?from={address}&to=192.0.2.1:80");
    let origin = || -> Result<Value> { Ok(ask(node, &path)?["origin"].take()) };
    assert_eq!(origin()?, "outside");
    node.run(&format!("ip addr add {address} dev lo"))?;
    try_eventually(|| {
        let origin = origin()?;
        ensure!(origin == "node", "{address} is {origin}");
        Ok(())
    })
}

/// What the agent on a node answers.
fn ask(node: &Node, path: &str) -> Result<Value> {
    let (code, body) = get(UnixStream::connect(balanced::socket(node))?, path)?;
    ensure!(code == 200, "{path}: {body}");
    Ok(serde_json::from_str(&body)?)
}

/// The service ports in what `node-lb top` prints for scripts.
fn top(node: &Node) -> Result<Vec<PortTraffic>> {
    let printed = output(&mut top_of(node, &["--once", "--interval", "200ms"])?)?;
    ensure!(printed.status.success(), "{}", stderr(&printed));
    let mut object: Value = serde_json::from_slice(&printed.stdout)?;
    Ok(serde_json::from_value(object["servicePorts"].take())?)
}

/// `node-lb top` on a node, for scripts.
fn top_of(node: &Node, arguments: &[&str]) -> Result<Command> {
    let mut command = node.command(balanced::node_lb()?)?;
    command
        .args(["top", "-o", "json"])
        .args(arguments)
        .arg("--socket")
        .arg(balanced::socket(node))
        .arg("--bpf-root")
        .arg(&node.pin_root);
    Ok(command)
}

/// The same service port with the numbers that the maps in a directory have.
fn in_kernel(maps: &Path, port: &PortTraffic) -> Result<PortTraffic> {
    let stats: MappedArray<ServiceStats> = MappedArray::from_pin(&maps.join("SERVICE_STATS"))?;
    let flows: MappedArray<ServiceFlows> = MappedArray::from_pin(&maps.join("SERVICE_FLOWS"))?;
    let latencies = maps.join("SERVICE_LATENCIES");
    let latencies: MappedArray<Latencies> = MappedArray::from_pin(&latencies)?;
    let shortages = maps.join("SERVICE_SHORTAGES");
    let shortages: MappedArray<Shortages> = MappedArray::from_pin(&shortages)?;
    let mut counted = PortTraffic {
        open: 0,
        half_open: 0,
        connections: 0,
        rejected: 0,
        dropped: 0,
        flow_table_full: 0,
        snat_ports_exhausted: 0,
        gave_way: 0,
        answered: Answered::default(),
        ..port.clone()
    };
    for id in &port.ids {
        let (stats, shortages) = (stats.read(*id), shortages.read(*id));
        counted.open += u64::try_from(flows.read(*id).flows)?;
        counted.half_open += u64::try_from(stats.half_open)?;
        counted.connections += stats.connections;
        counted.rejected += stats.rejected;
        counted.dropped += stats.dropped;
        counted.flow_table_full += shortages.flow_table_full;
        counted.snat_ports_exhausted += shortages.snat_ports_exhausted;
        counted.gave_way += u64::from(stats.gave_way);
        counted.answered.add(&latencies.read(*id));
    }
    Ok(counted)
}

fn lookup(node: &Node, map: &Path, index: u64) -> Result<Value> {
    let [a, b, c, d] = (index as u32).to_ne_bytes();
    let entry = bpftool(node, "lookup", map, &format!("key {a} {b} {c} {d}"))?;
    Ok(entry["formatted"]["value"].clone())
}

fn bpftool(node: &Node, action: &str, map: &Path, rest: &str) -> Result<Value> {
    let map = map.display();
    let text = node.run(&format!("bpftool -j map {action} pinned {map} {rest}"))?;
    serde_json::from_str(&text).with_context(|| format!("{map}: {text}"))
}

fn output(command: &mut Command) -> Result<Output> {
    command
        .output()
        .with_context(|| format!("cannot run {command:?}"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
