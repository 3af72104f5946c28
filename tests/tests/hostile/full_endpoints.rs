//! How many connections an endpoint has: no more than its Service lets it have, and no more than the
//! others if the Service asks for that.

use std::{collections::BTreeMap, net::SocketAddr, thread, time::Duration};

use anyhow::Result;
use lb_tests::{
    Family, Held, Load, Request, Topology,
    attack::{Flood, FloodKind, RunningFlood},
    traffic::allow_many_files,
};

use super::support::{FLOOD, Findings, Ground, SOON, Source, attack_time, within};

const SERVICE: u8 = 1;
const NEIGHBOUR: u8 = 2;
/// The most connections of an endpoint.
const MOST: usize = 20;
const PODS: u8 = 5;
const FIVE_PODS: Topology = Topology {
    nodes: 1,
    pods_per_node: PODS,
    ..Topology::DEFAULT
};

/// A Service of the first pods with these annotations.
fn service(ground: &Ground, pods: u8, annotations: &[(&str, &str)]) -> Result<()> {
    let names: Vec<_> = (1..=pods).map(|number| format!("pod-1-{number}")).collect();
    let pods: Vec<_> = names.iter().map(|name| ground.pod(name)).collect();
    ground.service_that(SERVICE, Source::Translated, &pods, |service| {
        annotations.iter().fold(service, |service, (name, value)| {
            service.annotation(name, value)
        })
    })
}

/// How many of these connections each pod serves; none that does not answer.
fn servers(held: &mut [Held]) -> BTreeMap<String, usize> {
    let mut servers = BTreeMap::new();
    for answer in held.iter_mut().filter_map(|held| held.ask().ok()) {
        *servers.entry(answer.server).or_default() += 1;
    }
    servers
}

/// Opens connections until three pods have all that they may have.
fn refill(ground: &Ground, target: SocketAddr, held: &mut Vec<Held>) -> Result<Duration, String> {
    within(SOON, || {
        let (more, _) = ground.open(target, 3 * MOST - held.len());
        held.extend(more);
        match held.len() {
            len if len == 3 * MOST => Ok(()),
            len => Err(format!("{len} are open")),
        }
    })
}

fn an_endpoint_has_no_more_than_it_may(xdp: &str) -> Result<()> {
    allow_many_files()?;
    let mut ground = Ground::with(FIVE_PODS, &[xdp])?;
    let limit = MOST.to_string();
    let limited = [("node-lb.io/max-connections-per-endpoint", &*limit)];
    ground.service(NEIGHBOUR, Source::Translated, &[ground.pod("pod-1-1")])?;
    let mut findings = Findings::default();
    for family in Family::BOTH {
        service(&ground, 3, &limited)?;
        let target = ground.outside(family, SERVICE);
        let good = Load::new(Request::tcp(ground.outside(family, NEIGHBOUR)));
        let good = good.start(ground.client())?;

        let (mut held, refused) = ground.open(target, 3 * MOST + 10);
        let found = servers(&mut held);
        findings.note(
            refused == 10 && found.len() == 3 && found.values().all(|most| *most == MOST),
            format!("{family:?}: {found:?}, {refused} reset"),
        );

        // The next ones go where some have ended, however they ended.
        let gone = held.split_off(3 * MOST - 9);
        for (number, connection) in gone.into_iter().enumerate() {
            match number % 2 {
                0 => drop(connection),
                _ => connection.reset()?,
            }
        }
        let refilled = refill(&ground, target, &mut held);
        let found = servers(&mut held);
        findings.note(
            refilled.is_ok() && found.values().all(|most| *most == MOST),
            format!("refilled: {refilled:?}, {found:?}"),
        );

        // Agents that are killed, and ends that nobody sees.
        let gone = held.split_off(MOST);
        ground.balanced.kill_agents()?;
        drop(gone);
        ground.balanced.start_agents()?;
        let refilled = refill(&ground, target, &mut held);
        let (more, refused) = ground.open(target, 5);
        findings.note(
            refilled.is_ok() && more.is_empty() && refused == 5,
            format!("after a kill: {refilled:?}, {} more", more.len()),
        );

        // Another endpoint is room for as many, and a higher limit for all.
        service(&ground, 4, &limited)?;
        let (more, refused) = ground.open(target, MOST + 5);
        held.extend(more);
        let found = servers(&mut held);
        findings.note(
            refused == 5 && found.get("pod-1-4") == Some(&MOST),
            format!("with a fourth: {found:?}, {refused} reset"),
        );
        let good = good.stop()?;
        findings.note(
            good.failed == 0 && good.ok > 0 && good.repeated_syns.is_empty(),
            format!("neighbour at a full endpoint: {good}"),
        );
        drop(held);
    }
    findings.assert_good();
    Ok(())
}

#[test]
fn an_endpoint_has_no_more_than_it_may_by_xdp() -> Result<()> {
    an_endpoint_has_no_more_than_it_may("--xdp-mode=native")
}

#[test]
fn an_endpoint_has_no_more_than_it_may_by_tc() -> Result<()> {
    an_endpoint_has_no_more_than_it_may("--xdp-mode=off")
}

/// Spoofed SYNs to a Service, from now on.
fn flood(ground: &Ground, target: SocketAddr) -> Result<RunningFlood> {
    let flood = Flood::new(FloodKind::Syn, [target]).rate(FLOOD);
    flood.start(&ground.attacker)
}

/// Has a good client work beside a flood, and does something `meanwhile`. Notes how the client fared.
fn good_client_beside<T>(
    flood: RunningFlood,
    ground: &Ground,
    target: SocketAddr,
    findings: &mut Findings,
    meanwhile: impl FnOnce() -> T,
) -> Result<T> {
    let load = Load::new(Request::tcp(target).deadline(Duration::from_secs(1)));
    let load = load.start(ground.client())?;
    let done = meanwhile();
    thread::sleep(attack_time(Duration::from_secs(3)));
    let (load, flood) = (load.stop()?, flood.stop()?);
    // Some ports of source NAT towards the flooded endpoints are in use when a client needs them.
    let few = (load.ok / 100) as usize;
    findings.note(
        load.failed == 0 && load.ok > 100 && load.repeated_syns.len() <= few,
        format!("{flood}: {load}"),
    );
    Ok(done)
}

/// Spoofed SYNs take all places at the endpoints. Their handshakes stay open, so after a moment
/// handshakes take none.
#[test]
fn a_flood_leaves_endpoints_to_those_who_complete_their_handshakes() -> Result<()> {
    let ground = Ground::with(FIVE_PODS, &[])?;
    let limit = MOST.to_string();
    let limited = [("node-lb.io/max-connections-per-endpoint", &*limit)];
    service(&ground, 3, &limited)?;
    let mut findings = Findings::default();
    for family in Family::BOTH {
        let target = ground.outside(family, SERVICE);
        let flood = flood(&ground, target)?;
        let relieved = ground.relieved();
        findings.note(relieved.is_ok(), format!("{family:?}: {relieved:?}"));
        good_client_beside(flood, &ground, target, &mut findings, || ())?;
    }
    findings.assert_good();
    Ok(())
}

/// Each endpoint answers spoofed SYNs and has their handshakes open. So all remain equals, whichever answers soonest.
#[test]
fn a_flood_leaves_least_latency_all_endpoints() -> Result<()> {
    allow_many_files()?;
    let ground = Ground::with(FIVE_PODS, &[])?;
    let least = [("node-lb.io/algorithm", "least-latency")];
    service(&ground, 3, &least)?;
    let mut findings = Findings::default();
    for family in Family::BOTH {
        let target = ground.outside(family, SERVICE);
        let flood = flood(&ground, target)?;
        let (_held, found) = good_client_beside(flood, &ground, target, &mut findings, || {
            let (mut held, _) = ground.open(target, 90);
            let found = servers(&mut held);
            (held, found)
        })?;
        findings.note(
            found.len() == 3 && found.values().all(|number| *number >= 10),
            format!("{family:?}: {found:?}"),
        );
    }
    findings.assert_good();
    Ok(())
}

/// New endpoints get the next connections, and one that is slow to end its own gets few.
#[test]
fn with_least_connections_endpoints_have_as_many_as_others() -> Result<()> {
    allow_many_files()?;
    let ground = Ground::with(FIVE_PODS, &[])?;
    let least = [("node-lb.io/algorithm", "least-connections")];
    let mut findings = Findings::default();
    for family in Family::BOTH {
        service(&ground, 3, &least)?;
        let target = ground.outside(family, SERVICE);
        let (mut held, _) = ground.open(target, 120);
        let found = servers(&mut held);
        let even = |found: &BTreeMap<String, usize>, pods: usize| {
            let all: usize = found.values().sum();
            let most = found.values().max().copied().unwrap_or(0);
            found.len() == pods && most as f64 <= 1.1 * all as f64 / pods as f64
        };
        findings.note(even(&found, 3), format!("{family:?}: {found:?}"));

        // After a scale-out, those without connections fill up.
        service(&ground, PODS, &least)?;
        let (more, _) = ground.open(target, 180);
        held.extend(more);
        let found = servers(&mut held);
        findings.note(even(&found, PODS.into()), format!("scaled out: {found:?}"));
        drop(held);
    }
    findings.assert_good();
    Ok(())
}
