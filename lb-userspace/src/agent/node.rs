//! What is known of the agent's node, and what that is to the planner, the map writer and the
//! health checks.

use std::{
    collections::{BTreeSet, HashSet},
    net::IpAddr,
    sync::Arc,
};

use lb_datapath::devices::{Device, Devices};
use lb_objects::{IpFamily, Node};
use nix::ifaddrs::getifaddrs;

use crate::{
    config::{Config, SourceSpec},
    explain::Situation,
    health::addresses::ListenAddresses,
    map_writer::NodeFacts,
    plan::{LocalNode, NodePortAddresses},
};

/// Where kube-proxy's ipvs mode keeps all ClusterIPs, for its own sake: they are not the node's.
const IPVS_DEVICE: &str = "kube-ipvs0";

/// What is known of this node. What its Node object does not say any more stays as it last was, and
/// what nobody has said is not guessed: an address of a pod network's bridge, say, would be one
/// that no other node answers to.
pub struct KnownNode {
    node: Node,
    /// The last Node object there was, filled from the one before it where it lacks something.
    seen: Option<Node>,
    /// The node's addresses, as an agent before this one knew them.
    remembered: Vec<IpAddr>,
    /// Where nobody will ever say more than devices do: there is no Node object, and no API server
    /// that might have one.
    standalone: bool,
    problem: Option<String>,
}

impl KnownNode {
    /// Nobody has said anything yet; `remembered` are addresses from before a restart.
    pub fn new(config: &Config, remembered: Vec<IpAddr>) -> Self {
        Self {
            node: config.this_node(None),
            seen: None,
            remembered,
            standalone: false,
            problem: None,
        }
    }

    /// Takes over what the Node object says, `None` if there is none. `local` are the addresses of
    /// all devices, and `external` those of external ones.
    pub fn update(
        &mut self,
        config: &Config,
        object: Option<&Node>,
        local: &BTreeSet<IpAddr>,
        external: &[IpAddr],
    ) {
        if let Some(object) = object {
            let mut seen = object.clone();
            if let Some(before) = self.seen.take() {
                fill(&mut seen.addresses, before.addresses);
                fill(&mut seen.pod_cidrs, before.pod_cidrs);
            }
            self.seen = Some(seen);
        }
        self.standalone = self.seen.is_none() && matches!(config.source, SourceSpec::Dir(_));
        let mut node = config.this_node(self.seen.as_ref());
        let last_known = self.remembered.iter().copied();
        fill(
            &mut node.addresses,
            match self.standalone {
                true => external.to_vec(),
                false => last_known.filter(|ip| local.contains(ip)).collect(),
            },
        );
        self.node = node;
        self.problem = self.find_problem(config, object);
    }

    /// This node, as far as it is known.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// This node as load balancers are to hear of it; `None` if it has no Node object, but for one
    /// that cannot have any.
    pub fn eligible<'a>(&'a self, object: Option<&'a Node>) -> Option<&'a Node> {
        object.or(self.standalone.then_some(&self.node))
    }

    /// What is missing, and what follows from that.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Whether not even an address is known: the agent is not ready then.
    pub fn has_no_address(&self) -> bool {
        self.node.addresses.is_empty()
    }

    fn find_problem(&self, config: &Config, object: Option<&Node>) -> Option<String> {
        let name = &config.node_name;
        let missing = match object {
            Some(object) if object.addresses.is_empty() && config.node_addresses.is_empty() => {
                format!("the Node object {name} has no address")
            }
            Some(_) => return None,
            None if self.standalone && !self.has_no_address() => return None,
            None => format!("there is no Node object {name}"),
        };
        let consequence = match self.has_no_address() {
            true => {
                "until there is an address, what needs source NAT is dropped (no-node-address), and \
                 node ports are closed"
            }
            false => "what was last known stays in force",
        };
        Some(format!("{missing}: {consequence}"))
    }
}

/// Fills a list that is empty.
fn fill<T>(list: &mut Vec<T>, with: Vec<T>) {
    if list.is_empty() {
        *list = with;
    }
}

/// The addresses of this node's devices.
pub fn local_addresses(devices: &Devices) -> BTreeSet<IpAddr> {
    own(devices)
        .flat_map(|device| &device.addresses)
        .map(|address| address.ip)
        .collect()
}

/// The same, those first that would be missed most: `named` ones, which other nodes know this one
/// by, then those of devices that are `external`, then the others, link-local ones last.
pub fn by_importance(
    devices: &Devices,
    named: &[IpAddr],
    is_external: impl Fn(&Device) -> bool,
) -> Vec<IpAddr> {
    let mut ranked: Vec<_> = own(devices)
        .flat_map(|device| {
            let external = is_external(device);
            let rank = move |ip: IpAddr| match (named.contains(&ip), external) {
                (true, _) => 0,
                (false, true) => 1,
                (false, false) if is_global(ip) => 2,
                _ => 3,
            };
            device.addresses.iter().map(move |a| (rank(a.ip), a.ip))
        })
        .collect();
    ranked.sort_unstable();
    let mut known = HashSet::new();
    ranked.retain(|(_, ip)| known.insert(*ip));
    ranked.into_iter().map(|(_, ip)| ip).collect()
}

/// Addresses of external devices that are valid beyond their link.
pub fn external_addresses(devices: &Devices, is_external: impl Fn(&Device) -> bool) -> Vec<IpAddr> {
    let external = own(devices).filter(|device| is_external(device));
    let addresses = external.flat_map(|device| device.addresses.iter().map(|a| a.ip));
    let addresses: BTreeSet<_> = addresses.filter(|ip| is_global(*ip)).collect();
    addresses.into_iter().collect()
}

/// The addresses of this machine's devices, as the system tells them at once; none if it does not.
pub fn own_addresses() -> BTreeSet<IpAddr> {
    let Ok(found) = getifaddrs() else {
        return BTreeSet::new();
    };
    let own = found.filter(|device| device.interface_name != IPVS_DEVICE);
    own.filter_map(|device| {
        let address = device.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))
    })
    .collect()
}

fn own(devices: &Devices) -> impl Iterator<Item = &Device> {
    devices.iter().filter(|device| device.name != IPVS_DEVICE)
}

/// This node as the planner needs it.
pub fn local_node(config: &Config, node: &Node, addresses: &BTreeSet<IpAddr>) -> LocalNode {
    let addresses: Vec<_> = addresses.iter().copied().collect();
    LocalNode::new(node, &addresses, &config.plan)
}

/// What of this node is part of every service's entry.
pub fn facts(config: &Config, node: &Node, addresses: &BTreeSet<IpAddr>) -> NodeFacts {
    NodeFacts::new(config, node, addresses.clone())
}

/// What decides about connections besides Services, before anything is known of the cluster.
pub fn situation(node: &Node, planned_for: &LocalNode, addresses: &BTreeSet<IpAddr>) -> Situation {
    Situation {
        node: Arc::new(node.clone()),
        local_node: Arc::new(planned_for.clone()),
        addresses: Arc::new(addresses.clone()),
        reserved: Arc::default(),
        service_cidrs: Arc::default(),
        in_force: None,
        pods: Arc::default(),
    }
}

/// Where healthCheckNodePort servers listen.
pub fn listen_addresses(
    config: &Config,
    node: &LocalNode,
    addresses: &BTreeSet<IpAddr>,
) -> ListenAddresses {
    let networks = match &config.plan.node_port_addresses {
        NodePortAddresses::Networks(networks) => networks.clone(),
        NodePortAddresses::Primary => {
            let ips = [IpFamily::V4, IpFamily::V6]
                .into_iter()
                .filter_map(|f| node.ip(f));
            ips.map(Into::into).collect()
        }
    };
    ListenAddresses::select(&networks, Ok(addresses.iter().copied().collect()))
}

fn is_global(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}
