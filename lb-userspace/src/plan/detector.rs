//! Tells local pods from all other sources (`--detect-local-mode`), for source NAT and the short
//! circuit of externalTrafficPolicy.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use lb_objects::{IpFamily, Node};

/// What to do where local pods cannot be told from others.
const REMEDY: &str = "set --cluster-cidr (chart: config.cluster-cidr) to the networks of all pods; where pods have no \
                      networks of their own, --detect-local-mode (chart: config.detect-local-mode) to \
                      InterfaceNamePrefix or BridgeInterface; or to none, if no source counts as a pod";

/// How local pods are told from other sources, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// Sources in these networks; in a family without one, sources in this node's podCIDR.
    Auto(Vec<IpNet>),
    /// Sources in these networks; pods of other nodes count as well.
    ClusterCidr(Vec<IpNet>),
    /// Sources in this node's podCIDRs.
    NodeCidr,
    /// Packets that arrive on this bridge.
    BridgeInterface(String),
    /// Packets that arrive on an interface with a name that starts like this.
    InterfaceNamePrefix(String),
    /// No source counts as a local pod.
    None,
}

/// The detector in force on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalDetector {
    /// At most one network per family; a family without one has no detector.
    Networks(Vec<IpNet>),
    Interface(String),
    InterfacePrefix(String),
    None,
}

impl LocalDetector {
    /// The detector of a configuration on this node.
    pub fn new(detect: &DetectLocal, node: &Node) -> Self {
        match detect {
            DetectLocal::Auto(networks) => {
                Self::Networks(first_per_family(&[&networks[..], &node.pod_cidrs].concat()))
            }
            DetectLocal::ClusterCidr(networks) => Self::Networks(first_per_family(networks)),
            DetectLocal::NodeCidr => Self::Networks(first_per_family(&node.pod_cidrs)),
            DetectLocal::BridgeInterface(name) => Self::Interface(name.clone()),
            DetectLocal::InterfaceNamePrefix(prefix) => Self::InterfacePrefix(prefix.clone()),
            DetectLocal::None => Self::None,
        }
    }

    /// Whether this family has a detector. Without one, ClusterIP traffic is not source-NATed
    /// because it comes from outside, and pods are not short-circuited.
    pub fn covers(&self, family: IpFamily) -> bool {
        match self {
            Self::Networks(networks) => networks.iter().any(|n| IpFamily::of_net(*n) == family),
            Self::Interface(_) | Self::InterfacePrefix(_) => true,
            Self::None => false,
        }
    }

    /// Whether a packet from `source`, arriving on `interface`, comes from a local pod.
    pub fn is_local_pod(&self, source: IpAddr, interface: Option<&str>) -> bool {
        match self {
            Self::Networks(networks) => networks.iter().any(|net| net.contains(&source)),
            Self::Interface(name) => interface == Some(name),
            Self::InterfacePrefix(prefix) => interface.is_some_and(|i| i.starts_with(prefix)),
            Self::None => false,
        }
    }

    /// Whether it recognises local pods by a device of this name.
    pub fn is_device_of_pods(&self, name: &str) -> bool {
        match self {
            Self::Interface(_) | Self::InterfacePrefix(_) => {
                self.is_local_pod(IpAddr::from([0; 4]), Some(name))
            }
            Self::Networks(_) | Self::None => false,
        }
    }
}

/// That this node's pods cannot be told from other sources, although they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undetected {
    /// The families without a detector.
    families: Vec<IpFamily>,
    /// Whether the other family has one.
    partly: bool,
    /// Where networks were looked for in vain.
    lacking: String,
}

impl Undetected {
    /// What a node lacks; nothing if it lacks nothing, or if its pods are not told by networks.
    /// Only families count that the node has an address of.
    pub fn on(node: &Node, detect: &DetectLocal) -> Option<Self> {
        let LocalDetector::Networks(networks) = LocalDetector::new(detect, node) else {
            return None;
        };
        let has = |family| networks.iter().any(|net| IpFamily::of_net(*net) == family);
        let wanted = |family| node.addresses.iter().any(|ip| IpFamily::of(*ip) == family);
        let families = [IpFamily::V4, IpFamily::V6].into_iter();
        let families: Vec<_> = families
            .filter(|family| !has(*family) && (networks.is_empty() || wanted(*family)))
            .collect();
        let name = &node.name;
        let lacking = match detect {
            DetectLocal::NodeCidr => format!("Node {name} has no podCIDR"),
            DetectLocal::ClusterCidr(_) => "--cluster-cidr has no network".to_owned(),
            _ => format!("--cluster-cidr has no network, and Node {name} no podCIDR"),
        };
        (!families.is_empty()).then_some(Self {
            partly: !networks.is_empty(),
            families,
            lacking,
        })
    }

    /// That pods of this node have addresses outside the podCIDRs by which they are to be told, and
    /// none has one inside, in some family: they come from another pool, as with Calico's IPAM on a
    /// node whose podCIDR nobody uses. `pods` are endpoints of this node, without the node itself.
    pub fn by(
        pods: impl IntoIterator<Item = IpAddr>,
        node: &Node,
        detect: &DetectLocal,
    ) -> Option<Self> {
        let configured: &[IpNet] = match detect {
            DetectLocal::Auto(networks) => networks,
            DetectLocal::NodeCidr => &[],
            _ => return None,
        };
        let mut inside = Vec::new();
        let mut outside: Vec<(IpNet, IpAddr)> = Vec::new();
        let from_node = |network: &IpNet| {
            let family = IpFamily::of_net(*network);
            !configured
                .iter()
                .any(|net| IpFamily::of_net(*net) == family)
        };
        let networks = first_per_family(&node.pod_cidrs).into_iter();
        let networks: Vec<_> = networks.filter(from_node).collect();
        for pod in pods {
            let family = IpFamily::of(pod);
            let network = networks
                .iter()
                .find(|net| IpFamily::of_net(**net) == family);
            match network {
                Some(network) if network.contains(&pod) => inside.push(family),
                Some(network) => outside.push((*network, pod)),
                None => {}
            }
        }
        outside.retain(|(_, pod)| !inside.contains(&IpFamily::of(*pod)));
        outside.sort_unstable();
        outside.dedup_by_key(|(network, _)| *network);
        let (network, pod) = outside.first()?;
        let name = &node.name;
        Some(Self {
            families: outside.iter().map(|(_, pod)| IpFamily::of(*pod)).collect(),
            partly: false,
            lacking: format!(
                "pods of Node {name} have addresses outside its podCIDR {network}, such as {pod}"
            ),
        })
    }

    /// Whether the pods of one family are told, and those of the other are not.
    pub fn is_partial(&self) -> bool {
        self.partly
    }

    /// What there is, without what to do about it.
    pub fn found(&self) -> String {
        let families: Vec<_> = self.families.iter().map(ToString::to_string).collect();
        let (families, lacking) = (families.join(" and "), &self.lacking);
        format!("local pods cannot be told from other sources of {families}: {lacking}")
    }

    /// What to do about it.
    pub fn remedy(&self) -> &'static str {
        REMEDY
    }
}

impl fmt::Display for Undetected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.found(), self.remedy())
    }
}

fn first_per_family(networks: &[IpNet]) -> Vec<IpNet> {
    [IpFamily::V4, IpFamily::V6]
        .into_iter()
        .filter_map(|family| {
            let mut networks = networks.iter().copied();
            networks.find(|net| IpFamily::of_net(*net) == family)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_network_of_a_family_counts() {
        let detect = DetectLocal::ClusterCidr(vec![net("10.0.0.0/8"), net("172.16.0.0/12")]);
        let detector = LocalDetector::new(&detect, &Node::default());
        assert!(detector.is_local_pod(ip("10.1.2.3"), None));
        assert!(!detector.is_local_pod(ip("172.16.0.1"), None));
        assert!(detector.covers(IpFamily::V4));
        assert!(!detector.covers(IpFamily::V6));
    }

    #[test]
    fn node_cidr_takes_the_networks_from_the_node_object() {
        let node = Node {
            pod_cidrs: vec![net("10.1.0.0/24"), net("fd00:1::/64")],
            ..Node::default()
        };
        let detector = LocalDetector::new(&DetectLocal::NodeCidr, &node);
        assert!(detector.is_local_pod(ip("fd00:1::7"), None));
        assert!(!detector.is_local_pod(ip("10.1.1.7"), None));
    }

    #[test]
    fn unless_told_it_goes_by_cluster_cidr_and_else_by_the_node_object() {
        let node = Node {
            pod_cidrs: vec![net("10.1.0.0/24"), net("fd00:1::/64")],
            ..Node::default()
        };
        let detect = DetectLocal::Auto(vec![net("10.0.0.0/8")]);
        let detector = LocalDetector::new(&detect, &node);
        assert!(detector.is_local_pod(ip("10.7.0.1"), None));
        assert!(detector.is_local_pod(ip("fd00:1::7"), None));
        assert!(!detector.is_local_pod(ip("fd00:2::7"), None));

        let detector = LocalDetector::new(&DetectLocal::Auto(Vec::new()), &node);
        assert!(detector.is_local_pod(ip("10.1.0.7"), None));
        assert!(!detector.is_local_pod(ip("10.7.0.1"), None));
    }

    #[test]
    fn a_node_without_networks_of_pods_says_what_to_set() {
        let node = Node {
            name: "node-1".into(),
            addresses: vec![ip("192.0.2.1"), ip("2001:db8::1")],
            ..Node::default()
        };
        let undetected = Undetected::on(&node, &DetectLocal::Auto(Vec::new())).unwrap();
        assert!(!undetected.is_partial());
        let said = undetected.to_string();
        for part in [
            "of IPv4 and IPv6: --cluster-cidr has no network, and Node node-1 no podCIDR;",
            "--cluster-cidr (chart: config.cluster-cidr)",
            "--detect-local-mode (chart: config.detect-local-mode)",
        ] {
            assert!(said.contains(part), "{said}");
        }

        let partly = DetectLocal::ClusterCidr(vec![net("10.0.0.0/8")]);
        let undetected = Undetected::on(&node, &partly).unwrap();
        assert!(undetected.is_partial());
        assert_eq!(
            undetected.found(),
            "local pods cannot be told from other sources of IPv6: --cluster-cidr has no network"
        );
        let single_stack = Node {
            addresses: vec![ip("192.0.2.1")],
            ..node.clone()
        };
        assert_eq!(Undetected::on(&single_stack, &partly), None);

        // Who wants none, or goes by devices, lacks no network.
        for detect in [
            DetectLocal::None,
            DetectLocal::InterfaceNamePrefix("eni".into()),
            DetectLocal::BridgeInterface("cni0".into()),
        ] {
            assert_eq!(Undetected::on(&node, &detect), None);
        }
        let nothing = Undetected::on(&Node::default(), &DetectLocal::NodeCidr);
        assert!(nothing.is_some_and(|undetected| !undetected.is_partial()));
    }

    #[test]
    fn pods_from_another_pool_than_the_podcidr_are_noticed() {
        let node = Node {
            name: "node-1".into(),
            pod_cidrs: vec![net("10.1.0.0/24"), net("fd00:1::/64")],
            ..Node::default()
        };
        let by = |pods: &[&str], detect: &DetectLocal| {
            let found = Undetected::by(pods.iter().map(|pod| ip(pod)), &node, detect);
            found.map(|found| found.found())
        };
        let auto = DetectLocal::Auto(Vec::new());
        assert_eq!(
            by(&["192.168.7.1", "fd00:1::7"], &auto).unwrap(),
            "local pods cannot be told from other sources of IPv4: pods of Node node-1 have addresses \
             outside its podCIDR 10.1.0.0/24, such as 192.168.7.1"
        );
        assert!(by(&["fd00:2::7"], &DetectLocal::NodeCidr).is_some());
        // A second network of some pods, or who is told what pods' networks are.
        assert_eq!(by(&["192.168.7.1", "10.1.0.7"], &auto), None);
        assert_eq!(by(&[], &auto), None);
        let told = DetectLocal::Auto(vec![net("10.0.0.0/8")]);
        assert_eq!(by(&["192.168.7.1"], &told), None);
        assert!(by(&["fd00:2::7"], &told).is_some());
        let bridge = DetectLocal::BridgeInterface("cni0".into());
        assert_eq!(by(&["192.168.7.1"], &bridge), None);
    }

    #[test]
    fn interface_modes_go_by_the_arrival_interface() {
        let pod = ip("10.0.0.1");
        let bridge = LocalDetector::Interface("cni0".into());
        assert!(bridge.is_local_pod(pod, Some("cni0")));
        assert!(!bridge.is_local_pod(pod, Some("cni01")));
        assert!(!bridge.is_local_pod(pod, None));

        let prefix = LocalDetector::InterfacePrefix("veth".into());
        assert!(prefix.is_local_pod(pod, Some("veth12ab")));
        assert!(!prefix.is_local_pod(pod, Some("eth0")));
    }

    #[test]
    fn no_detector_covers_nothing() {
        let detector = LocalDetector::new(&DetectLocal::None, &Node::default());
        assert!(!detector.covers(IpFamily::V4));
        assert!(!detector.is_local_pod(ip("10.0.0.1"), Some("veth0")));
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }
}
