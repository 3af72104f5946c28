//! What the maps say about Services, read without the map writer: which endpoints each address
//! leads to. And the same computed from plans, for comparison.

use std::{
    collections::BTreeMap,
    fmt::{Debug, Display},
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use aya::Pod;
use lb_common::{
    abi::{self, CLASSES, FrontendKey},
    addr::{Address, Ip4, Ip6},
    flow::Flow,
    parse,
};
use lb_datapath::{
    TickRate,
    bpf::{BatchMap, MappedArray},
    maps::{Entries, SourceKey},
};
use lb_objects::Protocol;
use node_lb::{
    flows::FlowReport,
    plan::{EndpointClass, Plan},
};

/// An address, port and IP protocol number of a Service.
pub type Frontend = (SocketAddr, u8);

/// The endpoints of each class, in the order of [`EndpointClass::ALL`], sorted.
pub type Endpoints = [Vec<SocketAddr>; CLASSES];

/// Where every frontend leads.
pub type Frontends = BTreeMap<Frontend, Endpoints>;

/// The maps below a directory of pins.
pub struct MapContents {
    directory: PathBuf,
    services: MappedArray<abi::Service>,
    plans: MappedArray<abi::Plan>,
    endpoints: MappedArray<abi::Endpoint>,
}

impl MapContents {
    /// Opens the maps that are pinned in `directory`.
    ///
    /// # Errors
    /// If one is missing or has another shape.
    pub fn open(directory: &Path) -> Result<Self> {
        Ok(Self {
            directory: directory.to_owned(),
            services: MappedArray::from_pin(&directory.join("SERVICES"))?,
            plans: MappedArray::from_pin(&directory.join("PLANS"))?,
            endpoints: MappedArray::from_pin(&directory.join("ENDPOINTS"))?,
        })
    }

    /// Compares everything that is there with what these plans want. Each address is claimed by one
    /// of them.
    ///
    /// # Errors
    /// If anything differs, with the difference.
    pub fn check<'a>(&self, plans: impl IntoIterator<Item = &'a Plan> + Clone) -> Result<()> {
        let (found, wanted) = (self.frontends()?, planned(plans.clone()));
        has_all(&found, &wanted)?;
        let surplus = found.keys().find(|frontend| !wanted.contains_key(frontend));
        ensure!(surplus.is_none(), "no plan has the frontend {surplus:?}");
        let (found, wanted) = (self.published().count(), plans.into_iter().count());
        ensure!(
            found == wanted,
            "{found} services are published, {wanted} are planned"
        );
        Ok(())
    }

    /// Compares what these plans want with what is there. There may be more.
    ///
    /// # Errors
    /// If something is missing or differs, with the difference.
    pub fn check_for<'a>(&self, plans: impl IntoIterator<Item = &'a Plan>) -> Result<()> {
        has_all(&self.frontends()?, &planned(plans))
    }

    /// Follows every frontend to its endpoints.
    ///
    /// # Errors
    /// If one leads nowhere, or to something of another service.
    pub fn frontends(&self) -> Result<Frontends> {
        let services = self.services()?.into_iter();
        services
            .map(|(frontend, service)| {
                let endpoints = self.endpoints_of(service);
                Ok((
                    frontend,
                    endpoints.with_context(|| format!("{frontend:?}"))?,
                ))
            })
            .collect()
    }

    /// The number of the service that each frontend leads to.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn services(&self) -> Result<BTreeMap<Frontend, u32>> {
        let mut found = self.family::<Ip4>("FRONTENDS4")?;
        found.extend(self.family::<Ip6>("FRONTENDS6")?);
        Ok(found)
    }

    /// Numbers of the services that are published.
    pub fn published(&self) -> impl Iterator<Item = u32> + '_ {
        let services = self.services.iter(1..self.services.len());
        services.filter_map(|(id, service)| (service.plan != 0).then_some(id))
    }

    /// The published endpoints of a service.
    ///
    /// # Errors
    /// If its plan belongs to another service.
    pub fn endpoints_of(&self, service: u32) -> Result<Endpoints> {
        let index = self.services.read(service).plan;
        ensure!(index != 0, "service {service} is not published");
        let plan = self.plans.read(index);
        ensure!(
            plan.service == service,
            "plan {index} of service {service} is of service {}",
            plan.service
        );
        let mut next = plan.first;
        Ok(plan.counts.map(|count| {
            let slots = next..next + count;
            next += count;
            let endpoints = self.endpoints.iter(slots);
            sorted(endpoints.map(|(_, endpoint)| {
                SocketAddr::new(IpAddr::from(endpoint.address).to_canonical(), endpoint.port)
            }))
        }))
    }

    /// The flows of both families.
    ///
    /// # Errors
    /// If a flow table cannot be read.
    pub fn flows(&self) -> Result<Vec<FlowReport>> {
        let mut flows = self.flows_in::<Ip4>("FLOWS4")?;
        flows.extend(self.flows_in::<Ip6>("FLOWS6")?);
        Ok(flows)
    }

    fn flows_in<A: Address>(&self, name: &str) -> Result<Vec<FlowReport>>
    where
        Flow<A>: Pod,
    {
        let records = MappedArray::<Flow<A>>::from_pin(&self.directory.join(name))?;
        // How long they have been idle does not matter.
        Ok(FlowReport::all(&records, TickRate::of_kernel(), 0).collect())
    }

    fn family<A: Address>(&self, name: &str) -> Result<BTreeMap<Frontend, u32>>
    where
        FrontendKey<A>: Pod,
    {
        let map = BatchMap::<FrontendKey<A>, abi::Frontend>::from_pin(&self.directory.join(name))?;
        let entries = map.entries()?.into_iter();
        Ok(entries
            .map(|(key, frontend)| {
                let address = IpAddr::from(key.address.to_mapped()).to_canonical();
                let address = SocketAddr::new(address, key.port);
                ((address, key.protocol), frontend.service)
            })
            .collect())
    }
}

fn has_all(found: &Frontends, wanted: &Frontends) -> Result<()> {
    for (frontend, endpoints) in wanted {
        let found = found.get(frontend);
        ensure!(
            found == Some(endpoints),
            "{frontend:?} leads to {found:?} and not to {endpoints:?}"
        );
    }
    Ok(())
}

/// Where every frontend leads if these plans are in force.
fn planned<'a>(plans: impl IntoIterator<Item = &'a Plan>) -> Frontends {
    let mut frontends = Frontends::new();
    for plan in plans {
        let classes = EndpointClass::ALL.map(|class| plan.endpoints.class(class).iter().copied());
        let endpoints = classes.map(sorted);
        let protocol = match plan.name.protocol {
            Protocol::Tcp => parse::TCP,
            Protocol::Udp => parse::UDP,
            Protocol::Sctp => parse::SCTP,
        };
        for frontend in &*plan.frontends {
            frontends.insert((frontend.address, protocol), endpoints.clone());
        }
    }
    frontends
}

/// The entries of a map as text, in order.
///
/// # Errors
/// If it cannot be read.
pub fn entries<K: Debug, V: Debug>(map: &(impl Entries<K, V> + ?Sized)) -> Result<Vec<String>> {
    let all = map.all()?.into_iter();
    let mut all: Vec<_> = all.map(|entry| format!("{entry:?}")).collect();
    all.sort_unstable();
    Ok(all)
}

/// The same of a trie, whose keys have no text of their own.
///
/// # Errors
/// If it cannot be read.
pub fn networks<V: Display>(trie: &(impl Entries<SourceKey, V> + ?Sized)) -> Result<Vec<String>> {
    let all = trie.all()?.into_iter();
    let mut all: Vec<_> = all
        .map(|(key, value)| format!("{}/{:?}: {value}", key.prefix_len(), key.data()))
        .collect();
    all.sort_unstable();
    Ok(all)
}

fn sorted(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses: Vec<_> = addresses.collect();
    addresses.sort_unstable();
    addresses
}
