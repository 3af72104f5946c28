//! The kinds of objects that node-lb reads, and what identifies one.

use std::{fmt, sync::Arc};

use crate::{EndpointSlice, Node, ObjectName, Service, problem::shortened};

/// An object in node-lb's own form. It is cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
    Node(Arc<Node>),
}

impl Object {
    /// The kind of the object.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Service(_) => Kind::Service,
            Self::EndpointSlice(_) => Kind::EndpointSlice,
            Self::Node(_) => Kind::Node,
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
        }
    }
}

/// The kinds of objects that a source delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Service,
    EndpointSlice,
    Node,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Service, Self::EndpointSlice, Self::Node];

    /// The resource's name in the API's URLs and in roles, such as `services`.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Service => "services",
            Self::EndpointSlice => "endpointslices",
            Self::Node => "nodes",
        }
    }

    /// Whether objects of the kind have a namespace. Nodes have none.
    pub fn is_namespaced(self) -> bool {
        self != Self::Node
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Node => "Node",
        })
    }
}

/// Identity of an object. The namespace of a Node is empty.
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
