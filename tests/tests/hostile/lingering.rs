//! Seats that linger: who connects and disconnects without end gets no more connections than their flow schema's
//! `linger` lets it have, with an agent and without one, and the seats come back.

use std::{thread, time::Duration};

use anyhow::Result;
use lb_tests::{
    Family, Load, Request,
    attack::{Flood, FloodKind},
    traffic::allow_many_files,
};

use super::{
    levels::{NOISY, QUIET, Tenants, tenant, with_field},
    support::{FLOOD, Findings, attack_time},
    waiting::with_queues,
    wide::note_empty,
};

/// Seats of the node, of which the noisy one has this part.
const SEATS: u32 = 70;
const OF_LEVEL: u64 = 20;
/// How long the seats of the noisy one linger, and how much more the coarse clock may make of it.
const LINGER: Duration = Duration::from_millis(500);
const COARSE: Duration = Duration::from_millis(40);

/// A tenant whose clients come back at once, whether they were let in or refused.
fn churn_is_damped(family: Family, objects: &str, xdp: &str) -> Result<()> {
    allow_many_files()?;
    let objects = with_field(objects, &format!("linger: {}ms", LINGER.as_millis()));
    let mut tenants = Tenants::with(&objects, SEATS, "enforce", &[xdp])?;
    let mut findings = Findings::default();
    let target = tenants.ground.outside(family, NOISY);
    for agent in ["with an agent", "without an agent"] {
        let quiet = tenants.load(family, QUIET)?;
        let churn = Load::new(Request::tcp(target).deadline(Duration::from_secs(5)));
        let churn = churn
            .workers(4)
            .pause_after_failure(Duration::from_millis(2))
            .start(&tenants.ground.attacker)?;
        let time = attack_time(Duration::from_secs(4));
        thread::sleep(time);
        let (churn, quiet) = (churn.stop()?, quiet.stop()?);
        // At first all seats are free. Then each has one connection in such a time.
        let let_in = |linger: Duration| {
            OF_LEVEL + (OF_LEVEL * time.as_millis() as u64) / linger.as_millis() as u64
        };
        let (most, least) = (let_in(LINGER), let_in(LINGER + COARSE));
        findings.note(
            (least * 8 / 10..=most * 11 / 10).contains(&churn.ok),
            format!("{agent}: between {least} and {most}: {churn}"),
        );
        findings.note(
            quiet.failed == 0 && quiet.ok > 500,
            format!("{agent}: of another tenant: {quiet}"),
        );
        if agent == "with an agent" {
            note_empty(&tenants, &mut findings, agent)?;
            let level = tenants.level(NOISY)?;
            findings.note(
                (u64::from(level.highest) <= OF_LEVEL, level.lingering) == (true, 0),
                format!("{level:?}"),
            );
            tenants.ground.balanced.kill_agents()?;
            // Until programs know that nobody looks after those who wait.
            thread::sleep(Duration::from_secs(3));
        }
    }
    tenants.ground.balanced.start_agents()?;
    note_empty(&tenants, &mut findings, "with another agent")?;
    // Forged clients complete no handshake: their seats come back and do not linger.
    let flood = Flood::new(FloodKind::Syn, [target]).rate(FLOOD);
    let flood = flood.start(&tenants.ground.attacker)?;
    thread::sleep(attack_time(Duration::from_secs(4)));
    let level = tenants.level(NOISY)?;
    findings.note(
        level.lingering == 0,
        format!("in a flood, {}: {level:?}", flood.stop()?),
    );
    note_empty(&tenants, &mut findings, "after a flood")?;
    findings.assert_good();
    Ok(())
}

#[test]
fn churn_is_refused_by_xdp() -> Result<()> {
    churn_is_damped(Family::V4, &tenant(NOISY, 10), "--xdp-mode=native")
}

#[test]
fn churn_waits_by_tc() -> Result<()> {
    churn_is_damped(Family::V6, &with_queues(20, "BySourceIP"), "--xdp-mode=off")
}
