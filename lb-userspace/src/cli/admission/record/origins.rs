//! Where connections enter the node, by their sources, as the programs tell it.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use lb_admission::schema::Ingress;
use lb_common::{
    abi::{self, config_flag, device_flag},
    addr::{Address, Ip4, Ip6},
};
use lb_datapath::{bpf::BatchMap, devices::Routes};

use crate::{agent::own_addresses, cli::flows::pinned_maps};

/// Tells local pods and the node itself from everybody else.
pub struct Origins {
    settings: abi::Config,
    own: BTreeSet<IpAddr>,
    /// Where pods are told by the device that they are behind.
    by_device: Option<ByDevice>,
}

/// A packet's device is not recorded, so the one counts that leads to its source.
struct ByDevice {
    routes: Routes,
    /// The map of devices with special properties.
    special: PathBuf,
    /// By interface index, until [`Origins::renew`].
    devices: HashMap<u32, bool>,
    known: HashMap<IpAddr, bool>,
}

impl Origins {
    /// With the node's settings and maps. To be called where asynchronous work runs.
    ///
    /// # Errors
    /// If routes cannot be asked for where they are needed.
    pub fn new(root: &Path, settings: abi::Config) -> anyhow::Result<Self> {
        let by_device = match settings.flags & config_flag::DETECT_BY_DEVICE {
            0 => None,
            _ => Some(ByDevice {
                routes: Routes::open().context("cannot ask for routes")?,
                special: pinned_maps(root).join("DEVICES"),
                devices: HashMap::new(),
                known: HashMap::new(),
            }),
        };
        Ok(Self {
            settings,
            own: own_addresses(),
            by_device,
        })
    }

    /// Looks at devices again when it is next asked: ports come and go.
    pub fn renew(&mut self) {
        if let Some(by_device) = &mut self.by_device {
            by_device.devices.clear();
        }
    }

    /// Where connections from a source enter the node. A node address that lies in the pods' range
    /// counts as a pod.
    ///
    /// # Errors
    /// If that depends on the device behind which it is, and devices cannot be read.
    pub async fn of(&mut self, source: IpAddr) -> anyhow::Result<Ingress> {
        let is_pod = match &mut self.by_device {
            Some(by_device) => by_device.is_pod(source).await?,
            None => match source {
                IpAddr::V4(ip) => is_within(&self.settings, Ip4::from(ip)),
                IpAddr::V6(ip) => is_within(&self.settings, Ip6::from(ip)),
            },
        };
        Ok(match is_pod {
            true => Ingress::Pod,
            false if self.own.contains(&source) => Ingress::Node,
            false => Ingress::External,
        })
    }
}

impl ByDevice {
    async fn is_pod(&mut self, source: IpAddr) -> anyhow::Result<bool> {
        if let Some(known) = self.known.get(&source) {
            return Ok(*known);
        }
        let towards = self.routes.device_towards(source).await;
        let is_pod = match towards {
            Some(device) => match self.devices.get(&device) {
                Some(known) => *known,
                // Not for each source: a flood has very many.
                None => {
                    let leads = self.leads_to_pods(device).await?;
                    self.devices.insert(device, leads);
                    leads
                }
            },
            None => false,
        };
        self.known.insert(source, is_pod);
        Ok(is_pod)
    }

    /// Whether pods are behind a device, or behind a port of it.
    async fn leads_to_pods(&self, device: u32) -> anyhow::Result<bool> {
        let special = BatchMap::<u32, abi::Device>::from_pin(&self.special)
            .and_then(|devices| devices.entries())
            .context("cannot read the map DEVICES")?;
        let pods = special
            .into_iter()
            .filter(|(_, device)| device.flags & device_flag::PODS != 0);
        let pods: BTreeSet<_> = pods.map(|(index, _)| index).collect();
        let ports = self
            .routes
            .ports(device)
            .await
            .context("cannot list devices")?;
        Ok(pods.contains(&device) || ports.iter().any(|port| pods.contains(port)))
    }
}

fn is_within<A: Address>(settings: &abi::Config, source: A) -> bool {
    let (network, prefix) = settings.pods::<A>();
    let is_known = settings.flags & config_flag::DETECT_BY_CIDR != 0 && prefix <= 128;
    is_known && source.within(network, prefix)
}
