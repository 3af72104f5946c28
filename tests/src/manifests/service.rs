//! A builder for Services.

use std::net::IpAddr;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::Manifests;
use crate::lab::Family;

/// A Service being built. Everything else has Kubernetes' defaults.
#[derive(Clone, Debug)]
#[must_use = "call `apply`"]
pub struct Service<'a> {
    manifests: &'a Manifests,
    name: String,
    annotations: Map<String, Value>,
    cluster_ips: Vec<IpAddr>,
    ports: Vec<Value>,
    ingress: Vec<Value>,
    spec: Map<String, Value>,
}

impl<'a> Service<'a> {
    pub(super) fn new(manifests: &'a Manifests, name: &str) -> Self {
        Self {
            manifests,
            name: name.to_owned(),
            annotations: Map::new(),
            cluster_ips: Vec::new(),
            ports: Vec::new(),
            ingress: Vec::new(),
            spec: Map::new(),
        }
    }

    /// Adds a ClusterIP; the first decides `clusterIP`, and each brings its family.
    ///
    /// # Panics
    ///
    /// If `ip` is not an IP address; write broken objects with [`Manifests::apply`].
    pub fn cluster_ip(mut self, ip: &str) -> Self {
        self.cluster_ips
            .push(ip.parse().expect("a ClusterIP is an IP address"));
        self
    }

    /// Adds a TCP port.
    pub fn tcp(self, name: &str, port: u16, target: u16) -> Self {
        self.port(name, "TCP", port, target)
    }

    /// Adds a UDP port.
    pub fn udp(self, name: &str, port: u16, target: u16) -> Self {
        self.port(name, "UDP", port, target)
    }

    /// Adds an SCTP port.
    pub fn sctp(self, name: &str, port: u16, target: u16) -> Self {
        self.port(name, "SCTP", port, target)
    }

    /// Gives the port added last a node port, and makes the Service a NodePort one if it has no
    /// type yet.
    ///
    /// # Panics
    ///
    /// If there is no port yet.
    pub fn node_port(mut self, node_port: u16) -> Self {
        self.ports.last_mut().expect("add the port first")["nodePort"] = node_port.into();
        self.spec.entry("type").or_insert("NodePort".into());
        self
    }

    /// Makes it a LoadBalancer Service with one more ingress IP.
    pub fn load_balancer_ip(mut self, ip: &str) -> Self {
        self.ingress.push(json!({ "ip": ip, "ipMode": "VIP" }));
        self.set("type", "LoadBalancer")
    }

    /// `externalTrafficPolicy: Local`.
    pub fn external_local(self) -> Self {
        self.set("externalTrafficPolicy", "Local")
    }

    /// `internalTrafficPolicy: Local`.
    pub fn internal_local(self) -> Self {
        self.set("internalTrafficPolicy", "Local")
    }

    /// `sessionAffinity: ClientIP` with a timeout in seconds.
    pub fn client_ip_affinity(self, seconds: u32) -> Self {
        self.set("sessionAffinity", "ClientIP").set(
            "sessionAffinityConfig",
            json!({ "clientIP": { "timeoutSeconds": seconds } }),
        )
    }

    /// Sets any field of `spec`, for example `externalIPs` or `loadBalancerSourceRanges`.
    pub fn set(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.spec.insert(field.to_owned(), value.into());
        self
    }

    /// Adds an annotation.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.into());
        self
    }

    /// The object.
    pub fn object(&self) -> Value {
        let mut spec = self.spec.clone();
        spec.entry("type").or_insert("ClusterIP".into());
        spec.insert("ports".into(), self.ports.clone().into());
        if let Some(first) = self.cluster_ips.first() {
            let families: Vec<_> = self
                .cluster_ips
                .iter()
                .map(|ip| Family::of(*ip).name())
                .collect();
            spec.insert("clusterIP".into(), json!(first));
            spec.insert("clusterIPs".into(), json!(self.cluster_ips));
            spec.insert("ipFamilies".into(), json!(families));
        }
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": self.name,
                "namespace": "default",
                "annotations": self.annotations,
            },
            "spec": spec,
            "status": { "loadBalancer": { "ingress": self.ingress } },
        })
    }

    /// Writes the object to all directories.
    pub fn apply(self) -> Result<()> {
        self.manifests.apply(&self.object())
    }

    fn port(mut self, name: &str, protocol: &str, port: u16, target: u16) -> Self {
        self.ports.push(json!({
            "name": name, "protocol": protocol, "port": port, "targetPort": target,
        }));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_has_its_families_and_node_port() {
        let manifests = Manifests::new([]);
        let object = manifests
            .service("web")
            .cluster_ip("fd00:10:96::10")
            .cluster_ip("10.96.0.10")
            .tcp("http", 80, 8080)
            .node_port(30080)
            .object();
        assert_eq!(object["spec"]["clusterIP"], "fd00:10:96::10");
        assert_eq!(object["spec"]["ipFamilies"], json!(["IPv6", "IPv4"]));
        assert_eq!(object["spec"]["type"], "NodePort");
        assert_eq!(object["spec"]["ports"][0]["nodePort"], 30080);
    }

    #[test]
    fn a_load_balancer_stays_one_when_it_gets_a_node_port() {
        let manifests = Manifests::new([]);
        let service = manifests.service("web").tcp("http", 80, 8080);
        let service = service
            .load_balancer_ip("172.30.78.10")
            .node_port(30080)
            .external_local();
        let object = service.object();
        assert_eq!(object["spec"]["type"], "LoadBalancer");
        assert_eq!(object["spec"]["externalTrafficPolicy"], "Local");
        assert_eq!(
            object["status"]["loadBalancer"]["ingress"][0]["ip"],
            "172.30.78.10"
        );
    }
}
