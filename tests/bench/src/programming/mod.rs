//! The cost of programming Services from nothing, and of changing one: with node-lb's agent, and
//! with `nft`, which loads what kube-proxy would have computed.

mod changes;
mod report;

use anyhow::Result;

use self::{changes::Changes, report::Programming};
use crate::{
    cluster::{Cluster, Proxy},
    options::{Options, Part},
    report::Findings,
};

/// Changes per sample.
const CHANGES: u32 = 20;
const QUICK_CHANGES: u32 = 4;

/// Programs each number of Services in each way, and changes some, round after round.
///
/// # Errors
///
/// Without root, or if a lab cannot be built or a change does not arrive.
pub fn run(options: &Options) -> Result<Findings> {
    let changes = if options.quick {
        QUICK_CHANGES
    } else {
        CHANGES
    };
    let rounds = options.rounds(Part::Programming);
    let mut programming = Programming::default();
    for round in 1..=rounds {
        for services in options.services(Part::Programming) {
            for proxy in [Proxy::Nftables, Proxy::NodeLb] {
                let (cluster, usage) = Cluster::build(proxy, services, options.xdp_mode)?;
                programming.add_load(proxy, services, usage);
                let mut changing = Changes::of(&cluster)?;
                for _ in 0..changes {
                    programming.add_change(proxy, services, changing.make()?);
                }
                drop(changing);
                cluster.down()?;
            }
        }
        eprintln!("programming: round {round} of {rounds} done");
    }
    Ok(programming.findings())
}
