//! A builder for EndpointSlices.

use std::net::IpAddr;

use anyhow::Result;
use serde_json::{Value, json};

use super::Manifests;
use crate::lab::{Addresses, Family, Host, Node, Pod};

/// EndpointSlices of a Service, being built.
#[derive(Clone, Debug)]
#[must_use = "call `apply`"]
pub struct EndpointSlices<'a> {
    manifests: &'a Manifests,
    service: String,
    ports: Vec<Value>,
    endpoints: Vec<Endpoint>,
}

impl<'a> EndpointSlices<'a> {
    pub(super) fn new(manifests: &'a Manifests, service: &str) -> Self {
        Self {
            manifests,
            service: service.to_owned(),
            ports: Vec::new(),
            endpoints: Vec::new(),
        }
    }

    /// Adds a TCP port, under the name it has in the Service.
    pub fn tcp(self, name: &str, port: u16) -> Self {
        self.port(name, "TCP", port)
    }

    /// Adds a UDP port, under the name it has in the Service.
    pub fn udp(self, name: &str, port: u16) -> Self {
        self.port(name, "UDP", port)
    }

    /// Adds an SCTP port, under the name it has in the Service.
    pub fn sctp(self, name: &str, port: u16) -> Self {
        self.port(name, "SCTP", port)
    }

    fn port(mut self, name: &str, protocol: &str, port: u16) -> Self {
        self.ports
            .push(json!({ "name": name, "protocol": protocol, "port": port }));
        self
    }

    /// Adds an endpoint.
    pub fn with(mut self, endpoint: Endpoint) -> Self {
        self.endpoints.push(endpoint);
        self
    }

    /// Adds endpoints.
    pub fn with_all(mut self, endpoints: impl IntoIterator<Item = Endpoint>) -> Self {
        self.endpoints.extend(endpoints);
        self
    }

    /// The slices, IPv4 first. A slice without endpoints is still a slice.
    pub fn objects(&self) -> [Value; 2] {
        Family::BOTH.map(|family| {
            let suffix = family.name().to_lowercase();
            let endpoints: Vec<_> = self.endpoints.iter().map(|e| e.object(family)).collect();
            json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{}-{suffix}", self.service),
                    "namespace": "default",
                    "labels": { "kubernetes.io/service-name": self.service },
                },
                "addressType": family.name(),
                "ports": self.ports,
                "endpoints": endpoints,
            })
        })
    }

    /// Writes the slices to all directories.
    pub fn apply(self) -> Result<()> {
        // One file for both families, so that no watcher sees a Service half-updated.
        let file = format!("endpointslices-{}.json", self.service);
        self.manifests.apply_list(&file, &self.objects())
    }
}

/// An endpoint with its conditions.
#[derive(Clone, Debug)]
pub struct Endpoint {
    v4: IpAddr,
    v6: IpAddr,
    node: Option<String>,
    ready: bool,
    serving: bool,
    terminating: bool,
}

impl Endpoint {
    /// Ready: gets new connections.
    pub fn ready(pod: &Pod) -> Self {
        Self::of(pod, true, true, false)
    }

    /// Terminating but still serving: gets new connections if no endpoint is ready.
    pub fn terminating(pod: &Pod) -> Self {
        Self::of(pod, false, true, true)
    }

    /// Terminating and no longer serving.
    pub fn gone(pod: &Pod) -> Self {
        Self::of(pod, false, false, true)
    }

    /// Alive but not ready.
    pub fn unready(pod: &Pod) -> Self {
        Self::of(pod, false, false, false)
    }

    /// Ready on a node itself: a pod that uses the node's network.
    pub fn on_node(node: &Node) -> Self {
        Self {
            node: Some(node.name().to_owned()),
            ..Self::outside(node)
        }
    }

    /// Ready on a host outside the cluster.
    pub fn outside(host: &Host) -> Self {
        Self {
            v4: host.ip(Family::V4),
            v6: host.ip(Family::V6),
            node: None,
            ready: true,
            serving: true,
            terminating: false,
        }
    }

    /// The same endpoint at other addresses of its pod.
    pub fn at(self, addresses: Addresses) -> Self {
        Self {
            v4: addresses.v4.into(),
            v6: addresses.v6.into(),
            ..self
        }
    }

    fn of(pod: &Pod, ready: bool, serving: bool, terminating: bool) -> Self {
        Self {
            v4: pod.ip(Family::V4),
            v6: pod.ip(Family::V6),
            node: Some(pod.node.clone()),
            ready,
            serving,
            terminating,
        }
    }

    fn object(&self, family: Family) -> Value {
        let address = match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        };
        json!({
            "addresses": [address],
            "nodeName": self.node,
            "conditions": {
                "ready": self.ready, "serving": self.serving, "terminating": self.terminating,
            },
        })
    }
}
