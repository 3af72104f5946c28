//! What checks cost an agent that has nothing else to do.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use node_lb::agent::status::Status;
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Proxy, agent},
    machine::cpu_time,
    options::Options,
    statistics::millis,
};

/// How long the agent is watched.
const WATCHED: Duration = Duration::from_secs(120);
const QUICKLY: Duration = Duration::from_secs(15);
/// By then it has done what there is to do after its start.
const AFTERMATH: Duration = Duration::from_secs(10);
/// How long a round of test packets may take.
const PATIENCE: Duration = Duration::from_secs(3600);

/// An agent's use of the processor with checks or without.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub services: u32,
    pub checks: bool,
    /// A part of one CPU.
    pub cpu: f64,
    /// Of maps, programs and plans.
    pub comparison: Option<Round>,
    pub test_packets: Option<Round>,
}

/// A round of checks.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Records or packets.
    pub number: u64,
    pub took: Duration,
    pub worked: Duration,
}

impl Cost {
    pub fn json(&self) -> Value {
        let round = |round: Option<Round>| {
            round.map(|round| {
                json!({
                    "number": round.number,
                    "seconds": round.took.as_secs_f64(),
                    "work_ms": millis(round.worked),
                })
            })
        };
        json!({
            "services": self.services,
            "checks": self.checks,
            "cpu": self.cpu,
            "comparison": round(self.comparison),
            "test_packets": round(self.test_packets),
        })
    }
}

/// Has an agent rest beside so many Services, and with checks, waits until they have been through all of them.
///
/// # Errors
///
/// If the agent does not start, finds something wrong, or does not come to the end of a round.
pub fn measure(services: u32, checks: bool, options: &Options) -> Result<Cost> {
    let arguments = match checks {
        // There are no pauses between rounds of test packets, so this is the most that they cost.
        true => ["--verification-interval=5s", "--test-packet-interval=1ms"],
        false => ["--verification-interval=0", "--test-packet-interval=0"],
    };
    let (cluster, _) = Cluster::build(Proxy::NodeLb, services, options.xdp_mode, &arguments)?;
    let balanced = cluster.balanced().context("no agent runs")?;
    let pid = agent::of(balanced)?.pid();
    thread::sleep(AFTERMATH);
    if checks {
        // The programs that test packets are sent to are loaded then.
        let packets = || agent::metric(balanced, "node_lb_test_packets_total");
        wait_for(|| Ok((packets()? > 0.0).then_some(())))?;
    }
    let (since, before) = (Instant::now(), cpu_time(pid)?);
    thread::sleep(if options.quick { QUICKLY } else { WATCHED });
    let cpu = (cpu_time(pid)? - before).as_secs_f64() / since.elapsed().as_secs_f64();

    let rounds = match checks {
        true => Some(wait_for(|| Ok(rounds(&balanced.status(1)?)))?),
        false => None,
    };
    if checks {
        let Status {
            verification,
            test_packets,
            ..
        } = balanced.status(1)?;
        let found = [
            verification.found.differences,
            test_packets.found.differences,
        ];
        ensure!(found == [0, 0], "the agent has found {found:?} differences");
    }
    cluster.down()?;
    Ok(Cost {
        services,
        checks,
        cpu,
        comparison: rounds.map(|[comparison, _]| comparison),
        test_packets: rounds.map(|[_, test_packets]| test_packets),
    })
}

/// The latest round of each kind, once there has been one.
fn rounds(status: &Status) -> Option<[Round; 2]> {
    let (compared, sent) = (&status.verification, &status.test_packets);
    compared.last_round.as_ref().and(sent.last_round.as_ref())?;
    let round = |number, took, worked| Round {
        number,
        took: Duration::from_millis(took),
        worked: Duration::from_millis(worked),
    };
    Some([
        round(compared.records, compared.took_ms, compared.worked_ms),
        round(sent.packets, sent.took_ms, sent.worked_ms),
    ])
}

fn wait_for<T>(mut what: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        if let Some(found) = what()? {
            return Ok(found);
        }
        thread::sleep(Duration::from_millis(500));
    }
    bail!("no round of checks has ended within {PATIENCE:?}")
}
