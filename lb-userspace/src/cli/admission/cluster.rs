//! Facts from objects of other kinds in the same files: ports of Services, identities of Pods.

use std::{net::IpAddr, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use lb_admission::classify::{Identities, Identity};
use lb_objects::{
    Object, Protocol, Service,
    kubernetes::{self, Outcome},
};
use serde_json::Value;

/// Services and Pods.
#[derive(Default)]
pub struct Cluster {
    services: Vec<Arc<Service>>,
    pub identities: Identities,
}

impl Cluster {
    /// Finds them among objects of any kind. Invalid ones are skipped.
    pub fn new(objects: Vec<Value>) -> Self {
        let mut cluster = Self::default();
        for object in objects {
            match object.get("kind").and_then(Value::as_str) {
                Some("Pod") => {
                    if let Ok(pod) = serde_json::from_value(object) {
                        cluster.add_pod(&pod);
                    }
                }
                Some("Service") => {
                    let translated = kubernetes::translate_manifest(object);
                    if let Some(Outcome::Use(Object::Service(service))) =
                        translated.map(|translated| translated.outcome)
                    {
                        cluster.services.push(service);
                    }
                }
                _ => {}
            }
        }
        cluster
    }

    pub fn service(&self, namespace: &str, name: &str) -> Option<&Service> {
        let is_it = |service: &&Arc<Service>| {
            service.name.namespace == namespace && *service.name.name == *name
        };
        self.services.iter().find(is_it).map(AsRef::as_ref)
    }

    fn add_pod(&mut self, pod: &Pod) {
        let spec = pod.spec.clone().unwrap_or_default();
        if spec.host_network == Some(true) {
            return;
        }
        let default = || "default".to_owned();
        let identity = Arc::new(Identity {
            namespace: pod.metadata.namespace.clone().unwrap_or_else(default),
            service_account: spec.service_account_name.unwrap_or_else(default),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            node: spec.node_name.unwrap_or_default(),
        });
        let status = pod.status.clone().unwrap_or_default();
        let addresses = status
            .pod_ips
            .unwrap_or_default()
            .into_iter()
            .map(|ip| ip.ip);
        for address in addresses.chain(status.pod_ip) {
            if let Ok(address) = address.parse::<IpAddr>() {
                self.identities.insert(address, identity.clone());
            }
        }
    }
}

/// The ports of a Service, in the form of a message.
pub fn ports(service: &Service) -> String {
    let port = |port: &lb_objects::ServicePort| match port.protocol {
        Protocol::Tcp => port.port.to_string(),
        protocol => format!("{}/{}", port.port, protocol.to_string().to_lowercase()),
    };
    service
        .ports
        .iter()
        .map(port)
        .collect::<Vec<_>>()
        .join(", ")
}
