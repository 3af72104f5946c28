//! Churn on a small flow table while the agent is gone or stopped.

use std::time::Duration;

use anyhow::Result;
use lb_tests::{Family, Load, Request};
use nix::sys::signal::Signal;

use super::support::{Findings, Ground, ONE_NODE, Source, attack_time};

const SERVICE: u8 = 10;
/// Flows that there is room for, and timeouts of UDP short enough for a test.
const ARGUMENTS: [&str; 3] = [
    "--flow-table-size=1024",
    "--conntrack-udp-timeout=1s",
    "--conntrack-udp-timeout-stream=1s",
];
const ROOM: u64 = 1024;
const TIME: Duration = Duration::from_secs(20);

#[test]
fn flows_open_while_the_agent_is_killed() -> Result<()> {
    churn_without(|ground| ground.balanced.kill_agents())
}

#[test]
fn flows_open_while_the_agent_stands_still() -> Result<()> {
    churn_without(|ground| ground.balanced.agents[0].signal(Signal::SIGSTOP))
}

/// The rate of churn is so low that unexpired flows take about a third of the table, and so high
/// that the table is full within seconds if nothing is freed.
fn churn_without(stop_agent: impl FnOnce(&mut Ground) -> Result<()>) -> Result<()> {
    let mut ground = Ground::with(ONE_NODE, &ARGUMENTS)?;
    ground.service(SERVICE, Source::Kept, &[ground.pod("pod-1-1")])?;
    stop_agent(&mut ground)?;
    let target = ground.outside(Family::V4, SERVICE);
    let pause = Duration::from_millis(20);
    let connections = Load::new(Request::tcp(target).deadline(Duration::from_secs(1)));
    let connections = connections.workers(1).pause(pause).start(ground.client())?;
    let datagrams = Load::new(Request::udp(target).deadline(Duration::from_secs(1)));
    let datagrams = datagrams.workers(2).pause(pause);
    let datagrams = datagrams.run_for(attack_time(TIME), ground.client())?;
    let connections = connections.stop()?;

    let mut findings = Findings::default();
    findings.note(
        connections.failed == 0,
        format!("connections: {connections}"),
    );
    findings.note(datagrams.failed == 0, format!("datagrams: {datagrams}"));
    let total = connections.ok + connections.failed + datagrams.ok + datagrams.failed;
    let enough = total > ROOM + ROOM / 4;
    findings.note(
        enough,
        format!("{total} flows for {ROOM} places: the table would be full"),
    );
    findings.assert_good();
    Ok(())
}
