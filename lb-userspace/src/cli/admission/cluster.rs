//! Facts from objects of other kinds in the same files: ports of Services, identities of Pods.

use std::sync::Arc;

use lb_admission::classify::Identities;
use lb_objects::{
    Object, Protocol, Service,
    kubernetes::{self, Outcome},
};
use serde_json::Value;

use crate::admission::pods::identities;

/// Services and Pods.
pub struct Cluster {
    services: Vec<Arc<Service>>,
    pub identities: Identities,
}

impl Cluster {
    /// Finds them among objects of any kind. Invalid ones are skipped.
    pub fn new(objects: Vec<Value>) -> Self {
        let (mut services, mut pods) = (Vec::new(), Vec::new());
        for object in objects {
            let translated = kubernetes::translate_manifest(object);
            match translated.map(|translated| translated.outcome) {
                Some(Outcome::Use(Object::Service(service))) => services.push(service),
                Some(Outcome::Use(Object::Pod(pod))) => pods.push(pod),
                _ => {}
            }
        }
        Self {
            services,
            identities: identities(pods.iter().map(AsRef::as_ref)),
        }
    }

    pub fn service(&self, namespace: &str, name: &str) -> Option<&Service> {
        let is_it = |service: &&Arc<Service>| {
            service.name.namespace == namespace && *service.name.name == *name
        };
        self.services.iter().find(is_it).map(AsRef::as_ref)
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
