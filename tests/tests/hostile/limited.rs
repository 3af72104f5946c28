//! Limits of connections: a greedy Service is refused alone, a limit changes under load, and an
//! agent that is killed leaves no seat behind.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result};
use lb_tests::{
    Family, Held, Load, Request,
    attack::{Flood, FloodKind},
    traffic::{RunningLoad, allow_many_files},
};

use super::support::{
    FLOOD, Findings, Ground, ONE_NODE, SOON, Source, attack_time, unlucky, within,
};

const GREEDY: u8 = 1;
const NEIGHBOUR: u8 = 2;
/// The limit of the greedy Service, and what it is lowered to.
const LIMIT: usize = 300;
const LOWERED: usize = 100;
const ANNOTATION: &str = "node-lb.io/max-connections";
/// SYNs that clients of a flooded endpoint may have to repeat. It keeps some spoofed handshakes that
/// the node has forgotten; a client whose port of source NAT is that of one repeats its SYN at once
/// (Linux: after two ticks), not after a second.
const STALE: usize = 40;
/// Enough for a SYN that the lab itself has lost to be sent again.
const DEADLINE: Duration = Duration::from_secs(3);
/// Connections of the test in which agents are killed.
const MANY: usize = 2000;
const KILLS: usize = 3;

/// Connections in use and refused, of a Service or of the node, as node 1's agent says.
fn counted(ground: &Ground, service: Option<u8>) -> Result<(u32, u64)> {
    let name = service.map(|number| format!("/service-{number}"));
    let status = ground.balanced.status(1)?;
    let mut limits = status.connection_limits.iter();
    let limit = limits.find(|limit| match (&name, &limit.service) {
        (Some(name), Some(found)) => found.ends_with(name),
        (None, None) => true,
        _ => false,
    });
    let limit = limit.context("no such limit")?;
    Ok((limit.in_use, limit.refused))
}

/// Waits until so many connections are in use.
fn in_use(ground: &Ground, service: Option<u8>, wanted: usize) -> Result<Duration, String> {
    within(SOON, || {
        let (found, _) = counted(ground, service).map_err(|error| format!("{error:#}"))?;
        match found as usize == wanted {
            true => Ok(()),
            false => Err(format!("{found} in use, not {wanted}")),
        }
    })
}

fn limited(ground: &Ground, most: usize) -> Result<()> {
    let pod = ground.pod("pod-1-1");
    ground.service_that(GREEDY, Source::Translated, &[pod], |service| {
        service.annotation(ANNOTATION, &most.to_string())
    })
}

/// Connections to the neighbour.
fn good_load(ground: &Ground, family: Family) -> Result<RunningLoad> {
    let target = ground.outside(family, NEIGHBOUR);
    let load = Load::new(Request::tcp(target).deadline(DEADLINE));
    load.workers(2).start(ground.client())
}

fn a_greedy_service_is_refused_alone(xdp: &str) -> Result<()> {
    allow_many_files()?;
    let ground = Ground::with(ONE_NODE, &[xdp])?;
    limited(&ground, LIMIT)?;
    ground.service(NEIGHBOUR, Source::Translated, &[ground.pod("pod-1-2")])?;
    let mut findings = Findings::default();
    for family in Family::BOTH {
        let greedy = ground.outside(family, GREEDY);
        let good = good_load(&ground, family)?;

        let (held, refused) = ground.open(greedy, LIMIT + 50);
        findings.note(
            (held.len(), refused) == (LIMIT, 50),
            format!("{family:?}: {} let in, {refused} reset", held.len()),
        );
        let (used, _) = counted(&ground, Some(GREEDY))?;
        findings.note(used as usize == LIMIT, format!("{used} in use"));

        // Lowered under load: nothing is cut, and nobody is let in.
        limited(&ground, LOWERED)?;
        let mut held = held;
        let alive = held.iter_mut().filter_map(|held| held.ask().ok()).count();
        findings.note(alive == LIMIT, format!("{alive} alive under a lower limit"));
        let (more, _) = ground.open(greedy, 5);
        findings.note(more.is_empty(), format!("{} more let in", more.len()));
        held.truncate(LOWERED - 10);
        let drained = in_use(&ground, Some(GREEDY), LOWERED - 10);
        findings.note(drained.is_ok(), format!("drained: {drained:?}"));
        let (more, refused) = ground.open(greedy, 15);
        findings.note(
            (more.len(), refused) == (10, 5),
            format!("{} let in, {refused} reset", more.len()),
        );
        drop((held, more));
        limited(&ground, LIMIT)?;
        let empty = in_use(&ground, Some(GREEDY), 0);
        findings.note(empty.is_ok(), format!("empty: {empty:?}"));

        let good = good.stop()?;
        findings.note(
            good.failed == 0 && good.ok > 0,
            format!("neighbour: {good}"),
        );
    }
    let refused = ground
        .balanced
        .packets(1, lb_common::verdict::Reason::ConcurrencyLimit)?;
    findings.note(refused >= 120, format!("{refused} packets for this reason"));
    findings.assert_good();
    Ok(())
}

#[test]
fn a_greedy_service_is_refused_alone_by_xdp() -> Result<()> {
    a_greedy_service_is_refused_alone("--xdp-mode=native")
}

#[test]
fn a_greedy_service_is_refused_alone_by_tc() -> Result<()> {
    a_greedy_service_is_refused_alone("--xdp-mode=off")
}

#[test]
fn datagrams_beyond_the_limit_are_refused() -> Result<()> {
    let short = [
        "--conntrack-udp-timeout=3s",
        "--conntrack-udp-timeout-stream=3s",
    ];
    let ground = Ground::with(ONE_NODE, &short)?;
    limited(&ground, 2)?;
    let mut findings = Findings::default();
    for family in Family::BOTH {
        let target = ground.outside(family, GREEDY);
        let ask = |_: &u8| {
            let request = Request::udp(target).deadline(Duration::from_secs(1));
            request.send(ground.client()).is_ok()
        };
        let good = [1, 2, 3].iter().filter(|number| ask(number)).count();
        findings.note(good == 2, format!("{family:?}: {good} answered"));
        let empty = in_use(&ground, Some(GREEDY), 0);
        findings.note(empty.is_ok(), format!("empty: {empty:?}"));
    }
    findings.assert_good();
    Ok(())
}

/// Spoofed SYNs take all places of the Service that they are sent to, and not those of the node.
#[test]
fn a_flood_fills_the_limit_of_its_service_alone() -> Result<()> {
    let most = format!("--max-connections={}", 2 * LIMIT);
    let ground = Ground::with(ONE_NODE, &[&most])?;
    limited(&ground, LIMIT)?;
    ground.service(NEIGHBOUR, Source::Translated, &[ground.pod("pod-1-2")])?;
    let mut findings = Findings::default();
    for family in Family::BOTH {
        let greedy = ground.outside(family, GREEDY);
        let good = good_load(&ground, family)?;
        let before = ground.lost_frames()?;
        let flood = Flood::new(FloodKind::Syn, [greedy]).rate(FLOOD);
        let flood = flood.run_for(attack_time(Duration::from_secs(3)), &ground.attacker)?;
        let [(greedy, refused), (node, _)] =
            [counted(&ground, Some(GREEDY))?, counted(&ground, None)?];
        findings.note(
            greedy as usize <= LIMIT && (node as usize) < 2 * LIMIT && refused > 0,
            format!("{family:?}, {flood}: {greedy} in use, {refused} refused, {node} of the node"),
        );
        let good = good.stop()?;
        let lost = ground.lost_frames()? - before;
        findings.note(
            good.failed == 0 && good.ok > 0 && good.repeated_syns.len() <= unlucky(good.ok, lost),
            format!("neighbour: {good}; the lab itself lost {lost} frames"),
        );
    }
    findings.assert_good();
    Ok(())
}

/// Spoofed SYNs to a Service without a limit of its own would take all places of the node. Their
/// handshakes stay open, so after a moment handshakes take none.
#[test]
fn a_flood_leaves_the_nodes_limit_to_those_who_complete_their_handshakes() -> Result<()> {
    let most = format!("--max-connections={LIMIT}");
    let ground = Ground::with(ONE_NODE, &[&most])?;
    for (number, pod) in [(GREEDY, "pod-1-1"), (NEIGHBOUR, "pod-1-2")] {
        ground.service(number, Source::Translated, &[ground.pod(pod)])?;
    }
    let mut findings = Findings::default();
    for family in Family::BOTH {
        let target = ground.outside(family, GREEDY);
        let before = ground.lost_frames()?;
        let flood = Flood::new(FloodKind::Syn, [target]).rate(FLOOD);
        let flood = flood.start(&ground.attacker)?;
        let relieved = ground.relieved();
        let neighbour = good_load(&ground, family)?;
        let own = Load::new(Request::tcp(target).deadline(DEADLINE));
        let own = own.start(ground.client())?;
        thread::sleep(attack_time(Duration::from_secs(3)));
        let (own, neighbour) = (own.stop()?, neighbour.stop()?);
        let flood = flood.stop()?;
        let lost = ground.lost_frames()? - before;
        findings.note(relieved.is_ok(), format!("{family:?}: {relieved:?}"));
        let of_own = STALE.max((own.ok / 100) as usize);
        let of_neighbour = unlucky(neighbour.ok, lost);
        for (whose, load, repeated) in [
            ("its own clients", own, of_own),
            ("neighbour", neighbour, of_neighbour),
        ] {
            findings.note(
                load.failed == 0 && load.ok > 100 && load.repeated_syns.len() <= repeated,
                format!("{family:?}, {flood}, {whose}: {load}; the lab itself lost {lost} frames"),
            );
        }
    }
    findings.assert_good();
    Ok(())
}

/// Flows end while no agent runs, and while one is killed that is just ending them.
#[test]
fn agents_that_are_killed_leave_no_seat_behind() -> Result<()> {
    allow_many_files()?;
    let most = format!("--max-connections={}", 2 * MANY);
    let mut ground = Ground::with(ONE_NODE, &[&most])?;
    limited(&ground, 2 * MANY)?;
    let mut findings = Findings::default();
    for family in Family::BOTH {
        let target = ground.outside(family, GREEDY);
        let open = |_| Held::open_patiently(&ground.attacker, target);
        let mut held = (0..MANY).map(open).collect::<Result<Vec<_>>>()?;
        for _ in 0..KILLS {
            let half = held.split_off(held.len() / 2);
            for (number, connection) in half.into_iter().enumerate() {
                // The agent has to end those that their client resets.
                match number % 2 {
                    0 => drop(connection),
                    _ => connection.reset()?,
                }
            }
            ground.balanced.kill_agents()?;
            ground.balanced.start_agents()?;
        }
        for service in [Some(GREEDY), None] {
            let right = in_use(&ground, service, held.len());
            let left = held.len();
            findings.note(
                right.is_ok(),
                format!("{service:?}: {left} left: {right:?}"),
            );
        }
        drop(held);
        for service in [Some(GREEDY), None] {
            let empty = in_use(&ground, service, 0);
            findings.note(empty.is_ok(), format!("{service:?} empty: {empty:?}"));
        }
    }
    findings.assert_good();
    Ok(())
}
