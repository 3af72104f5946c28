//! The addresses at which a service port is reached, and who may reach them.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

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

/// The ClusterIP of a service port, if the node itself answers there.
pub(super) fn left_to_node(
    cluster_ip: IpAddr,
    port: &ServicePort,
    node: &LocalNode,
) -> Option<SocketAddr> {
    let address = SocketAddr::new(cluster_ip, port.port);
    node.answers_at(address).then_some(address)
}

/// The frontends of one family: cluster IP first, no address twice.
pub(super) fn frontends(
    service: &Service,
    cluster_ip: IpAddr,
    port: &ServicePort,
    node: &LocalNode,
) -> Arc<[Frontend]> {
    let family = IpFamily::of(cluster_ip);
    let external_ips = service.external_ips.iter().copied();
    let external_ips: Vec<_> = external_ips
        .filter(|address| node.allows_external_ip(*address))
        .collect();
    let node_addresses = match port.node_port {
        0 => &[],
        _ => node.node_port_addresses(),
    };

    let cluster_ips: &[_] = match left_to_node(cluster_ip, port, node) {
        Some(_) => &[],
        None => &[cluster_ip],
    };

    let (mut frontends, mut known) = (Vec::new(), HashSet::new());
    for (kind, addresses, port) in [
        (FrontendKind::ClusterIp, cluster_ips, port.port),
        (
            FrontendKind::LoadBalancerIp,
            &service.load_balancer_ips,
            port.port,
        ),
        (FrontendKind::ExternalIp, &external_ips, port.port),
        (FrontendKind::NodePort, node_addresses, port.node_port),
    ] {
        for address in in_family(family, addresses) {
            let address = SocketAddr::new(address, port);
            if known.insert(address) {
                frontends.push(Frontend { kind, address });
            }
        }
    }
    frontends.into()
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
/// A family with no range, or with one that holds every address, has no filter. A range with this
/// node's IP in it lets the load balancer IPs themselves in: a node that holds such an IP locally
/// sends from it.
pub(super) fn source_ranges(service: &Service, family: IpFamily, node: &LocalNode) -> Arc<[IpNet]> {
    let ranges = service.load_balancer_source_ranges.iter();
    let mut ranges: Vec<_> = ranges
        .filter(|range| IpFamily::of_net(**range) == family)
        .map(IpNet::trunc)
        .collect();
    if ranges.iter().any(|range| range.prefix_len() == 0) {
        return Arc::default();
    }

    let holds_node = |ip| ranges.iter().any(|range| range.contains(&ip));
    if node.ip(family).is_some_and(holds_node) {
        ranges.extend(in_family(family, &service.load_balancer_ips).map(IpNet::from));
    }
    ranges.sort_unstable();
    ranges.dedup();
    ranges.into()
}

fn in_family(family: IpFamily, addresses: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let addresses = addresses.iter().copied();
    addresses.filter(move |address| IpFamily::of(*address) == family)
}
