//! The parts of the demo in which traffic flows.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use lb_tests::traffic::RunningLoad;
use lb_tests::{Balanced, Family, Host, HttpAnswer, Load, Request, http_get};

use super::AFTERWARDS;
use super::screen::Screen;
use super::world::{HEALTH_CHECK_NODE_PORT, NODE_PORT, World};

pub const CLUSTER_IP: &str = "10.96.0.10:80";
const CLUSTER_IP_V6: &str = "[fd00:10:96::10]:80";
const CLUSTER_IP_UDP: &str = "10.96.0.10:53";
pub const LOAD_BALANCER_IP: &str = "172.30.78.10:80";

pub fn introduce(screen: &Screen, world: &dyn World, took: Duration) -> Result<()> {
    let lab = &world.ground().lab;
    let pods = world.pods()?;
    let pods: Vec<_> = pods
        .iter()
        .map(|pod| format!("{} on {}", pod.name, pod.node))
        .collect();
    screen.say(format_args!(
        "client {}, node-1 {}, node-2 {}; up after {took:.1?}",
        lab.client().ip(Family::V4),
        lab.node(1).ip(Family::V4),
        lab.node(2).ip(Family::V4)
    ));
    screen.say(format_args!(
        "Service default/web, externalTrafficPolicy Local, has three pods: {}",
        pods.join(", ")
    ));
    Ok(())
}

/// Makes one request for every way to reach the Service.
pub fn requests(screen: &mut Screen, ground: &Balanced) -> Result<()> {
    screen.act("Every way to the Service");
    let lab = &ground.lab;
    let pod = lab.pod("pod-2-1");
    let node_port = lab.node(1).at(Family::V4, NODE_PORT);
    let ways: [(&str, &Host, Request); 6] = [
        (
            "ClusterIP, from a pod",
            pod,
            Request::http(CLUSTER_IP.parse()?),
        ),
        (
            "ClusterIP, from a node",
            lab.node(1),
            Request::http(CLUSTER_IP.parse()?),
        ),
        (
            "ClusterIP, over UDP",
            pod,
            Request::udp(CLUSTER_IP_UDP.parse()?),
        ),
        (
            "ClusterIP, over IPv6",
            pod,
            Request::http(CLUSTER_IP_V6.parse()?),
        ),
        (
            "NodePort, from outside",
            lab.client(),
            Request::http(node_port),
        ),
        (
            "LoadBalancer IP, from outside",
            lab.client(),
            Request::http(LOAD_BALANCER_IP.parse()?),
        ),
    ];
    for (way, from, request) in ways {
        match request.send(from) {
            Ok(reply) => screen.promise(
                true,
                format_args!(
                    "{way:<30} {} -> {:<20} answered by {}, which saw {}",
                    reply.source.ip(),
                    reply.from,
                    reply.server,
                    reply.peer.ip()
                ),
            ),
            Err(failure) => screen.promise(false, format_args!("{way:<30} {failure}")),
        }
    }
    screen.say("From outside, the pod sees the client's own address: policy Local.");
    Ok(())
}

/// Replaces all pods, under load from four clients.
pub fn rolling_update(screen: &mut Screen, world: &mut dyn World) -> Result<()> {
    screen.act("A rolling update under load");
    let before = names(world)?;
    let loads = start_loads(world.ground())?;
    world.roll(screen)?;
    thread::sleep(AFTERWARDS);
    report_loads(screen, loads)?;

    let after = names(world)?;
    screen.promise(
        before.is_disjoint(&after),
        format_args!("{} became {}", list(&before), list(&after)),
    );
    Ok(())
}

/// Terminates all pods of node 1. Traffic to the node is still served.
pub fn drain(screen: &mut Screen, world: &mut dyn World) -> Result<()> {
    screen.act("healthCheckNodePort while node-1 has only terminating pods");
    health(screen, world.ground(), 200)?;

    let request = Request::http(LOAD_BALANCER_IP.parse()?);
    let load = Load::new(request).start(world.ground().lab.client())?;
    world.terminate(screen)?;
    screen.say("Now all pods of node-1 terminate. The outer load balancer is told to stop:");
    health(screen, world.ground(), 503)?;
    screen.say("but until it does, they serve what still arrives:");
    let request = Request::http(LOAD_BALANCER_IP.parse()?);
    let reply = request.send(world.ground().lab.client());
    screen.promise(
        reply.is_ok(),
        match &reply {
            Ok(reply) => format!("LoadBalancer IP: answered by {}", reply.server),
            Err(failure) => format!("LoadBalancer IP: {failure}"),
        },
    );

    world.replace(screen)?;
    thread::sleep(AFTERWARDS);
    screen.say("New pods have come, the old ones are gone:");
    health(screen, world.ground(), 200)?;
    screen.no_failures("LoadBalancer IP from outside, all that time", &load.stop()?);
    Ok(())
}

/// Kills both agents and starts them again, under load.
pub fn restart(screen: &mut Screen, ground: &mut Balanced) -> Result<()> {
    screen.act("kill -9 of both agents, and a second without any, under load");
    let loads = start_loads(ground)?;
    let request = Request::http(LOAD_BALANCER_IP.parse()?);
    let persistent = Load::new(request)
        .persistent()
        .pause(Duration::from_millis(5))
        .start(ground.lab.client())?;
    ground.kill_agents()?;
    thread::sleep(Duration::from_secs(1));
    ground.start_agents()?;
    thread::sleep(AFTERWARDS);
    let persistent = persistent.stop()?;
    report_loads(screen, loads)?;
    screen.no_failures("connections opened before the kill", &persistent);
    screen.promise(
        persistent.reconnects == 0,
        format_args!("{} of those connections were cut", persistent.reconnects),
    );
    Ok(())
}

type Loads = Vec<(&'static str, RunningLoad)>;

fn start_loads(ground: &Balanced) -> Result<Loads> {
    let lab = &ground.lab;
    let pod = lab.pod("pod-2-1");
    let from: [(&str, &Host, Request); 4] = [
        (
            "LoadBalancer IP from outside",
            lab.client(),
            Request::http(LOAD_BALANCER_IP.parse()?),
        ),
        (
            "ClusterIP from a pod",
            pod,
            Request::http(CLUSTER_IP.parse()?),
        ),
        (
            "ClusterIP from a node",
            lab.node(2),
            Request::http(CLUSTER_IP.parse()?),
        ),
        (
            "ClusterIP over UDP from a pod",
            pod,
            Request::udp(CLUSTER_IP_UDP.parse()?),
        ),
    ];
    from.into_iter()
        .map(|(name, host, request)| {
            let load = Load::new(request)
                .workers(2)
                .pause(Duration::from_millis(2));
            Ok((name, load.start(host)?))
        })
        .collect()
}

fn report_loads(screen: &mut Screen, loads: Loads) -> Result<()> {
    for (name, load) in loads {
        screen.no_failures(name, &load.stop()?);
    }
    Ok(())
}

/// Asks node 1 as an outer load balancer does.
fn health(screen: &mut Screen, ground: &Balanced, expected: u16) -> Result<()> {
    let address = ground.lab.node(1).at(Family::V4, HEALTH_CHECK_NODE_PORT);
    let answer = ask_health(ground, address)?;
    let HttpAnswer {
        status,
        body,
        headers,
    } = &answer;
    let weight = headers.get(WEIGHT).map_or("none", String::as_str);
    let body: Vec<_> = body.split_whitespace().collect();
    screen.command(
        format_args!("curl -i http://{address}/"),
        &format!("HTTP/1.1 {status}, {WEIGHT}: {weight}\n{}", body.join(" ")),
    );
    screen.promise(*status == expected, format_args!("node-1 answers {status}"));
    Ok(())
}

const WEIGHT: &str = "x-load-balancing-endpoint-weight";

fn ask_health(ground: &Balanced, address: SocketAddr) -> Result<HttpAnswer> {
    http_get::get(ground.lab.client(), address, "/").context("no answer to the health check")
}

/// The names of the Service's pods.
fn names(world: &dyn World) -> Result<BTreeSet<String>> {
    Ok(world.pods()?.into_iter().map(|pod| pod.name).collect())
}

fn list(names: &BTreeSet<String>) -> String {
    names
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}
