//! The addresses at which a service port is reached, and who may reach them.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
pub use lb_common::abi::FrontendKind;
use lb_objects::{IpFamily, Service, ServicePort};

use super::node::LocalNode;

/// One address and port at which a service port is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frontend {
    pub kind: FrontendKind,
    pub address: SocketAddr,
}

/// The frontends of one family: cluster IP first, no address twice.
pub(super) fn frontends(
    service: &Service,
    cluster_ip: IpAddr,
    port: &ServicePort,
    node: &LocalNode,
) -> Vec<Frontend> {
    let family = IpFamily::of(cluster_ip);
    let external_ips = match node.allows_external_ips() {
        true => service.external_ips.as_slice(),
        false => &[],
    };
    let node_addresses = match port.node_port {
        0 => &[],
        _ => node.node_port_addresses(),
    };

    let mut frontends: Vec<Frontend> = Vec::new();
    for (kind, addresses, port) in [
        (FrontendKind::ClusterIp, &[cluster_ip][..], port.port),
        (
            FrontendKind::LoadBalancerIp,
            &service.load_balancer_ips,
            port.port,
        ),
        (FrontendKind::ExternalIp, external_ips, port.port),
        (FrontendKind::NodePort, node_addresses, port.node_port),
    ] {
        for address in in_family(family, addresses) {
            let address = SocketAddr::new(address, port);
            if frontends.iter().all(|known| known.address != address) {
                frontends.push(Frontend { kind, address });
            }
        }
    }
    frontends.shrink_to_fit();
    frontends
}

/// Whether the port has any external address of this family, accepted on this node or not.
pub(super) fn externally_accessible(
    service: &Service,
    family: IpFamily,
    port: &ServicePort,
) -> bool {
    port.node_port != 0
        || in_family(family, &service.load_balancer_ips)
            .next()
            .is_some()
        || in_family(family, &service.external_ips).next().is_some()
}

/// The sources that a load balancer IP of this family accepts; empty means all.
///
/// A family without a range, or with one that holds every address, has no filter. If a range
/// contains this node's IP, the load balancer IPs themselves are accepted too: a node that has such
/// an IP on a device sends from it.
pub(super) fn source_ranges(service: &Service, family: IpFamily, node: &LocalNode) -> Vec<IpNet> {
    let ranges = service.load_balancer_source_ranges.iter();
    let mut ranges: Vec<_> = ranges
        .filter(|range| IpFamily::of_net(**range) == family)
        .map(IpNet::trunc)
        .collect();
    if ranges.iter().any(|range| range.prefix_len() == 0) {
        return Vec::new();
    }

    let holds_node = |ip| ranges.iter().any(|range| range.contains(&ip));
    if node.ip(family).is_some_and(holds_node) {
        ranges.extend(in_family(family, &service.load_balancer_ips).map(IpNet::from));
    }
    ranges.sort_unstable();
    ranges.dedup();
    ranges
}

fn in_family(family: IpFamily, addresses: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let addresses = addresses.iter().copied();
    addresses.filter(move |address| IpFamily::of(*address) == family)
}
