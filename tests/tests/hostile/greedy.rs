//! A client that completes handshakes without end, and keeps all connections open: its Service
//! reaches its share of the flow table, and others are not affected.

use std::{iter, time::Duration};

use anyhow::Result;
use lb_tests::{Family, Held, traffic::allow_many_files};

use super::support::{Findings, Ground, Source, within};

/// Small, so that one client's connections fill it.
const TABLE: &str = "--flow-table-size=2048";
/// The number of flows that one Service may have: half of what the table can hold, because then as
/// much is free.
const SHARE: usize = 2048;
/// How far the agent's count may be from it, because it counts once per second.
const ABOUT: usize = 128;
const GREEDY: u8 = 1;
const NEIGHBOUR: u8 = 2;
/// In a table that is half full, about one new flow in 50,000 finds its places taken. So none of
/// these few connections does.
const GOOD: usize = 20;
/// Connections that fail in a row where a Service has reached its share. One alone may be a SYN
/// that a busy machine has lost.
const TRIES: usize = 3;
/// Closed flows end after five seconds, and the agent notices that within some more.
const FORGOTTEN: Duration = Duration::from_secs(30);

#[test]
fn connections_held_open_leave_room_for_other_services() -> Result<()> {
    allow_many_files()?;
    for family in Family::BOTH {
        let ground = Ground::new(&[TABLE])?;
        ground.service(GREEDY, Source::Translated, &[ground.pod("pod-2-1")])?;
        ground.service(NEIGHBOUR, Source::Translated, &[ground.pod("pod-2-2")])?;
        let [greedy, neighbour] = [GREEDY, NEIGHBOUR].map(|number| ground.outside(family, number));
        // For IPv6 there is room for half as many flows.
        let share = match family {
            Family::V4 => SHARE,
            Family::V6 => SHARE / 2,
        };
        let mut findings = Findings::default();

        let open = || Held::open(&ground.attacker, greedy).ok();
        let several = || (0..TRIES).find_map(|_| open());
        let mut held: Vec<_> = iter::from_fn(several).take(2 * share).collect();
        findings.note(
            held.len().abs_diff(share) <= ABOUT,
            format!("{} connections held, about {share} expected", held.len()),
        );
        let served = (0..GOOD).filter(|_| {
            let answer = Held::open(ground.client(), neighbour).and_then(|mut held| held.ask());
            answer.is_ok()
        });
        let served = served.count();
        findings.note(served == GOOD, format!("{served} of {GOOD} neighbours"));
        let alive = held.iter_mut().filter_map(|held| held.ask().ok()).count();
        findings.note(
            alive == held.len(),
            format!("{alive} of those held still get answers"),
        );
        let told = within(FORGOTTEN, || {
            // What was refused before the agent's first look is not reported.
            if open().is_some() {
                return Err("one more was let in".to_owned());
            }
            let status = ground.balanced.status(1);
            let status = status.map_err(|error| error.to_string())?;
            let names = |number| {
                let port = format!("/service-{number}:");
                let mut ports = status.at_limit.iter();
                ports.any(|found| found.service_port.contains(&port))
            };
            match (names(GREEDY), names(NEIGHBOUR)) {
                (true, false) => Ok(()),
                found => Err(format!("the Service and its neighbour: {found:?}")),
            }
        });
        findings.note(told.is_ok(), format!("named in status: {told:?}"));

        drop(held);
        let again = within(FORGOTTEN, || {
            let opened = Held::open(&ground.attacker, greedy).and_then(|mut held| held.ask());
            opened.map(drop).map_err(|error| error.to_string())
        });
        findings.note(again.is_ok(), format!("served again: {again:?}"));
        findings.assert_good();
    }
    Ok(())
}
