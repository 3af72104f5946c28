//! The kinds of objects that node-lb reads, and what identifies one.

use std::{fmt, sync::Arc};

use serde_json::Value;

use crate::{EndpointSlice, Node, ObjectName, Pod, Service, ServiceCidr, problem::shortened};

/// An object in node-lb's own form. It is cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
    Node(Arc<Node>),
    Pod(Arc<Pod>),
    ServiceCidr(Arc<ServiceCidr>),
    /// Of connection admission, as it is written.
    Admission(Arc<AsWritten>),
}

/// An object that is read elsewhere: what it is, and its JSON without what only the API server
/// writes, which is beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsWritten {
    pub reference: ObjectRef,
    pub json: Value,
    pub standing: Standing,
}

/// What an API server knows of an object besides what its author has written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// `metadata.generation`: changes with `spec` alone.
    pub generation: i64,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `status.conditions`.
    pub conditions: Vec<Value>,
}

impl Object {
    /// The kind of the object.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Service(_) => Kind::Service,
            Self::EndpointSlice(_) => Kind::EndpointSlice,
            Self::Node(_) => Kind::Node,
            Self::Pod(_) => Kind::Pod,
            Self::ServiceCidr(_) => Kind::ServiceCidr,
            Self::Admission(manifest) => manifest.reference.kind,
        }
    }

    /// What identifies the object.
    pub fn reference(&self) -> ObjectRef {
        match self {
            Self::Service(service) => ObjectRef {
                kind: Kind::Service,
                name: service.name.clone(),
            },
            Self::EndpointSlice(slice) => ObjectRef {
                kind: Kind::EndpointSlice,
                name: slice.name.clone(),
            },
            Self::Node(node) => ObjectRef {
                kind: Kind::Node,
                name: ObjectName::new(String::new(), node.name.clone()),
            },
            Self::Pod(pod) => ObjectRef {
                kind: Kind::Pod,
                name: pod.name.clone(),
            },
            Self::ServiceCidr(cidr) => ObjectRef {
                kind: Kind::ServiceCidr,
                name: cidr.name.clone(),
            },
            Self::Admission(manifest) => manifest.reference.clone(),
        }
    }
}

/// The kinds of objects that a source delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Service,
    EndpointSlice,
    Node,
    Pod,
    PriorityLevel,
    FlowSchema,
    /// Only with the limit of connections that its annotations set, as [`AsWritten`]. The agent need not
    /// have the right to read it.
    Namespace,
    /// Of networking.k8s.io/v1. A cluster need not have it, nor the agent the right to read it.
    ServiceCidr,
}

impl Kind {
    /// What a service proxy needs.
    pub const ALL: [Self; 3] = [Self::Service, Self::EndpointSlice, Self::Node];
    /// What connection admission is configured by. A cluster need not have these kinds.
    pub const ADMISSION: [Self; 2] = [Self::PriorityLevel, Self::FlowSchema];

    /// The resource's name in the API's URLs and in roles, such as `services`.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Service => "services",
            Self::EndpointSlice => "endpointslices",
            Self::Node => "nodes",
            Self::Pod => "pods",
            Self::PriorityLevel => "prioritylevels",
            Self::FlowSchema => "flowschemas",
            Self::Namespace => "namespaces",
            Self::ServiceCidr => "servicecidrs",
        }
    }

    /// Whether objects of the kind have a namespace.
    pub fn is_namespaced(self) -> bool {
        matches!(self, Self::Service | Self::EndpointSlice | Self::Pod)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::PriorityLevel => "PriorityLevel",
            Self::FlowSchema => "FlowSchema",
            Self::Namespace => "Namespace",
            Self::ServiceCidr => "ServiceCIDR",
        })
    }
}

/// Identity of an object. The namespace is empty if the kind has none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    pub kind: Kind,
    pub name: ObjectName,
}

/// `Service default/web`, `Node worker-1`. Names longer than an API server accepts are shortened.
impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind)?;
        if self.kind.is_namespaced() {
            write!(f, "{}/", shortened(&self.name.namespace))?;
        }
        match &*self.name.name {
            "" => f.write_str("(no name)"),
            name => f.write_str(&shortened(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_fit_a_log_line() {
        let reference = |name: String| ObjectRef {
            kind: Kind::Service,
            name: ObjectName::new("default", name),
        };
        assert_eq!(
            reference("web".to_owned()).to_string(),
            "Service default/web"
        );
        assert_eq!(
            reference(String::new()).to_string(),
            "Service default/(no name)"
        );
        let long = reference("\u{e4}".repeat(300)).to_string();
        assert!(
            long.ends_with("... (600 bytes)") && long.len() < 120,
            "{long}"
        );
    }
}
