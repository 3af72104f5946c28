//! Tells local pods from all other sources (`--detect-local-mode`), for source NAT and the short
//! circuit of externalTrafficPolicy.

use std::net::IpAddr;

use ipnet::IpNet;
use lb_objects::{IpFamily, Node};

/// How to tell local pods from other sources, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// Sources in these networks; this includes pods of other nodes.
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
