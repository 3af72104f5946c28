//! Connections that wait for a seat: who is next, who is told that it was in vain, and what the endpoint
//! sees of it.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use lb_tests::{
    Family, Held, Load, Request,
    attack::{Flood, FloodKind},
    traffic::{LoadReport, allow_many_files},
};
use node_lb::agent::status::PriorityLevel;

use super::{
    levels::{NOISY, QUIET, Tenants, name, tenant, with_field},
    support::{FLOOD, Findings, SOON, attack_time, filter_input, unlucky, within},
};

/// How long a busy client keeps each connection.
pub const HOLD: Duration = Duration::from_millis(200);
/// After how long somebody leaves for whom another one waits.
pub const LEAVES: Duration = Duration::from_millis(300);
/// Seats of the node, of which the noisy one has this part. They are fewer than the backlog of a server in
/// Rust's library (128), so that all of them fit there if its turn for a processor comes late.
pub const SEATS: u32 = 350;
pub const OF_LEVEL: usize = 100;
/// The most seats that the level keeps for clients without any.
const KEPT: usize = OF_LEVEL / 20;
/// Connections that a busy client always has, or wants: 40 more than there are seats.
const WANTED: usize = OF_LEVEL + 40;
/// A client repeats its SYN after a second, if it waits or the lab itself has lost it.
const REPEATED: Duration = Duration::from_secs(2);
/// Counts the SYNs that reach a pod.
const SYNS: &str = "tcp flags & (fin | syn | rst | ack) == syn counter";

/// A tenant with queues, whose flows are told apart by this method.
pub fn with_queues(length: u32, method: &str) -> String {
    let objects = tenant(NOISY, 10).replace(
        "limitResponse: {type: Reject}",
        &format!(
            "limitResponse: {{type: Queue, queuing: {{queues: 64, handSize: 6, \
             queueLengthLimit: {length}}}}}"
        ),
    );
    let objects = with_field(
        &objects,
        &format!("distinguisherMethod: {{type: {method}}}"),
    );
    assert!(objects.contains("Queue") && objects.contains(method));
    objects
}

fn waiting(length: u32, xdp: &str) -> Result<Tenants> {
    allow_many_files()?;
    Tenants::with(&with_queues(length, "BySourceIP"), SEATS, "enforce", &[xdp])
}

/// SYNs that have reached the pod which serves the noisy one.
fn syns(tenants: &Tenants) -> Result<u64> {
    let pod = tenants.ground.pod("pod-1-1");
    let rules = pod.run("nft list table inet input")?;
    let words: Vec<_> = rules.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "packets");
    let count = at.and_then(|at| words.get(at + 1)).context(rules.clone())?;
    Ok(count.parse()?)
}

/// The connection of a quiet client that waits until somebody leaves, and how long it took to connect.
pub fn until_one_leaves(
    tenants: &Tenants,
    target: SocketAddr,
    leave: impl FnOnce(),
) -> Result<(Held, Duration)> {
    thread::scope(|scope| {
        let quiet = scope.spawn(|| {
            let began = Instant::now();
            let quiet = Held::open_patiently(tenants.ground.client(), target);
            quiet.map(|quiet| (quiet, began.elapsed()))
        });
        thread::sleep(LEAVES);
        leave();
        quiet.join().unwrap()
    })
}

/// Has so many busy clients want seats all the time, and a quiet one want one now and then. Returns what is
/// counted of the level meanwhile, and what both have seen.
pub fn busy_and_quiet(
    tenants: &Tenants,
    target: SocketAddr,
    busy: usize,
) -> Result<(PriorityLevel, LoadReport, LoadReport)> {
    let request = Request::tcp(target).deadline(Duration::from_secs(5));
    let busy = Load::new(request.held_for(HOLD)).workers(busy);
    let busy = busy.start(&tenants.ground.attacker)?;
    // Until all seats are taken.
    thread::sleep(2 * HOLD);
    let quiet = Load::new(request)
        .workers(1)
        .pause(Duration::from_millis(5));
    let quiet = quiet.start(tenants.ground.client())?;
    thread::sleep(attack_time(Duration::from_secs(4)));
    let level = tenants.level(NOISY)?;
    let quiet = quiet.stop()?;
    Ok((level, busy.stop()?, quiet))
}

/// All seats are held, and nobody leaves.
fn who_waits_in_vain_is_told(family: Family, xdp: &str) -> Result<()> {
    let mut tenants = waiting(5, xdp)?;
    let mut findings = Findings::default();
    let target = tenants.ground.outside(family, NOISY);
    let (mut held, refused) = tenants.open(family, OF_LEVEL);
    findings.note(
        (held.len(), refused) == (OF_LEVEL, 0),
        format!("{} let in, {refused} reset", held.len()),
    );
    // Ten more than fit into the queues of one client's hand.
    let crowd = Request::tcp(target).deadline(Duration::from_secs(3));
    let crowd = Load::new(crowd.in_vain()).workers(6 * 5 + 10);
    let crowd = crowd.start(&tenants.ground.attacker)?;
    thread::sleep(Duration::from_millis(300));
    let level = tenants.level(NOISY)?;
    findings.note(
        level.waiting == 6 * 5 && level.queue_full >= 10,
        format!("{level:?}"),
    );
    // One leaves: a client of whom nobody waits is next.
    let quiet = until_one_leaves(&tenants, target, || drop(held.pop()));
    let quiet = quiet.map(|(mut quiet, took)| (quiet.ask().is_ok(), took));
    findings.note(
        matches!(&quiet, Ok((true, took)) if *took < Duration::from_millis(500)),
        format!("quiet: {quiet:?}"),
    );
    drop(held);
    let crowd = crowd.stop()?;
    let schema = tenants.schema(&name(NOISY))?;
    findings.note(
        schema.timed_out >= 20 && schema.refused == 0,
        format!("crowd: {crowd}; {schema:?}"),
    );
    // Without an agent nobody waits, and who is in stays. Seats that it has kept for others are free.
    let (mut held, _) = tenants.open(family, OF_LEVEL);
    let kept = OF_LEVEL - held.len();
    findings.note(kept <= KEPT, format!("{} let in again", held.len()));
    tenants.ground.balanced.kill_agents()?;
    thread::sleep(Duration::from_secs(4));
    let (more, refused) = tenants.open(family, kept + 5);
    findings.note(
        (more.len(), refused) == (kept, 5),
        format!("without an agent: {} let in, {refused} reset", more.len()),
    );
    let alive = held.iter_mut().filter_map(|held| held.ask().ok()).count();
    findings.note(
        alive == held.len(),
        format!("{alive} of {} alive", held.len()),
    );
    tenants.ground.balanced.start_agents()?;
    let waits = within(SOON, || {
        let before = Instant::now();
        let more = Held::open(tenants.ground.client(), target);
        match more.is_err() && before.elapsed() > Duration::from_millis(800) {
            true => Ok(()),
            false => Err(format!("{:?}: {more:?}", before.elapsed())),
        }
    });
    findings.note(waits.is_ok(), format!("with one again: {waits:?}"));
    findings.assert_good();
    Ok(())
}

#[test]
fn who_waits_in_vain_is_told_by_xdp() -> Result<()> {
    who_waits_in_vain_is_told(Family::V6, "--xdp-mode=native")
}

#[test]
fn who_waits_in_vain_is_told_by_tc() -> Result<()> {
    who_waits_in_vain_is_told(Family::V4, "--xdp-mode=off")
}

/// All seats of a level are held, and forged clients beyond number want one.
fn a_flood_fills_the_queues_of_its_level_alone(family: Family, xdp: &str) -> Result<()> {
    let tenants = waiting(50, xdp)?;
    let mut findings = Findings::default();
    let target = tenants.ground.outside(family, NOISY);
    let (mut held, _) = tenants.open(family, OF_LEVEL);
    findings.note(held.len() == OF_LEVEL, format!("{} let in", held.len()));
    let quiet = tenants.load(family, QUIET)?;
    let before = tenants.ground.lost_frames()?;
    let flood = Flood::new(FloodKind::Syn, [target]).rate(FLOOD);
    let flood = flood.start(&tenants.ground.attacker)?;
    thread::sleep(attack_time(Duration::from_secs(3)));
    let level = tenants.level(NOISY)?;
    let flood = flood.stop()?;
    findings.note(
        level.in_use as usize == OF_LEVEL && (100..=64 * 50).contains(&level.waiting),
        format!("{flood}: {level:?}"),
    );
    let quiet = quiet.stop()?;
    let lost = tenants.ground.lost_frames()? - before;
    findings.note(
        quiet.failed == 0 && quiet.ok > 100 && quiet.repeated_syns.len() <= unlucky(quiet.ok, lost),
        format!("quiet: {quiet}; the lab itself lost {lost} frames"),
    );
    let empty = within(SOON, || {
        let level = tenants.level(NOISY).map_err(|error| format!("{error:#}"))?;
        match level.waiting {
            0 => Ok(()),
            waiting => Err(format!("{waiting} wait")),
        }
    });
    findings.note(
        matches!(empty, Ok(after) if after < Duration::from_secs(3)),
        format!("the queues are empty after {empty:?}"),
    );
    let alive = held.iter_mut().filter_map(|held| held.ask().ok()).count();
    findings.note(alive == OF_LEVEL, format!("{alive} alive"));
    // One leaves: who comes now has the seat.
    held.pop();
    let next = Held::open(tenants.ground.client(), target).and_then(|mut next| next.ask());
    findings.note(next.is_ok(), format!("next: {next:?}"));
    findings.assert_good();
    Ok(())
}

#[test]
fn a_flood_fills_the_queues_of_its_level_alone_by_xdp() -> Result<()> {
    a_flood_fills_the_queues_of_its_level_alone(Family::V4, "--xdp-mode=native")
}

#[test]
fn a_flood_fills_the_queues_of_its_level_alone_by_tc() -> Result<()> {
    a_flood_fills_the_queues_of_its_level_alone(Family::V6, "--xdp-mode=off")
}

/// A busy client always wants more seats than there are; a quiet one wants one now and then.
fn a_quiet_client_has_its_turn(family: Family, xdp: &str) -> Result<()> {
    let tenants = waiting(50, xdp)?;
    filter_input(tenants.ground.pod("pod-1-1"), SYNS)?;
    let mut findings = Findings::default();
    let target = tenants.ground.outside(family, NOISY);
    let (level, busy, quiet) = busy_and_quiet(&tenants, target, WANTED)?;
    findings.note(
        level.in_use as usize <= OF_LEVEL
            && (OF_LEVEL - KEPT..=OF_LEVEL).contains(&(level.highest as usize)),
        format!("{level:?}"),
    );
    // It has one of the seats that are kept for those without any: it need not wait for a release.
    findings.note(
        quiet.failed == 0
            && quiet.ok > 100
            && quiet.repeated_syns.is_empty()
            && quiet.p99 < HOLD / 2
            && quiet.max < 2 * HOLD,
        format!("quiet: {quiet}"),
    );
    findings.note(
        busy.failed == 0 && busy.ok > 1000 && busy.repeated_syns.is_empty(),
        format!("busy: {busy}"),
    );
    let (syns, opened) = (syns(&tenants)?, quiet.ok + busy.ok);
    findings.note(
        syns == opened,
        format!("{syns} SYNs at the endpoint for {opened} connections"),
    );
    let schema = tenants.schema(&name(NOISY))?;
    findings.note(schema.refused == 0, format!("{schema:?}"));
    let empty = tenants.in_use(NOISY, 0);
    findings.note(empty.is_ok(), format!("empty: {empty:?}"));
    findings.assert_good();
    Ok(())
}

#[test]
fn a_quiet_client_has_its_turn_by_xdp() -> Result<()> {
    a_quiet_client_has_its_turn(Family::V4, "--xdp-mode=native")
}

#[test]
fn a_quiet_client_has_its_turn_by_tc() -> Result<()> {
    a_quiet_client_has_its_turn(Family::V6, "--xdp-mode=off")
}

/// Forged clients want seats of the level where a quiet client wants one now and then, and perhaps a busy
/// one all. They complete no handshake.
fn a_flood_keeps_no_quiet_client_out(rate: u32, with_busy: bool, xdp: &str) -> Result<()> {
    let family = Family::V4;
    let tenants = waiting(50, xdp)?;
    let mut findings = Findings::default();
    let target = tenants.ground.outside(family, NOISY);
    let request = Request::tcp(target).deadline(Duration::from_secs(5));
    let workers = if with_busy { WANTED } else { 1 };
    let busy = Load::new(request.held_for(HOLD)).workers(workers);
    let busy = busy.start(&tenants.ground.attacker)?;
    let other = tenants.load(family, QUIET)?;
    thread::sleep(2 * HOLD);
    let quiet = Load::new(request)
        .workers(1)
        .pause(Duration::from_millis(5));
    let is_fast = rate == FLOOD;
    let started = match is_fast {
        true => None,
        false => Some(quiet.start(tenants.ground.client())?),
    };
    let before = tenants.ground.lost_frames()?;
    let flood = Flood::new(FloodKind::Syn, [target]).rate(rate);
    let flood = flood.start(&tenants.ground.attacker)?;
    // A fast one fills the queues before anybody can know that its handshakes come to nothing.
    let noticed = within(SOON, || {
        let level = tenants.level(NOISY).map_err(|error| format!("{error:#}"))?;
        match level.pressed && (!is_fast || level.waiting == 0) {
            true => Ok(()),
            false => Err(format!("{level:?}")),
        }
    });
    findings.note(
        matches!(noticed, Ok(after) if after < Duration::from_secs(3)),
        format!("noticed after {noticed:?}"),
    );
    let quiet = match started {
        Some(started) => started,
        None => quiet.start(tenants.ground.client())?,
    };
    thread::sleep(attack_time(Duration::from_secs(5)));
    let level = tenants.level(NOISY)?;
    findings.note(
        level.pressed && level.in_use as usize <= OF_LEVEL,
        format!("{}: {level:?}", flood.stop()?),
    );
    // The quiet one waits until the flood is noticed, a second on a busy machine, but not in vain.
    let waits = usize::from(!is_fast);
    for (name, load, waits) in [("quiet", quiet, waits), ("of another tenant", other, 0)] {
        let load = load.stop()?;
        let lost = tenants.ground.lost_frames()? - before;
        let longest = match load.repeated_syns.len() {
            0 => Duration::from_secs(1),
            _ => REPEATED,
        };
        findings.note(
            load.failed == 0
                && load.ok > 200
                && load.repeated_syns.len() <= unlucky(load.ok, lost) + waits
                && load.max < longest,
            format!("{name}: {load}; the lab itself lost {lost} frames"),
        );
    }
    let busy = busy.stop()?;
    findings.note(
        busy.ok > 20 && (is_fast || busy.failed * 100 <= busy.ok),
        format!("busy: {busy}"),
    );
    findings.assert_good();
    Ok(())
}

#[test]
fn a_slow_flood_keeps_no_quiet_client_out() -> Result<()> {
    a_flood_keeps_no_quiet_client_out(200, true, "--xdp-mode=native")
}

#[test]
fn a_flood_at_an_idle_level_keeps_no_quiet_client_out() -> Result<()> {
    a_flood_keeps_no_quiet_client_out(1000, false, "--xdp-mode=off")
}

/// Its forged clients are too many to wait. Seats are kept for clients with few.
#[test]
fn a_fast_flood_keeps_no_quiet_client_out_for_long() -> Result<()> {
    a_flood_keeps_no_quiet_client_out(FLOOD, true, "--xdp-mode=native")
}
