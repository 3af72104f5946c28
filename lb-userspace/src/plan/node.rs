//! What the planner knows about this node, computed once instead of per Service.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ipnet::IpNet;
use lb_objects::{Endpoint, IpFamily, Node, ObjectName, Service};

use super::Rank;

/// The node label that names the node's zone.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The loopback addresses that every node has.
const LOCALHOST: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// The port of DNS, where a cluster's DNS Service is asked.
const DNS_PORT: u16 = 53;

/// Cluster-wide settings that change plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    pub node_port_addresses: NodePortAddresses,
    /// Whether the node's own sockets are translated (`--socket-lb`): only they reach node ports at
    /// loopback addresses.
    pub sockets: bool,
    /// Gate `AllowServiceExternalIPs`: without it no externalIP becomes a frontend. A port that has
    /// one still counts as externally accessible.
    pub allow_external_ips: bool,
    /// The networks that an externalIP has to be in to become a frontend; none means that any does.
    pub external_ip_networks: Vec<IpNet>,
    /// Gate `PreferSameTrafficDistribution`: without it node hints are not looked at. Kubernetes
    /// 1.35 and later always have it on.
    pub honour_node_hints: bool,
    /// Services that are [essential](super::Importance::Essential) besides the API server's and
    /// DNS.
    pub essential: Vec<ObjectName>,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self {
            node_port_addresses: NodePortAddresses::Primary,
            sockets: true,
            allow_external_ips: true,
            external_ip_networks: Vec::new(),
            honour_node_hints: true,
            essential: Vec::new(),
        }
    }
}

/// The node addresses that accept NodePort traffic (`--nodeport-addresses`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// The node IP of each family. As long as the node has none of either, nowhere.
    #[default]
    Primary,
    /// The local addresses inside these networks. A family with no network in the list accepts
    /// on all its local addresses, so the empty list accepts everywhere. IPv6 link-local addresses
    /// accept only where a network below `fe80::/10` names them: every pod's device has one. So do
    /// `127.0.0.1` and `::1`, for the node's own sockets, with a network below `127.0.0.0/8`, or
    /// with `::1/128`: kube-proxy's iptables mode accepts at those of IPv4, the others never do.
    Networks(Vec<IpNet>),
}

/// This node from the planner's point of view: a pure function of the Node object, the addresses of
/// devices and the options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalNode {
    name: String,
    zone: Option<String>,
    ips: Vec<IpAddr>,
    node_port_addresses: Vec<IpAddr>,
    /// Its addresses that may be a Service's as well.
    held: BTreeSet<IpAddr>,
    options: PlanOptions,
}

impl LocalNode {
    /// `local_addresses` are the addresses at which this node is reached: those of its devices, or
    /// those of the Node object where no devices can be asked.
    pub fn new(node: &Node, local_addresses: &[IpAddr], options: &PlanOptions) -> Self {
        let ips: Vec<_> = [IpFamily::V4, IpFamily::V6]
            .into_iter()
            .filter_map(|family| first_of(family, &node.addresses))
            .collect();
        Self {
            name: node.name.clone(),
            zone: node
                .labels
                .get(ZONE_LABEL)
                .filter(|zone| !zone.is_empty())
                .cloned(),
            node_port_addresses: accepted_addresses(options, &ips, local_addresses),
            ips,
            // Every pod's device has a link-local one.
            held: local_addresses
                .iter()
                .copied()
                .filter(|ip| !ip.is_loopback() && !is_link_local(*ip))
                .collect(),
            options: options.clone(),
        }
    }

    /// The name of the Node object.
    pub fn name(&self) -> &String {
        &self.name
    }

    /// The zone in this node's label; an empty label counts as none.
    pub fn zone(&self) -> Option<&String> {
        self.zone.as_ref()
    }

    /// The node IP of a family: the first address of the family in the Node object, InternalIP
    /// before ExternalIP.
    pub fn ip(&self, family: IpFamily) -> Option<IpAddr> {
        first_of(family, &self.ips)
    }

    /// The addresses on which this node accepts node ports, sorted.
    pub fn node_port_addresses(&self) -> &[IpAddr] {
        &self.node_port_addresses
    }

    /// Whether the node itself answers at this address of a Service's: a DNS cache on each node
    /// (NodeLocal DNSCache) has the ClusterIP of the cluster's DNS on a device of the node's. It
    /// keeps kube-proxy away from port 53 by rules of its own (NOTRACK), and from no other port:
    /// metrics of the cluster's DNS, say, go on being asked through the Service.
    ///
    /// Loopback and link-local addresses of the node do not count.
    pub fn answers_at(&self, address: SocketAddr) -> bool {
        address.port() == DNS_PORT && self.held.contains(&address.ip())
    }

    /// Whose plans may differ on a node that is not this one any more but `after`.
    pub fn concerned(&self, after: &Self) -> Concerned {
        let Self {
            name,
            zone,
            ips,
            node_port_addresses,
            held,
            options,
        } = self;
        Concerned {
            all: (name, zone, options) != (&after.name, &after.zone, &after.options),
            node_ports: *node_port_addresses != after.node_port_addresses,
            source_ranges: *ips != after.ips,
            cluster_ips: held.symmetric_difference(&after.held).copied().collect(),
        }
    }

    /// A Service's place among all.
    pub fn rank(&self, service: &Service) -> Rank {
        Rank::of(service, &self.options.essential)
    }

    pub(super) fn hosts(&self, endpoint: &Endpoint) -> bool {
        endpoint.node_name.as_deref() == Some(&*self.name)
    }

    pub(super) fn honours_node_hints(&self) -> bool {
        self.options.honour_node_hints
    }

    /// Whether Services may claim this address as an externalIP.
    pub(super) fn allows_external_ip(&self, address: IpAddr) -> bool {
        let networks = &self.options.external_ip_networks;
        self.options.allow_external_ips
            && (networks.is_empty() || networks.iter().any(|network| network.contains(&address)))
    }
}

/// The Services that a change of the node concerns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Concerned {
    /// Every Service.
    pub all: bool,
    /// Those with node ports.
    pub node_ports: bool,
    /// Those with source ranges, which may hold the node's IP.
    pub source_ranges: bool,
    /// Those with one of these as ClusterIP that the node may answer at: see
    /// [`LocalNode::answers_at`].
    pub cluster_ips: Vec<IpAddr>,
}

impl Concerned {
    pub fn nobody(&self) -> bool {
        *self == Self::default()
    }

    pub fn concerns(&self, service: &Service) -> bool {
        let has_node_port = || service.ports.iter().any(|port| port.node_port != 0);
        let has_dns_port = || service.ports.iter().any(|port| port.port == DNS_PORT);
        let has_cluster_ip = || {
            let mut addresses = self.cluster_ips.iter();
            addresses.any(|address| service.cluster_ips.contains(address))
        };
        self.all
            || self.node_ports && has_node_port()
            || self.source_ranges && !service.load_balancer_source_ranges.is_empty()
            || has_dns_port() && has_cluster_ip()
    }
}

fn first_of(family: IpFamily, addresses: &[IpAddr]) -> Option<IpAddr> {
    let mut addresses = addresses.iter().copied();
    addresses.find(|address| IpFamily::of(*address) == family)
}

fn accepted_addresses(options: &PlanOptions, ips: &[IpAddr], local: &[IpAddr]) -> Vec<IpAddr> {
    let networks = match &options.node_port_addresses {
        // Nobody has said yet which addresses are the node's.
        NodePortAddresses::Primary if ips.is_empty() => return Vec::new(),
        NodePortAddresses::Primary => ips
            .iter()
            .filter(|ip| !ip.is_loopback())
            .map(|ip| IpNet::from(*ip))
            .collect(),
        NodePortAddresses::Networks(networks) => networks.clone(),
    };
    let localhost = if options.sockets { &LOCALHOST[..] } else { &[] };
    let mut accepted: Vec<_> = local
        .iter()
        .copied()
        .filter(|address| !address.is_loopback())
        .chain(localhost.iter().copied())
        .filter(|address| {
            let family = IpFamily::of(*address);
            let mut of_family = networks
                .iter()
                .filter(|net| IpFamily::of_net(**net) == family)
                .peekable();
            let kind = Special::of(*address);
            let open = of_family.peek().is_none() && kind.is_none();
            open || of_family.any(|net| {
                net.contains(address) && (kind.is_none() || kind == Special::of(net.network()))
            })
        })
        .collect();
    accepted.sort_unstable();
    accepted.dedup();
    accepted
}

/// What makes an address one that only a network of its kind names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    LinkLocal,
    Loopback,
}

impl Special {
    fn of(address: IpAddr) -> Option<Self> {
        match address {
            _ if is_link_local(address) => Some(Self::LinkLocal),
            _ if address.is_loopback() => Some(Self::Loopback),
            _ => None,
        }
    }
}

/// Of IPv6: IPv4 addresses of that kind may well be meant.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primary_accepts_the_node_ip_only() {
        let node = local_node(&NodePortAddresses::Primary, &["192.0.2.1", "192.0.2.9"]);
        assert_eq!(node.ip(IpFamily::V4), Some(ip("192.0.2.1")));
        assert_eq!(node.node_port_addresses(), [ip("192.0.2.1")]);
    }

    #[test]
    fn primary_accepts_everywhere_in_a_family_without_node_ip() {
        let node = node(&["192.0.2.1"]);
        let local = [ip("192.0.2.1"), ip("2001:db8::1"), ip("2001:db8::2")];
        let node = LocalNode::new(&node, &local, &PlanOptions::default());
        assert_eq!(node.node_port_addresses(), local);
    }

    #[test]
    fn networks_of_one_family_leave_the_other_open() {
        let wanted = networks(&["192.0.2.0/29"]);
        let node = local_node(&wanted, &["192.0.2.1", "192.0.2.9", "2001:db8::1"]);
        assert_eq!(
            node.node_port_addresses(),
            [ip("192.0.2.1"), ip("2001:db8::1")]
        );
    }

    #[test]
    fn a_zero_network_or_no_network_accepts_everywhere() {
        let addresses = ["192.0.2.1", "192.0.2.9"];
        for wanted in [networks(&[]), networks(&["198.51.100.0/24", "0.0.0.0/0"])] {
            let node = local_node(&wanted, &addresses);
            assert_eq!(node.node_port_addresses(), addresses.map(ip));
        }
    }

    #[test]
    fn a_network_without_local_address_accepts_nowhere() {
        let node = local_node(&networks(&["198.51.100.0/24"]), &["192.0.2.1"]);
        assert!(node.node_port_addresses().is_empty());
    }

    #[test]
    fn loopback_accepts_only_where_it_is_named() {
        let addresses = ["127.0.0.53", "192.0.2.1", "2001:db8::1"];
        let accepted = |wanted: &[&str]| {
            let node = local_node(&networks(wanted), &addresses);
            node.node_port_addresses().to_vec()
        };
        let others = [ip("192.0.2.1"), ip("2001:db8::1")];
        for everywhere in [&[][..], &["0.0.0.0/0", "::/0"]] {
            assert_eq!(accepted(everywhere), others);
        }
        assert_eq!(
            accepted(&["127.0.0.0/8", "::1/128"]),
            [ip("127.0.0.1"), ip("::1")]
        );
        assert_eq!(
            accepted(&["0.0.0.0/0", "127.0.0.1/32"]),
            [ip("127.0.0.1"), ip("192.0.2.1"), ip("2001:db8::1")]
        );
        let local: Vec<_> = addresses.into_iter().map(ip).collect();
        let options = PlanOptions {
            node_port_addresses: networks(&["127.0.0.0/8", "::1/128"]),
            sockets: false,
            ..PlanOptions::default()
        };
        let node = LocalNode::new(&node(&["192.0.2.1"]), &local, &options);
        assert!(node.node_port_addresses().is_empty());
    }

    #[test]
    fn addresses_of_pods_devices_accept_only_where_they_are_named() {
        let addresses = ["2001:db8::1", "fe80::1"];
        let accepted = |wanted: &NodePortAddresses| {
            let node = local_node(wanted, &addresses);
            node.node_port_addresses().to_vec()
        };
        for everywhere in [networks(&[]), networks(&["::/0"])] {
            assert_eq!(accepted(&everywhere), [ip("2001:db8::1")]);
        }
        assert_eq!(accepted(&networks(&["fe80::/10"])), [ip("fe80::1")]);
    }

    #[test]
    fn without_a_node_ip_primary_accepts_nowhere() {
        let local = [ip("10.244.0.1"), ip("2001:db8::1")];
        let node = LocalNode::new(&node(&[]), &local, &PlanOptions::default());
        assert!(node.node_port_addresses().is_empty());
    }

    #[test]
    fn a_change_concerns_those_whose_plans_it_may_change() {
        let before = local_node(&networks(&[]), &["192.0.2.1"]);
        let with = |change: fn(&mut Node), local: &[&str]| {
            let mut node = node(&["192.0.2.1"]);
            change(&mut node);
            let local: Vec<_> = local.iter().copied().map(ip).collect();
            let options = PlanOptions {
                node_port_addresses: networks(&[]),
                ..PlanOptions::default()
            };
            before.concerned(&LocalNode::new(&node, &local, &options))
        };
        let same = ["192.0.2.1"];
        let label = |node: &mut Node| drop(node.labels.insert("a".into(), "b".into()));
        assert!(with(label, &same).nobody());
        assert!(with(|node| node.taints.push("a".into()), &same).nobody());
        assert!(with(|_| {}, &["192.0.2.1", "fe80::1"]).nobody());
        assert_eq!(
            with(|_| {}, &["192.0.2.1", "10.96.0.10"]).cluster_ips,
            [ip("10.96.0.10")]
        );
        let zone = |node: &mut Node| drop(node.labels.insert(ZONE_LABEL.into(), "z".into()));
        assert!(with(zone, &same).all);
        let node_ports = with(|_| {}, &["192.0.2.1", "192.0.2.2"]);
        assert!(node_ports.node_ports && !node_ports.all && !node_ports.source_ranges);
        assert!(with(|node| node.addresses = vec![ip("192.0.2.9")], &same).source_ranges);
    }

    #[test]
    fn an_empty_zone_label_is_no_zone() {
        let mut node = node(&[]);
        node.labels.insert(ZONE_LABEL.into(), String::new());
        let local = LocalNode::new(&node, &[], &PlanOptions::default());
        assert_eq!(local.zone(), None);
    }

    fn local_node(wanted: &NodePortAddresses, addresses: &[&str]) -> LocalNode {
        let node = node(addresses);
        let options = PlanOptions {
            node_port_addresses: wanted.clone(),
            ..PlanOptions::default()
        };
        LocalNode::new(&node, &node.addresses, &options)
    }

    fn node(addresses: &[&str]) -> Node {
        Node {
            name: "node-1".into(),
            addresses: addresses.iter().copied().map(ip).collect(),
            ..Node::default()
        }
    }

    fn networks(nets: &[&str]) -> NodePortAddresses {
        NodePortAddresses::Networks(nets.iter().map(|net| net.parse().unwrap()).collect())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }
}
