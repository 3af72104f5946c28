//! What a quiet client sees while noisy ones load the same Service: with node-lb's admission, and
//! with what others offer for that, one after the other.

pub mod goals;

mod ground;
mod haproxy;
mod measure;
mod nftables;
mod node_lb;
mod peers;
mod report;
mod set_up;

use std::time::Duration;

use anyhow::{Context, Result};
use lb_tests::traffic::allow_many_files;

use self::{
    ground::Ground,
    measure::{Demand, Extent, measure},
    peers::Peers,
    report::AdmissionReport,
    set_up::SetUp,
};
use crate::{
    lab::idle,
    options::{Options, Part},
    report::Findings,
};

/// Connections that the endpoint serves at a time. Whoever limits the sum knows it.
const CAPACITY: u32 = 100;
/// Connections that each client may have, where clients are limited one by one.
const PER_CLIENT: u32 = 80;
/// How long a connection may wait for its turn, where it waits at the balancer.
const WAIT: Duration = Duration::from_secs(5);
/// How long to wait for an idle machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// Builds a lab for each set-up, and measures it with each demand.
///
/// # Errors
///
/// Without root, if a program to compare with is missing, or if a set-up does not work.
pub fn run(options: &Options) -> Result<Findings> {
    let part = Part::Admission;
    let extent = Extent::of(options);
    let mut report = AdmissionReport::new(Peers::find()?, extent);
    allow_many_files()?;
    for _ in 0..options.rounds(part) {
        for set_up in SetUp::ALL {
            eprintln!("admission: {}", set_up.name());
            let ground = Ground::build(set_up, options.xdp_mode)
                .with_context(|| format!("cannot set up {}", set_up.name()))?;
            for demand in Demand::ALL {
                report.begun.count(idle::wait(PATIENCE)?);
                let sample = measure(&ground, demand, extent);
                let sample = sample.with_context(|| format!("{}, {demand}", set_up.name()))?;
                report.add(demand, set_up, sample);
            }
            ground.down()?;
        }
    }
    Ok(report.findings())
}
