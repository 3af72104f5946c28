//! How each fault is brought about.

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;

use super::{
    Scene, Staged,
    scene::{NOBODY, TARGET, cluster_ip, node_port},
};
use crate::{
    Family, Held, Load, Request, Serve,
    attack::{Flood, FloodKind},
    traffic::RunningLoad,
};

/// More connections than each of the small limits allows.
const MANY: usize = 200;
/// Between two requests of a client.
pub const PAUSE: Duration = Duration::from_millis(20);

pub fn dead_endpoint(scene: &mut Scene) -> Result<Staged> {
    // Nobody listens there but for the first pod.
    let server = Serve::new("alive")
        .tcp(NOBODY)
        .start(scene.pod("pod-1-1"))?;
    let pods = [scene.pod("pod-1-1"), scene.pod("pod-1-2")];
    scene.service("dead-endpoint", 1, NOBODY, &pods, |service| service)?;
    Ok(Box::new((server, ask_often(scene, 1)?)))
}

pub fn blackholed_node(scene: &mut Scene) -> Result<Staged> {
    let pods = ["pod-1-1", "pod-2-1", "pod-2-2"].map(|name| scene.pod(name));
    scene.service("blackholed-node", 2, TARGET, &pods, |service| service)?;
    let [_, one, another] = pods.map(|pod| pod.ip(Family::V4));
    let rules = format!(
        "table inet fault {{\n chain swallow {{\n type filter hook prerouting priority -300\n \
         ip daddr {{ {one}, {another} }} drop\n }}\n}}\n"
    );
    scene.ground.lab.node(2).feed("nft -f -", &rules)?;
    Ok(Box::new(ask_often(scene, 2)?))
}

pub fn wrong_policy(scene: &mut Scene) -> Result<Staged> {
    let far = [scene.pod("pod-2-1")];
    scene.service("wrong-policy", 3, TARGET, &far, |service| {
        service.external_local()
    })?;
    Ok(Box::new(()))
}

pub fn missing_route(scene: &mut Scene) -> Result<Staged> {
    let far = scene.pod("pod-2-2");
    scene.service("missing-route", 4, TARGET, &[far], |service| service)?;
    let route = format!("ip route add unreachable {}", far.ip(Family::V4));
    scene.ground.lab.node(1).run(&route)?;
    // Without source NAT, whose ports would be in use soon.
    let load = Load::new(Request::tcp(cluster_ip(4))).pause(PAUSE);
    Ok(Box::new(load.start(scene.pod("pod-1-1"))?))
}

pub fn refused_service(scene: &mut Scene) -> Result<Staged> {
    for (name, number) in [("older", 5), ("refused-service", 6)] {
        let pods = [scene.pod("pod-1-1")];
        let ips = vec!["192.0.2.80".to_owned()];
        scene.service(name, number, TARGET, &pods, |service| {
            service.set("externalIPs", ips)
        })?;
    }
    Ok(Box::new(()))
}

pub fn small_level(scene: &mut Scene) -> Result<Staged> {
    let pods = [scene.pod("pod-1-1")];
    scene.service("small-level", 7, TARGET, &pods, |service| service)?;
    let held = Held::open_all(scene.pod("pod-1-2"), cluster_ip(7), 20);
    Ok(Box::new(held))
}

pub fn exhausted_ports(scene: &mut Scene) -> Result<Staged> {
    let pods = [scene.pod("pod-1-1")];
    scene.service("exhausted-ports", 8, TARGET, &pods, |service| service)?;
    Ok(Box::new(hold_many(scene, Request::tcp(outside(scene, 8)))?))
}

pub fn flood(scene: &mut Scene) -> Result<Staged> {
    flooded(scene, "flood", 9, FloodKind::Syn)
}

pub fn full_table(scene: &mut Scene) -> Result<Staged> {
    flooded(scene, "full-table", 10, FloodKind::Udp)
}

/// A Service that keeps its clients' addresses, and a flood to it.
fn flooded(scene: &Scene, name: &str, number: u8, kind: FloodKind) -> Result<Staged> {
    let pods = [scene.pod("pod-1-1")];
    scene.service(name, number, TARGET, &pods, |service| {
        service.external_local()
    })?;
    let flood = Flood::new(kind, [outside(scene, number)]).rate(5_000);
    Ok(Box::new(flood.start(&scene.attacker)?))
}

pub fn stopped_agent(scene: &mut Scene) -> Result<Staged> {
    scene.ground.stop_agents()?;
    Ok(Box::new(()))
}

/// Node 1's node port of Service number `number`.
fn outside(scene: &Scene, number: u8) -> SocketAddr {
    scene.ground.lab.node(1).at(Family::V4, node_port(number))
}

/// A few clients outside that connect to node 1 again and again.
fn ask_often(scene: &Scene, number: u8) -> Result<RunningLoad> {
    let load = Load::new(Request::tcp(outside(scene, number)));
    load.pause(PAUSE).start(scene.ground.lab.client())
}

/// Many clients outside that keep their connections.
fn hold_many(scene: &Scene, request: Request) -> Result<RunningLoad> {
    let load = Load::new(request).workers(MANY).persistent();
    load.pause(Duration::from_millis(500))
        .start(scene.ground.lab.client())
}
