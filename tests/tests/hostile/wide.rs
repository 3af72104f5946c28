//! Connections that take several seats of their level each: no more are let in than there are seats for,
//! those that wait get all their seats or none, and all are given back, whoever ends a connection.

use std::{thread, time::Duration};

use anyhow::Result;
use lb_tests::{
    Family,
    attack::{Flood, FloodKind},
    traffic::allow_many_files,
};

use super::{
    levels::{NOISY, Tenants, name, with_field},
    support::{FLOOD, Findings, attack_time},
    waiting::{LEAVES, OF_LEVEL, SEATS, busy_and_quiet, until_one_leaves, with_queues},
};

/// Seats of each connection, and how many of those there are seats for.
const WIDTH: usize = 4;
const ROOM: usize = OF_LEVEL / WIDTH;
/// By how much agents have found the numbers of seats wrong.
const CORRECTED: &str = "node_lb_connection_limit_corrected_total";

fn wide(xdp: &str) -> Result<Tenants> {
    allow_many_files()?;
    let objects = with_queues(50, "BySourceIP");
    let objects = with_field(&objects, &format!("seats: {WIDTH}"));
    Tenants::with(&objects, SEATS, "enforce", &[xdp])
}

/// Notes that nobody is left at the level, and that no number of seats was ever wrong.
pub fn note_empty(tenants: &Tenants, findings: &mut Findings, when: &str) -> Result<()> {
    let empty = tenants.in_use(NOISY, 0);
    findings.note(empty.is_ok(), format!("{when}: {empty:?}"));
    let corrected = tenants.ground.balanced.metric(1, CORRECTED)?;
    findings.note(
        corrected == 0.0,
        format!("{when}: {corrected} seats were corrected"),
    );
    Ok(())
}

/// All seats are held. One more connection waits, until one of the others ends.
fn one_waits_for_all_its_seats(family: Family, xdp: &str) -> Result<()> {
    let mut tenants = wide(xdp)?;
    let mut findings = Findings::default();
    let target = tenants.ground.outside(family, NOISY);
    let (mut held, refused) = tenants.open(family, ROOM);
    let level = tenants.level(NOISY)?;
    findings.note(
        (held.len(), refused, level.in_use as usize) == (ROOM, 0, OF_LEVEL),
        format!("{} let in, {refused} reset: {level:?}", held.len()),
    );
    let waited = until_one_leaves(&tenants, target, || drop(held.pop()));
    let waited = waited.map(|(mut waiter, took)| (waiter.ask().is_ok(), took, waiter));
    findings.note(
        matches!(&waited, Ok((true, took, _)) if (LEAVES..2 * LEAVES).contains(took)),
        format!("the one that waited: {waited:?}"),
    );
    let schema = tenants.schema(&name(NOISY))?;
    findings.note(
        (schema.seats as usize, schema.waited) == (WIDTH, 1),
        format!("{schema:?}"),
    );
    // Another agent finds them in the flow table.
    tenants.ground.balanced.kill_agents()?;
    tenants.ground.balanced.start_agents()?;
    let full = tenants.in_use(NOISY, OF_LEVEL);
    findings.note(full.is_ok(), format!("with another agent: {full:?}"));
    drop(waited);
    drop(held);
    note_empty(&tenants, &mut findings, "after the end of all")?;
    findings.assert_good();
    Ok(())
}

#[test]
fn one_waits_for_all_its_seats_by_xdp() -> Result<()> {
    one_waits_for_all_its_seats(Family::V4, "--xdp-mode=native")
}

#[test]
fn one_waits_for_all_its_seats_by_tc() -> Result<()> {
    one_waits_for_all_its_seats(Family::V6, "--xdp-mode=off")
}

/// Busy clients come and go, more than there are seats for. Then forged ones come, whose handshakes nobody
/// completes.
fn a_crowd_leaves_no_seat_behind(family: Family, xdp: &str) -> Result<()> {
    let tenants = wide(xdp)?;
    let mut findings = Findings::default();
    let target = tenants.ground.outside(family, NOISY);
    let (level, crowd, quiet) = busy_and_quiet(&tenants, target, ROOM + 10)?;
    findings.note(
        level.highest as usize <= OF_LEVEL && level.highest as usize > OF_LEVEL - 3 * WIDTH,
        format!("{level:?}"),
    );
    // The level keeps five seats for those without any: enough for one connection.
    findings.note(
        quiet.failed == 0 && quiet.ok > 50 && quiet.repeated_syns.is_empty(),
        format!("quiet: {quiet}"),
    );
    findings.note(
        crowd.failed == 0 && crowd.ok > 300 && crowd.repeated_syns.is_empty(),
        format!("crowd: {crowd}"),
    );
    note_empty(&tenants, &mut findings, "after the crowd")?;
    let flood = Flood::new(FloodKind::Syn, [target]).rate(FLOOD);
    let flood = flood.start(&tenants.ground.attacker)?;
    thread::sleep(attack_time(Duration::from_secs(4)));
    let sent = flood.stop()?;
    note_empty(&tenants, &mut findings, &format!("after a flood, {sent:?}"))?;
    let (held, _) = tenants.open(family, ROOM);
    let level = tenants.level(NOISY)?;
    findings.note(
        held.len() >= ROOM - 2 && level.in_use as usize == WIDTH * held.len(),
        format!("after a flood {} are let in: {level:?}", held.len()),
    );
    findings.assert_good();
    Ok(())
}

#[test]
fn a_crowd_leaves_no_seat_behind_by_xdp() -> Result<()> {
    a_crowd_leaves_no_seat_behind(Family::V6, "--xdp-mode=native")
}

#[test]
fn a_crowd_leaves_no_seat_behind_by_tc() -> Result<()> {
    a_crowd_leaves_no_seat_behind(Family::V4, "--xdp-mode=off")
}
