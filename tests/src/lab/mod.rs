//! A cluster's network in a box: network namespaces for a client, a router, nodes and pods.
//!
//! ```text
//!  client ──── router ──┬── node-1 ──┬── pod-1-1
//!  172.29.77.10  │      │   172.30.77.11 └── pod-1-2      pods 10.244.N.0/24
//!                │      └── node-2 ──┬── pod-2-1
//!                │          172.30.77.12 └── pod-2-2
//!                └ Service addresses (172.30.78.0/24, 10.96.0.0/16) go to one node
//! ```
//!
//! IPv6 is configured everywhere beside IPv4 ([`address`]). Nothing is created in the machine's own
//! network namespace, labs do not see each other, and a lab is removed however its process ends.

pub mod address;
pub mod registry;

pub(crate) mod bpffs;
mod cgroup;
pub mod daemon;
pub(crate) mod host;
mod limit;
mod links;
mod netns;
mod rules;
mod setup;
mod tool;
mod topology;
mod tunnel;

use std::env;
use std::mem;
use std::thread;

use anyhow::{Context, Result, bail};

pub use self::address::{Addresses, Family, Networks};
pub use self::cgroup::Cgroup;
use self::daemon::Daemon;
pub use self::host::{Host, Node, Pod, TrafficRunsIn};
pub use self::limit::{Limit, Limited};
pub use self::netns::Netns;
pub use self::registry::LabId;
use self::registry::{HostRecord, Record, Registry};
use self::setup::Site;
pub use self::setup::{LAN, POD_BRIDGE};
use self::tool::Guard;
pub use self::tool::{guard, lab_tool, own};
pub use self::topology::{PodNetwork, Topology};
pub use self::tunnel::{Tunnel, address as tunnel_address};
use crate::manifests::{self, EndpointSlices, Manifests, Service};

/// A running lab. It is removed from the machine when this value is dropped, and when the process
/// ends without that: by a signal, a panic that aborts, SIGKILL.
#[derive(Debug)]
pub struct Lab {
    site: Site,
    client: Host,
    router: Host,
    nodes: Vec<Node>,
    pods: Vec<Pod>,
    manifests: Manifests,
    guard: Option<Guard>,
    /// Programs that the lab's network needs.
    _daemons: Vec<Daemon>,
}

impl Lab {
    /// Builds a lab; takes less than a second for two nodes and four pods. Needs root.
    pub fn up(topology: Topology) -> Result<Self> {
        Self::build(None, topology)
    }

    /// Builds a lab under a name of the caller's choice.
    pub fn up_as(id: LabId, topology: Topology) -> Result<Self> {
        Self::build(Some(id), topology)
    }

    /// The lab's name.
    pub fn id(&self) -> &LabId {
        &self.site.id
    }

    /// Its shape.
    pub fn topology(&self) -> Topology {
        self.site.topology
    }

    /// The host outside the cluster.
    pub fn client(&self) -> &Host {
        &self.client
    }

    /// The router between the client and the nodes.
    pub fn router(&self) -> &Host {
        &self.router
    }

    /// Node number `index`, from 1.
    ///
    /// # Panics
    ///
    /// If the topology has no such node.
    pub fn node(&self, index: usize) -> &Node {
        let count = self.nodes.len();
        let node = index.checked_sub(1).and_then(|i| self.nodes.get(i));
        node.unwrap_or_else(|| panic!("the lab has nodes 1 to {count}, not {index}"))
    }

    /// All nodes, in order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A pod the lab started with, for example `pod-1-2`: node 1's second.
    ///
    /// # Panics
    ///
    /// If the topology has no such pod.
    pub fn pod(&self, name: &str) -> &Pod {
        let pod = self.pods.iter().find(|pod| pod.name() == name);
        pod.unwrap_or_else(|| panic!("the lab did not start with a pod {name}"))
    }

    /// The pods the lab started with, in order.
    pub fn pods(&self) -> &[Pod] {
        &self.pods
    }

    /// Starts another pod. Names are unique in the lab and at most 10 bytes long.
    pub fn add_pod(&self, node: &Node, name: &str) -> Result<Pod> {
        let pod = self.site.pod(node, name);
        let pod = pod.with_context(|| format!("cannot start the pod {name}"))?;
        links::settle(node)?;
        Ok(pod)
    }

    /// Ends a pod as a CNI does: its processes, its device, its namespace.
    pub fn remove_pod(&self, pod: &Pod) -> Result<()> {
        Cgroup::remove(pod.cgroup())?;
        let node = self.nodes.iter().find(|node| node.name() == pod.node);
        node.context("the pod is of another lab")?
            .run(&format!("ip link del {}", pod.host_end))?;
        Netns::remove(pod.netns().name())
    }

    /// Adds a host to the node network that is not a node: its number there is `number`, 2 to 9.
    ///
    /// # Errors
    /// If there is such a host already.
    pub fn add_host(&self, name: &str, number: u8) -> Result<Host> {
        let host = self.site.server(&self.router, name, number)?;
        links::settle(&self.router)?;
        Ok(host)
    }

    /// Removes a node's wire to the node network, with its device.
    pub fn unplug(&self, node: &Node) -> Result<()> {
        node.run(&format!("ip link del {}", Node::UPLINK)).map(drop)
    }

    /// Gives a node another wire to the node network, after [`Lab::unplug`].
    pub fn plug_in(&self, node: &Node) -> Result<()> {
        self.site.node_wire(&self.router, node)?;
        self.configure_uplink(node)
    }

    /// Gives a node's uplink its addresses and routes, which it loses when it is set down: the
    /// node's network manager does that.
    pub fn configure_uplink(&self, node: &Node) -> Result<()> {
        self.site.configure_uplink(node, node.index)?;
        links::settle(&self.router)
    }

    /// Has the router send Service addresses to `node`; at the start it is node 1.
    pub fn route_services_via(&self, node: &Node) -> Result<()> {
        setup::route_services(&self.router, node)
    }

    /// The manifests of all nodes: what is written here, every node's agent reads.
    pub fn manifests(&self) -> &Manifests {
        &self.manifests
    }

    /// Begins a Service `default/NAME`, to be completed and applied to all nodes.
    pub fn service(&self, name: &str) -> Service<'_> {
        self.manifests.service(name)
    }

    /// Begins the EndpointSlices of `default/SERVICE`, one per family.
    pub fn endpoints(&self, service: &str) -> EndpointSlices<'_> {
        self.manifests.endpoints(service)
    }

    /// Leaves the lab on the machine until `lab down` removes it, and returns its name.
    pub fn keep(mut self) -> Result<LabId> {
        self.record(None)?;
        self.guard.take().map_or(Ok(()), Guard::dismiss)?;
        Ok(self.site.id.clone())
    }

    /// Removes the lab and reports what could not be removed, which dropping can only print.
    pub fn down(mut self) -> Result<()> {
        self.guard.take().map_or(Ok(()), Guard::tear_down)
    }

    fn build(id: Option<LabId>, topology: Topology) -> Result<Self> {
        topology.check()?;
        let registry = Registry::lock()?;
        for orphan in registry.remove_orphans()? {
            eprintln!("removed lab {orphan}, left behind by a process that was killed");
        }
        bpffs::ensure_mounted()?;
        let id = registry.claim(id)?;
        // From here on the guard cleans up, even if the next lines fail.
        let guard = Guard::start(&id).inspect_err(|_| drop(registry.remove(&id)))?;
        drop(registry);
        let unfinished = UnfinishedLab(Some(guard));

        let site = Site::prepare(id, topology)?;
        let router = site.router()?;
        let client = site.client(&router)?;
        let nodes = (1..=topology.nodes)
            .map(|index| site.node(&router, index))
            .collect::<Result<Vec<_>>>()?;
        let mut pods = Vec::new();
        for node in &nodes {
            for number in 1..=topology.pods_per_node {
                pods.push(site.pod(node, &format!("pod-{}-{number}", node.index))?);
            }
        }
        setup::route_services(&router, &nodes[0])?;
        let daemons = match topology.tunnel {
            Some(tunnel) => tunnel::connect(&site.id, &nodes, tunnel)?,
            None => Vec::new(),
        };
        links::settle(&router)?;
        nodes.iter().try_for_each(|node| links::settle(node))?;
        let manifests = Manifests::new(nodes.iter().map(Node::manifests));
        for node in &nodes {
            manifests.apply(&manifests::node_object(node))?;
        }
        let lab = Self {
            site,
            client,
            router,
            nodes,
            pods,
            manifests,
            guard: unfinished.finished(),
            _daemons: daemons,
        };
        lab.record(Some(registry::Owner::this_process()?))?;
        Ok(lab)
    }

    fn record(&self, owner: Option<registry::Owner>) -> Result<()> {
        let nodes = self.nodes.iter().map(AsRef::as_ref);
        let pods = self.pods.iter().map(AsRef::as_ref);
        let hosts = [&self.client, &self.router]
            .into_iter()
            .chain(nodes)
            .chain(pods);
        let hosts = hosts
            .map(|host: &Host| HostRecord {
                name: host.name().to_owned(),
                netns: host.netns().name().to_owned(),
                cgroup: host.cgroup().to_owned(),
                addresses: host.addresses(),
            })
            .collect();
        registry::save(&self.site.id, &Record { owner, hosts })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else {
            return;
        };
        if thread::panicking() && env::var_os("LAB_KEEP").is_some() {
            let id = &self.site.id;
            eprintln!("LAB_KEEP is set: lab {id} stays; remove it with `lab down {id}`");
            if let Err(e) = self.record(None).and_then(|()| guard.dismiss()) {
                eprintln!("{e:#}");
            }
            return;
        }
        if let Err(e) = guard.tear_down() {
            eprintln!("{e:#}");
        }
    }
}

/// Opens a host of a lab that another process has built. Its servers and clients are processes.
pub fn open_host(id: &LabId, name: &str) -> Result<Host> {
    let hosts = registry::load(id)?.hosts;
    let Some(found) = hosts.iter().find(|host| host.name == name) else {
        let names: Vec<_> = hosts.iter().map(|host| host.name.as_str()).collect();
        bail!("lab {id} has no host {name}; it has {}", names.join(", "));
    };
    let netns = Netns::open(&found.netns)?;
    let cgroup = Cgroup::create(found.cgroup.clone())?;
    Ok(Host::new(
        name,
        netns,
        cgroup,
        found.addresses,
        TrafficRunsIn::Process,
    ))
}

/// Waits for the removal of a lab whose building failed.
struct UnfinishedLab(Option<Guard>);

impl UnfinishedLab {
    fn finished(mut self) -> Option<Guard> {
        mem::take(&mut self.0)
    }
}

impl Drop for UnfinishedLab {
    fn drop(&mut self) {
        if let Some(Err(e)) = self.0.take().map(Guard::tear_down) {
            eprintln!("{e:#}");
        }
    }
}
