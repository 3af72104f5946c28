//! Kubernetes objects for the agents of a lab, written as files the way an editor or a ConfigMap
//! mount writes them: whole, by an atomic rename.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::lab::{Family, Host, Node, Pod};

/// Directories of manifests that always get the same files.
#[derive(Clone, Debug)]
pub struct Manifests {
    dirs: Vec<PathBuf>,
}

impl Manifests {
    /// Writes to each of `dirs`, which exist.
    pub fn new(dirs: impl IntoIterator<Item = PathBuf>) -> Self {
        Self {
            dirs: dirs.into_iter().collect(),
        }
    }

    /// Begins a Service `default/NAME`.
    pub fn service(&self, name: &str) -> Service<'_> {
        Service {
            manifests: self,
            name: name.to_owned(),
            annotations: Map::new(),
            cluster_ips: Vec::new(),
            ports: Vec::new(),
            ingress: Vec::new(),
            spec: Map::new(),
        }
    }

    /// Begins the EndpointSlices of the Service `default/SERVICE`, one slice per family.
    pub fn endpoints(&self, service: &str) -> EndpointSlices<'_> {
        EndpointSlices {
            manifests: self,
            service: service.to_owned(),
            ports: Vec::new(),
            endpoints: Vec::new(),
        }
    }

    /// Writes an object to a file named after its kind and name.
    pub fn apply(&self, object: &Value) -> Result<()> {
        let kind = object["kind"].as_str().context("an object without kind")?;
        let name = object["metadata"]["name"]
            .as_str()
            .context("an object without name")?;
        self.write(&file_name(kind, name), object.to_string().as_bytes())
    }

    /// Writes many objects to one file, as a `List`: one event for a watcher.
    pub fn apply_list(&self, file: &str, objects: &[Value]) -> Result<()> {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        self.write(file, list.to_string().as_bytes())
    }

    /// Removes the file of an object that [`Manifests::apply`] wrote; missing is fine.
    pub fn delete(&self, kind: &str, name: &str) -> Result<()> {
        for dir in &self.dirs {
            let path = dir.join(file_name(kind, name));
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(e).with_context(|| format!("cannot remove {}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes any bytes as a file, for manifests that are broken on purpose.
    pub fn write(&self, file: &str, contents: &[u8]) -> Result<()> {
        for dir in &self.dirs {
            let fresh = dir.join(format!(".{file}.new"));
            let path = dir.join(file);
            fs::write(&fresh, contents)
                .and_then(|()| fs::rename(&fresh, &path))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// A Service in the making. What it does not say is left to Kubernetes' defaults.
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

impl Service<'_> {
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
                .map(|ip| family_name(Family::of(*ip)))
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

/// A Service's EndpointSlices in the making.
#[derive(Clone, Debug)]
#[must_use = "call `apply`"]
pub struct EndpointSlices<'a> {
    manifests: &'a Manifests,
    service: String,
    ports: Vec<Value>,
    endpoints: Vec<Endpoint>,
}

impl EndpointSlices<'_> {
    /// Adds a TCP port, under the name it has in the Service.
    pub fn tcp(mut self, name: &str, port: u16) -> Self {
        self.ports
            .push(json!({ "name": name, "protocol": "TCP", "port": port }));
        self
    }

    /// Adds a UDP port, under the name it has in the Service.
    pub fn udp(mut self, name: &str, port: u16) -> Self {
        self.ports
            .push(json!({ "name": name, "protocol": "UDP", "port": port }));
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
            let suffix = family_name(family).to_lowercase();
            let endpoints: Vec<_> = self.endpoints.iter().map(|e| e.object(family)).collect();
            json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{}-{suffix}", self.service),
                    "namespace": "default",
                    "labels": { "kubernetes.io/service-name": self.service },
                },
                "addressType": family_name(family),
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

/// The Node object of a lab's node.
pub fn node_object(node: &Node) -> Value {
    let pods = node.pod_networks;
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name(),
            "labels": {
                "kubernetes.io/hostname": node.name(),
                "topology.kubernetes.io/zone": format!("zone-{}", node.index),
            },
        },
        "spec": { "podCIDR": pods.v4, "podCIDRs": [pods.v4.to_string(), pods.v6.to_string()] },
        "status": {
            "addresses": [
                { "type": "InternalIP", "address": node.ip(Family::V4) },
                { "type": "InternalIP", "address": node.ip(Family::V6) },
                { "type": "Hostname", "address": node.name() },
            ],
        },
    })
}

fn file_name(kind: &str, name: &str) -> String {
    format!("{}-{name}.json", kind.to_lowercase())
}

fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
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
