//! What it takes to program Services from nothing, and to change one: node-lb's agent beside `nft`,
//! which loads what kube-proxy would have computed. And what may not cost the agent much: one
//! Service of very many addresses, and pods that start.

mod changes;
mod pods;
mod report;
mod wide;

use anyhow::Result;

pub use self::changes::Changes;
use self::report::Programming;
use crate::{
    cluster::{Cluster, Proxy},
    options::{Options, Part},
    report::Findings,
};

/// Changes per sample.
const CHANGES: u32 = 20;
const QUICK_CHANGES: u32 = 4;

/// Pods that start, once, where there are most Services.
const PODS: u32 = 1000;
const QUICK_PODS: u32 = 100;
/// Services beside which there is room for one of very many addresses.
const ROOM_FOR_WIDE: u32 = 20_000;

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
    let pods = if options.quick { QUICK_PODS } else { PODS };
    let rounds = options.rounds(Part::Programming);
    let mut programming = Programming::default();
    for round in 1..=rounds {
        for services in options.services(Part::Programming) {
            for proxy in [Proxy::Nftables, Proxy::NodeLb] {
                let (cluster, usage) = Cluster::build(proxy, services, options.xdp_mode, &[])?;
                programming.add_load(proxy, services, usage);
                let mut changing = Changes::of(&cluster)?;
                for _ in 0..changes {
                    programming.add_change(proxy, services, changing.make()?);
                }
                drop(changing);
                if proxy == Proxy::NodeLb {
                    if services <= ROOM_FOR_WIDE {
                        programming.add_wide(services, wide::measure(&cluster)?);
                    }
                    if round == 1 && Some(&services) == options.services(Part::Programming).last() {
                        programming.add_starts(pods::measure(&cluster, pods)?);
                    }
                }
                cluster.down()?;
            }
        }
        eprintln!("programming: round {round} of {rounds} done");
    }
    Ok(programming.findings())
}
