//! `node-lb explain`: what happens to a connection's first packet, and why.

use std::net::IpAddr;

use anyhow::ensure;
use clap::{Args, ValueEnum};

use self::{
    decision::{Decision, FirstPacket},
    limits::InUse,
    report::Report,
    target::Target,
};
use super::{output::json, snapshot::Snapshot};
use crate::{
    admission::{files, objects::Objects, pods::identities},
    config::{AdmissionConfig, AdmissionMode, Config, Flags},
    memory::ProgrammedTables,
};

mod decision;
mod limits;
mod report;
mod target;
mod text;

/// Show what happens to a connection's first packet, and why
///
/// Reads the source once and runs the kernel's own code on tables in memory. It changes nothing in
/// the kernel. It asks the agent on this node how many connections there are within limits now. The
/// source address, the Node object and --detect-local-mode decide whether the packet comes from a
/// local pod, from this node or from outside.
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

    /// Format of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value = "text")]
    output: Output,

    #[command(flatten)]
    flags: Flags,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// Text for people
    Text,
    /// An object; the reason has its name from the metrics
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
        let mut snapshot = Snapshot::load(&config)?;
        // It does not matter here which of a set's endpoints is chosen.
        let mut tables = snapshot.tables(&config, 0);
        admit(&mut tables, &mut snapshot, &config)?;
        let packet = FirstPacket {
            source: from,
            destination: to,
            protocol: self.to.protocol,
            ifindex: self.interface.map_or(0, |name| tables.add_device(&name, 0)),
        };

        let in_use = InUse::ask(&config.socket);
        in_use.write(
            &tables,
            config.max_connections,
            &tables.limited(),
            &tables.numbered(),
        );
        let decision = Decision::new(&tables, packet, &in_use);
        let text = match self.output {
            Output::Text => text::render(&decision),
            Output::Json => json(&Report::from(&decision))?,
        };
        super::print(&text)
    }
}

/// Adds the flow schemas and priority levels, if connections are classified.
fn admit(
    tables: &mut ProgrammedTables,
    snapshot: &mut Snapshot,
    config: &Config,
) -> anyhow::Result<()> {
    let AdmissionConfig { mode, objects } = &config.admission;
    if *mode == AdmissionMode::Off {
        return Ok(());
    }
    let mut read = Objects::default();
    match objects {
        Some(path) => read.read(files::texts(path)?),
        None => read.read_from_api(&snapshot.admission()),
    }
    for error in &read.errors {
        eprintln!("warning: {error}");
    }
    let in_force = read.configuration.in_force();
    let pods = match in_force.asks_for_identity() {
        true => snapshot.pods(config)?,
        false => Vec::new(),
    };
    let identities = identities(pods.iter().map(AsRef::as_ref));
    tables.admit(&in_force, *mode, config.max_connections, identities)?;
    Ok(())
}
