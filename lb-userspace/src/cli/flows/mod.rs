//! `node-lb flows`: the connections in the kernel's flow tables.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::Args;
use lb_common::{
    abi,
    addr::{Address, Ip4, Ip6},
    flow::Flow,
};
use lb_datapath::{
    Jiffies, TickRate,
    bpf::{ArrayError, MappedArray},
};
use lb_objects::{ObjectName, Protocol};

use super::{output::Output, snapshot::Snapshot};
use crate::{
    config::{Config, Flags},
    flows::FlowReport,
};

mod table;
#[cfg(test)]
pub mod tests;

/// Show the connections in the kernel's flow tables
///
/// Reads the data plane's own tables; the agent need not be running. With --source, the output
/// names the Service of each frontend.
#[derive(Args, Debug)]
pub struct Command {
    #[command(flatten)]
    flags: Flags,

    /// Show only flows of this Service; needs --source or --kubeconfig
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name)]
    service: Option<ObjectName>,

    /// Show at most this many flows
    #[arg(long, value_name = "FLOWS")]
    limit: Option<usize>,

    /// Format of the output; JSON is an array with one object per flow
    #[arg(short, long, value_name = "FORM", value_enum, default_value = "table")]
    output: Output,
}

/// The service port (`namespace/name:port`) of an address and protocol.
type Names = HashMap<(SocketAddr, Protocol), (ObjectName, String)>;

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        let has_names = self.flags.source.is_some() || self.flags.kubeconfig.is_some();
        if self.service.is_some() && !has_names {
            bail!(
                "--service needs to know which addresses a Service has: pass --source dir:PATH or \
                 --kubeconfig PATH"
            );
        }
        let root = self.flags.bpf_root.clone();
        let names = match has_names {
            true => names(&Config::try_from(self.flags)?)?,
            false => Names::new(),
        };

        let settings = pinned::<abi::Config>(&root, "CONFIG")?.read(0);
        let rate = TickRate::of(&settings).context("the data plane has no settings yet")?;
        let jiffies = Jiffies::open().and_then(|jiffies| jiffies.now());
        let now = rate.tick(jiffies.context("cannot read the kernel's clock")?);
        let mut flows = read::<Ip4>(&root, "FLOWS4", rate, now, &names)?;
        flows.extend(read::<Ip6>(&root, "FLOWS6", rate, now, &names)?);
        if let Some(service) = &self.service {
            flows.retain(|flow| {
                names
                    .get(&flow.key())
                    .is_some_and(|(name, _)| name == service)
            });
        }
        flows.sort_by(|a, b| a.order().cmp(&b.order()));

        let total = flows.len();
        flows.truncate(self.limit.unwrap_or(total));
        let text = self
            .output
            .text(&flows, |flows| table::render(flows, total));
        super::print(&text?)
    }
}

/// The flows in a table, at tick `now`.
fn read<A: Address>(
    root: &Path,
    map: &str,
    rate: TickRate,
    now: u32,
    names: &Names,
) -> anyhow::Result<Vec<FlowReport>>
where
    Flow<A>: aya::Pod,
{
    let records = pinned::<Flow<A>>(root, map)?;
    let mut flows: Vec<_> = FlowReport::all(&records, rate, now).collect();
    for flow in &mut flows {
        flow.service = names.get(&flow.key()).map(|(_, port)| port.clone());
    }
    Ok(flows)
}

/// Where maps of the data plane are pinned, and beside it `links`.
pub fn pinned_maps(root: &Path) -> PathBuf {
    root.join(format!("v{}", abi::VERSION)).join("maps")
}

/// A pinned array of the data plane.
///
/// # Errors
/// If it is not there, or cannot be read.
pub fn pinned<T: aya::Pod>(root: &Path, map: &str) -> anyhow::Result<MappedArray<T>> {
    let path = pinned_maps(root).join(map);
    match MappedArray::from_pin(&path) {
        Ok(array) => Ok(array),
        Err(ArrayError::Map(error)) if !path.exists() => Err(error).with_context(|| {
            format!(
                "there is no {}: has an agent of this version been started on this node, with this \
                 --bpf-root, and are you root?",
                path.display()
            )
        }),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Every frontend in the source.
fn names(config: &Config) -> anyhow::Result<Names> {
    let mut names = Names::new();
    for service in Snapshot::load(config)?.plans() {
        for port in service.ports {
            let protocol = port.name.protocol;
            for frontend in &*port.frontends {
                let name = (service.service.clone(), port.name.to_string());
                names.insert((frontend.address, protocol), name);
            }
        }
    }
    Ok(names)
}

fn object_name(text: &str) -> Result<ObjectName, io::Error> {
    ObjectName::parse(text).ok_or_else(|| {
        let message = "a Service is named NAMESPACE/NAME";
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })
}
