//! Test packets: what the programs themselves do with first packets to each address.

use std::collections::BTreeSet;

use anyhow::Context as _;
use lb_common::abi;
use lb_datapath::{
    XdpMode,
    devices::{RoleRules, Watcher},
    pins::{LinkPin, MapPins},
};
use lb_objects::Node;

use super::Difference;
use crate::{
    cli::block_on,
    config::Config,
    memory::ProgrammedTables,
    plan::ServicePlan,
    proof::{Prover, entrances},
};

/// Loads a copy of the programs of this node's devices.
///
/// # Errors
/// If the devices cannot be read, there is none to send packets in by, or the kernel refuses.
pub fn prover(config: &Config, node: &Node) -> anyhow::Result<Prover> {
    let root = &config.datapath.bpf_root;
    let pins = MapPins::below(root, abi::VERSION);
    let rules = RoleRules::new(config.datapath.device_names(), node.addresses.clone())?;
    let devices = async {
        Watcher::start()
            .await
            .map(|watcher| watcher.devices().clone())
    };
    let devices = block_on(devices)?.context("cannot read this node's devices")?;
    let links = super::pinned_maps(root).with_file_name("links");
    let has_xdp = |ifindex| {
        let modes = [XdpMode::Native, XdpMode::Generic].into_iter();
        let mut pins = modes.map(|mode| LinkPin::Xdp { mode, ifindex }.to_string());
        pins.any(|pin| links.join(pin).exists())
    };
    let entrances = entrances(&devices, |device| rules.role(device), has_xdp, node);
    anyhow::ensure!(
        !entrances.is_empty(),
        "no device with Ethernet headers is external, or a pod's"
    );
    Ok(Prover::load(&pins, entrances)?)
}

/// Sends packets to every address of these plans, which the tables have.
///
/// # Errors
/// If the kernel does not run a program.
pub fn compare(
    prover: &mut Prover,
    tables: &mut ProgrammedTables,
    plans: &[ServicePlan],
) -> anyhow::Result<BTreeSet<Difference>> {
    let devices = prover.add_to(tables);
    let mut differences = BTreeSet::new();
    for plan in plans.iter().flat_map(|service| &service.ports) {
        for frontend in &*plan.frontends {
            for found in prover.prove(tables, &devices, plan, frontend)? {
                differences.insert(Difference {
                    subject: found.to,
                    what: found.packet,
                    found: found.found,
                    wanted: found.wanted,
                });
            }
        }
    }
    Ok(differences)
}
