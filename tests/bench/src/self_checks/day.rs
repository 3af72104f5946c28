//! A day of checks in little time.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::Balanced;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Proxy, agent, services},
    options::Options,
    programming::Changes,
};

/// Services in the cluster. With more of them, fewer rounds fit into an hour.
const SERVICES: u32 = 32;
/// Rounds in a day: comparisons begin every five seconds, and test packets rest for a minute.
const COMPARISONS: u64 = 24 * 3600 / 5;
const TEST_PACKETS: u64 = 24 * 60;
/// A rough check has one part in so many of a day.
const QUICKLY: u64 = 100;
/// Between changes.
const PAUSE: Duration = Duration::from_millis(100);
/// One change in so many is of a Service, and one of a pod's device.
const SELDOM: u64 = 10;
/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(3 * 3600);

/// What a day of checks has found.
#[derive(Clone, Copy, Debug)]
pub struct Day {
    pub comparison: Checked,
    pub test_packets: Checked,
    /// Replaced meanwhile.
    pub endpoints: u64,
    /// Made and deleted.
    pub services: u64,
    /// Devices of pods that came and went.
    pub devices: u64,
    pub took: Duration,
}

/// Checks of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Checked {
    pub rounds: u64,
    /// How many rounds a day has.
    pub a_day_has: u64,
    /// Records or packets.
    pub compared: u64,
    /// What was found. Nothing was wrong, so each is a false alarm.
    pub differences: u64,
}

impl Checked {
    fn json(&self) -> Value {
        json!({
            "rounds": self.rounds,
            "a_day_has": self.a_day_has,
            "compared": self.compared,
            "differences": self.differences,
        })
    }
}

impl Day {
    pub fn json(&self) -> Value {
        json!({
            "comparison": self.comparison.json(),
            "test_packets": self.test_packets.json(),
            "endpoints": self.endpoints,
            "services": self.services,
            "devices": self.devices,
            "seconds": self.took.as_secs_f64(),
        })
    }
}

/// Changes something all the time until the agent has checked everything as often as in a day.
///
/// # Errors
///
/// If the agent does not start or does not follow a change, or the rounds take too long.
pub fn pass(options: &Options) -> Result<Day> {
    let part = if options.quick { QUICKLY } else { 1 };
    let arguments = ["--verification-interval=1ms", "--test-packet-interval=1ms"];
    let (cluster, _) = Cluster::build(Proxy::NodeLb, SERVICES, options.xdp_mode, &arguments)?;
    let balanced = cluster.balanced().context("no agent runs")?;
    let mut changes = Changes::of(&cluster)?;
    let (mut endpoints, mut services, mut devices) = (0, 0, 0);
    let since = Instant::now();
    for number in 1.. {
        let [comparison, test_packets] = checked(balanced, part)?;
        if comparison.rounds >= comparison.a_day_has
            && test_packets.rounds >= test_packets.a_day_has
        {
            drop(changes);
            cluster.down()?;
            return Ok(Day {
                comparison,
                test_packets,
                endpoints,
                services,
                devices,
                took: since.elapsed(),
            });
        }
        ensure!(
            since.elapsed() < PATIENCE,
            "after {PATIENCE:?} there were {} comparisons and {} rounds of test packets",
            comparison.rounds,
            test_packets.rounds
        );
        match number % SELDOM {
            0 => {
                come_and_go(&cluster)?;
                devices += 1;
            }
            1 => {
                make_and_delete(&cluster)?;
                services += 1;
            }
            _ => {
                changes.make()?;
                endpoints += 1;
            }
        }
        thread::sleep(PAUSE);
    }
    unreachable!("there are always more numbers")
}

/// What checks have found so far.
fn checked(balanced: &Balanced, part: u64) -> Result<[Checked; 2]> {
    let one = |rounds: &str, compared: &str, differences: &str, a_day_has: u64| -> Result<_> {
        let count = |name: &str| Ok::<_, anyhow::Error>(agent::metric(balanced, name)? as u64);
        Ok(Checked {
            rounds: count(rounds)?,
            a_day_has: a_day_has / part,
            compared: count(compared)?,
            differences: count(differences)?,
        })
    };
    Ok([
        one(
            "node_lb_verification_rounds_total",
            "node_lb_verification_records_total",
            "node_lb_verification_differences_total",
            COMPARISONS,
        )?,
        one(
            "node_lb_test_packet_rounds_total",
            "node_lb_test_packets_total",
            "node_lb_test_packet_differences_total",
            TEST_PACKETS,
        )?,
    ])
}

/// A pod with a device of its own comes, and goes again.
fn come_and_go(cluster: &Cluster) -> Result<()> {
    let (node, elsewhere) = (cluster.node(), cluster.server().netns().name().to_owned());
    node.run(&format!(
        "ip link add veth-day type veth peer name far-day netns {elsewhere}"
    ))?;
    node.run("ip link set veth-day up")?;
    node.run("ip route add 10.245.0.1/32 dev veth-day")?;
    cluster.server().run("ip link set far-day up")?;
    thread::sleep(PAUSE);
    node.run("ip link del veth-day")?;
    Ok(())
}

/// One more Service is made, and deleted.
fn make_and_delete(cluster: &Cluster) -> Result<()> {
    let more = SERVICES;
    services::apply(cluster.lab(), more, &services::endpoints(more))?;
    thread::sleep(PAUSE);
    services::remove(cluster.lab(), more)
}
