//! A DNS cache on the node (NodeLocal DNSCache), which has the ClusterIP of the cluster's DNS
//! itself: before, while it is there, and after.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use lb_tests::{
    Balanced, Endpoint, Family, Request, Serve, Topology, balanced, eventually,
    lab::Host,
    traffic::{Held, Protocol, RunningServer},
};

use crate::support::{SMALL, line_with};

const CLUSTER_IPS: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
const DNS: u16 = 53;
const METRICS: u16 = 9153;
const TARGET: u16 = 9053;
const LEFT: &str = "node_lb_service_ports_left_to_node";
const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::UdpUnconnected];

#[test]
fn a_dns_cache_on_the_node_gets_what_is_sent_to_its_address() -> Result<()> {
    cached(&["--xdp-mode=native"])
}

#[test]
fn so_it_does_where_sockets_are_left_alone() -> Result<()> {
    cached(&["--socket-lb=off"])
}

fn cached(arguments: &[&str]) -> Result<()> {
    let mut ground = Balanced::with(
        Topology {
            pods_per_node: 3,
            ..SMALL
        },
        arguments,
    )?;
    let _servers = serve_dns(&ground)?;
    let sockets = !arguments.contains(&"--socket-lb=off");
    answered_by(&ground, "pod-1-1", sockets)?;
    let client = ground.lab.pod("pod-1-2").clone();
    let targets = CLUSTER_IPS.map(|ip| SocketAddr::new(ip.parse().expect("an address"), DNS));
    let mut through_service = targets
        .iter()
        .map(|target| Held::open(&client, *target))
        .collect::<Result<Vec<_>>>()?;
    let goes_on = |held: &mut [Held], server: &str| -> Result<()> {
        held.iter_mut().try_for_each(|held| {
            let answer = held.ask()?;
            ensure!(answer.server == server, "{answer:?}");
            Ok(())
        })
    };

    // The cache comes.
    let cache = serve_cache(&ground)?;
    answered_by(&ground, "cache", sockets)?;
    goes_on(&mut through_service, "pod-1-1")?;
    let mut through_cache = targets
        .iter()
        .map(|target| Held::open(&client, *target))
        .collect::<Result<Vec<_>>>()?;
    goes_on(&mut through_cache, "cache")?;
    said(&ground)?;

    // It stays while the agent is another one, which finds it there.
    ground.kill_agents()?;
    ground.start_agents()?;
    answered_by(&ground, "cache", sockets)?;
    goes_on(&mut through_service, "pod-1-1")?;
    goes_on(&mut through_cache, "cache")?;

    // It goes.
    drop(cache);
    let node = ground.lab.node(1);
    for address in CLUSTER_IPS {
        node.run(&format!("ip addr del {address} dev lo"))?;
    }
    answered_by(&ground, "pod-1-1", sockets)?;
    goes_on(&mut through_service, "pod-1-1")?;
    assert_eq!(ground.metric(1, LEFT)?, 0.0);
    assert_eq!(ground.status(1)?.left_to_node, []);
    Ok(())
}

/// The cluster's DNS, with an endpoint on `pod-1-1`, which has metrics on another port.
fn serve_dns(ground: &Balanced) -> Result<RunningServer> {
    let lab = &ground.lab;
    let pod = lab.pod("pod-1-1");
    let server = Serve::new(pod.name()).tcp(TARGET).udp(TARGET).start(pod)?;
    ground.change(|| {
        let service = CLUSTER_IPS
            .iter()
            .fold(lab.service("dns"), |service, ip| service.cluster_ip(ip));
        let service = service.udp("dns", DNS, TARGET).tcp("dns-tcp", DNS, TARGET);
        service.tcp("metrics", METRICS, TARGET).apply()?;
        let slices = lab.endpoints("dns").udp("dns", TARGET);
        let slices = slices.tcp("dns-tcp", TARGET).tcp("metrics", TARGET);
        slices.with(Endpoint::ready(pod)).apply()
    })?;
    Ok(server)
}

fn serve_cache(ground: &Balanced) -> Result<[RunningServer; 2]> {
    let node = ground.lab.node(1);
    let serve = |address: &str| {
        // As the cache does it: first the address, then the sockets.
        node.run(&format!("ip addr add {address} dev lo"))?;
        let server = Serve::new("cache").address(address.parse::<IpAddr>()?);
        server.tcp(DNS).udp(DNS).start(node)
    };
    Ok([serve(CLUSTER_IPS[0])?, serve(CLUSTER_IPS[1])?])
}

/// Waits until this server answers everybody at the port of DNS; metrics are always the pod's.
#[track_caller]
fn answered_by(ground: &Balanced, server: &str, sockets: bool) -> Result<()> {
    let lab = &ground.lab;
    let node: &Host = lab.node(1).as_ref();
    let clients: &[&Host] = match sockets || server == "cache" {
        true => &[lab.pod("pod-1-2").as_ref(), node],
        false => &[lab.pod("pod-1-2").as_ref()],
    };
    for (client, target, port) in clients
        .iter()
        .flat_map(|client| CLUSTER_IPS.map(|ip| (*client, ip)))
        .flat_map(|(client, ip)| [DNS, METRICS].map(|port| (client, ip, port)))
    {
        let target = SocketAddr::new(target.parse()?, port);
        if port == METRICS {
            if sockets || client.name() != node.name() {
                let reply = Request::tcp(target).send(client)?;
                assert_eq!(reply.server, "pod-1-1", "{client} to {target}");
            }
            continue;
        }
        for protocol in PROTOCOLS {
            eventually(|| {
                let reply = Request::new(protocol, target).send(client);
                let reply = reply.map_err(|e| format!("{client} to {target}: {e}"))?;
                match reply.server == server && reply.from == target {
                    true => Ok(()),
                    false => Err(format!("{client} to {target}: {reply}")),
                }
            });
        }
    }
    Ok(())
}

/// Status, metric, log and `explain` say that the node answers itself.
fn said(ground: &Balanced) -> Result<()> {
    let node = ground.lab.node(1);
    assert_eq!(ground.metric(1, LEFT)?, 4.0, "two protocols and families");
    let status = ground.status(1)?;
    let left: Vec<_> = status.left_to_node.iter().collect();
    assert!(
        left.iter()
            .any(|port| port.service_port == "default/dns:dns" && port.protocol == "UDP"),
        "{left:?}"
    );
    assert_eq!(status.not_programmed, []);
    let log = ground.agents[0].log()?;
    let line = line_with(&log, "is left to this node");
    assert!(line.contains("default/dns:dns"), "{line}");

    let program = balanced::node_lb()?.display().to_string();
    let (manifests, client) = (node.manifests(), ground.lab.pod("pod-1-2"));
    let text = node.run(&format!(
        "{program} explain --source dir:{} --node {} --cluster-cidr {} --from {} --to {}:53/udp",
        manifests.display(),
        node.name(),
        balanced::CLUSTER_CIDR,
        client.ip(Family::V4),
        CLUSTER_IPS[0],
    ))?;
    assert!(text.contains("the node itself answers there"), "{text}");
    Ok(())
}
