//! `node-lb explain`: what becomes of a connection's first packet, and why.

use std::net::IpAddr;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use lb_common::abi::config_flag;

use self::{
    decision::{Decision, FirstPacket},
    report::Report,
    target::Target,
};
use super::{output::json, snapshot::Snapshot};
use crate::{
    config::{Config, DatapathConfig, Flags, Handover, NetfilterMode},
    memory::{MemoryTables, Settings},
    plan::LocalDetector,
};

mod decision;
mod report;
mod target;
mod text;

/// Show what becomes of a connection's first packet, and why
///
/// Reads the source once and asks the code that the kernel runs, without touching the kernel.
/// Whether the packet comes from a local pod, this node or outside follows from its source
/// address, the Node object and the detector's settings.
#[derive(Args, Debug)]
pub struct Command {
    /// Source address
    #[arg(long, value_name = "IP")]
    from: IpAddr,

    /// Destination; the protocol is tcp (the default), udp or sctp
    #[arg(long, value_name = "IP:PORT[/PROTOCOL]")]
    to: Target,

    /// Device that the packet arrives on, for BridgeInterface and InterfaceNamePrefix
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,

    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value = "text")]
    output: Output,

    #[command(flatten)]
    flags: Flags,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// To read
    Text,
    /// An object; its reason is named as in metrics
    Json,
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        let (from, to) = (self.from, self.to.address);
        ensure!(
            from.is_ipv4() == to.is_ipv4(),
            "--from {from} and --to {to} are not of one IP family"
        );
        let config = Config::try_from(self.flags)?;
        let snapshot = Snapshot::load(&config)?;
        let mut tables = tables(&snapshot, &config);
        let packet = FirstPacket {
            source: from,
            destination: to,
            protocol: self.to.protocol,
            ifindex: self.interface.map_or(0, |name| tables.add_device(&name, 0)),
        };

        let decision = Decision::new(&tables, packet);
        let text = match self.output {
            Output::Text => text::render(&decision),
            Output::Json => json(&Report::from(&decision))?,
        };
        super::print(&text)
    }
}

/// What the agent would write to the kernel's maps.
fn tables(snapshot: &Snapshot, config: &Config) -> MemoryTables {
    let DatapathConfig {
        netfilter,
        snat_ports,
        ..
    } = config.datapath;
    let mut tables = MemoryTables::new(&Settings {
        node: snapshot.local_node(),
        local_addresses: &snapshot.node().addresses,
        detector: &LocalDetector::new(&config.detect_local, snapshot.node()),
        masquerade_all: config.masquerade_all,
        bypass: netfilter == NetfilterMode::Bypass,
        ports: snat_ports,
        flow_records: 0,
        maglev_rows: 0,
    });
    if config.datapath.handover == Handover::Out {
        tables.config.flags |= config_flag::HANDOVER_OUT;
    }
    let plans = snapshot.plans();
    tables.program(plans.iter().flat_map(|service| &service.ports));
    tables
}
