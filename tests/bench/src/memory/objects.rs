//! The objects of a large cluster, as an API server sends them.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::{Value, json};

use super::Extent;

/// Namespaces that the Services are in: one alone may not have so many.
const NAMESPACES: u32 = 100;
/// Nodes that the endpoints are on.
const NODES: u32 = 500;
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const CLUSTER_IPS: [u32; 2] = [0x0a60_0100, 0x0010_0000]; // 10.96.1.0, fd00:10:96::10:0
const PODS: u32 = 0x0a80_0000; // 10.128.0.0, in no network of the lab
/// By how much the first endpoint of each slice moves when all change.
const FAR: u32 = 0x0040_0000;

/// Service number `number`.
pub fn service(extent: Extent, number: u32) -> Value {
    let ips: Vec<_> = (0..extent.families)
        .map(|family| match family {
            0 => Ipv4Addr::from_bits(CLUSTER_IPS[0] + number).to_string(),
            _ => v6(0x96, CLUSTER_IPS[1] + number),
        })
        .collect();
    let families = &FAMILIES[..extent.families as usize];
    let ports: Vec<_> = (0..extent.ports)
        .map(|port| {
            json!({
                "name": port_name(port),
                "protocol": "TCP",
                "port": 80 + port,
                "targetPort": 8080 + port,
            })
        })
        .collect();
    json!({
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": {
            "name": name(number),
            "namespace": namespace(number),
            "uid": format!("5e0f9b0a-0000-4000-8000-{number:012x}"),
            "resourceVersion": (1000 + number).to_string(),
            "creationTimestamp": "2026-11-01T12:00:00Z",
            "labels": { "app": name(number) },
        },
        "spec": {
            "ports": ports,
            "selector": { "app": name(number) },
            "clusterIP": ips[0],
            "clusterIPs": ips,
            "type": "ClusterIP",
            "sessionAffinity": "None",
            "ipFamilies": families,
            "ipFamilyPolicy": "PreferDualStack",
            "internalTrafficPolicy": "Cluster",
        },
        "status": { "loadBalancer": {} },
    })
}

/// The slice of a family of Service number `number`; once changed, its first endpoint is another.
pub fn slice(extent: Extent, number: u32, family: u32, changed: bool) -> Value {
    let first = number * extent.endpoints;
    let endpoints: Vec<_> = (first..first + extent.endpoints)
        .map(|endpoint| {
            let pod = match changed && endpoint == first {
                true => FAR + endpoint,
                false => endpoint,
            };
            let address = match family {
                0 => Ipv4Addr::from_bits(PODS + pod).to_string(),
                _ => v6(0x128, pod),
            };
            json!({
                "addresses": [address],
                "conditions": { "ready": true, "serving": true, "terminating": false },
                "nodeName": format!("worker-{}", endpoint % NODES),
                "zone": format!("zone-{}", endpoint % 3),
                "targetRef": {
                    "kind": "Pod",
                    "namespace": namespace(number),
                    "name": format!("pod-{pod}"),
                },
            })
        })
        .collect();
    let ports: Vec<_> = (0..extent.ports)
        .map(|port| json!({ "name": port_name(port), "protocol": "TCP", "port": 8080 + port }))
        .collect();
    let version = 1_000_000 + u64::from(changed) * 1_000_000 + u64::from(2 * number + family);
    // As names that an API server generates.
    let ending = char::from(b'a' + family as u8).to_string().repeat(5);
    json!({
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": format!("{}-{ending}", name(number)),
            "namespace": namespace(number),
            "resourceVersion": version.to_string(),
            "labels": { "kubernetes.io/service-name": name(number) },
        },
        "addressType": FAMILIES[family as usize],
        "endpoints": endpoints,
        "ports": ports,
    })
}

fn name(number: u32) -> String {
    format!("service-{number}")
}

fn namespace(number: u32) -> String {
    format!("team-{}", number % NAMESPACES)
}

fn port_name(port: u16) -> String {
    match port {
        0 => "http".to_owned(),
        1 => "metrics".to_owned(),
        more => format!("port-{more}"),
    }
}

/// An address of `fd00:10:NETWORK::/64`.
fn v6(network: u16, number: u32) -> String {
    let address = Ipv6Addr::new(
        0xfd00,
        0x10,
        network,
        0,
        0,
        0,
        (number >> 16) as u16,
        number as u16,
    );
    address.to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lb_objects::kubernetes::{Outcome, translate_manifest};

    use super::*;

    const EXTENT: Extent = Extent {
        services: 2,
        families: 2,
        ports: 3,
        endpoints: 4,
    };

    #[test]
    fn every_object_is_used_and_no_address_comes_twice() {
        let mut addresses = BTreeSet::new();
        for number in 0..EXTENT.services {
            let service = service(EXTENT, number);
            for ip in service["spec"]["clusterIPs"].as_array().unwrap() {
                assert!(addresses.insert(ip.to_string()));
            }
            let mut objects = vec![service];
            for family in 0..EXTENT.families {
                let slice = slice(EXTENT, number, family, false);
                for endpoint in slice["endpoints"].as_array().unwrap() {
                    assert!(addresses.insert(endpoint["addresses"][0].to_string()));
                }
                objects.push(slice);
            }
            for object in objects {
                let translated = translate_manifest(object).unwrap();
                assert!(translated.problems.is_empty(), "{:?}", translated.problems);
                assert!(matches!(translated.outcome, Outcome::Use(_)));
            }
        }
        assert_eq!(addresses.len(), 2 * (2 + 2 * 4));
    }

    #[test]
    fn a_change_replaces_one_endpoint_of_each_slice() {
        let [before, after] = [false, true].map(|changed| slice(EXTENT, 1, 1, changed));
        let address = |slice: &Value, endpoint: usize| {
            slice["endpoints"][endpoint]["addresses"][0].to_string()
        };
        assert_ne!(address(&before, 0), address(&after, 0));
        assert_eq!(address(&before, 1), address(&after, 1));
        let version = |slice: &Value| {
            let version = slice["metadata"]["resourceVersion"].as_str();
            version.unwrap().parse::<u64>().unwrap()
        };
        assert!(version(&before) < version(&after));
    }
}
