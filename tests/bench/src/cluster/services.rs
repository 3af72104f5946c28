//! The Services of a measurement. Only their number differs.

use std::{net::Ipv4Addr, ops::Range};

use anyhow::Result;
use lb_tests::{Lab, Manifests};
use serde_json::{Value, json};

/// Endpoints of each Service.
pub const ENDPOINTS: u32 = 10;
/// Port of the Services: TCP, and for the first one UDP too.
pub const PORT: u16 = 80;
/// Port of the endpoints.
pub const TARGET_PORT: u16 = 8080;

/// Addresses of endpoints. Services beyond 6,000 share pods, as is usual in clusters.
const PODS: Range<u32> = network(10, 244, 4)..network(10, 244, 4) + 60_000;
/// The address of another pod, used for changes.
const NEW_POD: u32 = network(10, 244, 250) + 1;
const CLUSTER_IPS: u32 = network(10, 96, 1);

/// The ClusterIP of a Service, by its number.
pub fn cluster_ip(service: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(CLUSTER_IPS + service)
}

/// The address of an endpoint of a Service.
pub fn endpoint(service: u32, number: u32) -> Ipv4Addr {
    let pod = (service * ENDPOINTS + number) % (PODS.end - PODS.start);
    Ipv4Addr::from_bits(PODS.start + pod)
}

/// All endpoints of a Service.
pub fn endpoints(service: u32) -> Vec<Ipv4Addr> {
    (0..ENDPOINTS)
        .map(|number| endpoint(service, number))
        .collect()
}

/// All endpoints of a Service after another pod has replaced the first.
pub fn changed_endpoints(service: u32) -> Vec<Ipv4Addr> {
    let mut endpoints = endpoints(service);
    endpoints[0] = Ipv4Addr::from_bits(NEW_POD);
    endpoints
}

/// A Service's name.
pub fn name(service: u32) -> String {
    format!("service-{service}")
}

/// Writes a Service and its endpoints, which are on the lab's node, to one manifest.
///
/// # Errors
///
/// If the file cannot be written.
pub fn apply(lab: &Lab, service: u32, endpoints: &[Ipv4Addr]) -> Result<()> {
    let node = lab.node(1).name();
    let objects = [object(service), slice(service, endpoints, node)];
    lab.manifests().apply_list(&manifest(service), &objects)
}

/// Removes both.
///
/// # Errors
///
/// If the file cannot be written.
pub fn remove(lab: &Lab, service: u32) -> Result<()> {
    lab.manifests().apply_list(&manifest(service), &[])
}

fn manifest(service: u32) -> String {
    format!("{}.json", name(service))
}

fn object(service: u32) -> Value {
    let nowhere = Manifests::new([]);
    let object = nowhere
        .service(&name(service))
        .cluster_ip(&cluster_ip(service).to_string())
        .tcp("tcp", PORT, TARGET_PORT);
    match service {
        0 => object.udp("udp", PORT, TARGET_PORT).object(),
        _ => object.object(),
    }
}

fn slice(service: u32, endpoints: &[Ipv4Addr], node: &str) -> Value {
    let mut ports = vec![json!({ "name": "tcp", "protocol": "TCP", "port": TARGET_PORT })];
    if service == 0 {
        ports.push(json!({ "name": "udp", "protocol": "UDP", "port": TARGET_PORT }));
    }
    let endpoints = endpoints.iter().map(|address| {
        json!({ "addresses": [address], "nodeName": node, "conditions": { "ready": true } })
    });
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name(service),
            "namespace": "default",
            "labels": { "kubernetes.io/service-name": name(service) },
        },
        "addressType": "IPv4",
        "ports": ports,
        "endpoints": endpoints.collect::<Vec<_>>(),
    })
}

/// The first address of a /24.
const fn network(a: u8, b: u8, c: u8) -> u32 {
    u32::from_be_bytes([a, b, c, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stay_in_their_networks() {
        for service in [0, 5_999, 6_000, 49_999] {
            let [a, b, ..] = cluster_ip(service).octets();
            assert_eq!((a, b), (10, 96));
            for address in endpoints(service) {
                assert_eq!(address.octets()[..2], [10, 244]);
                assert!(address < changed_endpoints(service)[0]);
            }
        }
        assert_eq!(endpoint(6_000, 0), endpoint(0, 0));
    }
}
