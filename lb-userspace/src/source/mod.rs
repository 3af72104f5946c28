//! Where Services, EndpointSlices and Nodes come from: a [`Source`] sends [`Event`]s, and nothing
//! after the store knows which source it was.

pub mod api;
pub mod dir;
pub mod health;
pub mod kubernetes;
mod problem;
pub(crate) mod text;

use std::{
    fmt,
    future::Future,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    time::{Instant, SystemTime},
};

use tokio::sync::mpsc;

use crate::model::{EndpointSlice, Node, ObjectName, Service};

pub(crate) use problem::shortened;
pub use problem::{Problem, Refused, quoted};

/// Something that knows the cluster's objects and follows their changes.
pub trait Source: Send {
    /// Sends every object, then [`Event::Synced`] once, then each change, until the receiver is
    /// gone. Events that belong together share a batch; batches arrive in order.
    ///
    /// A source that lists again (a lost watch, a directory that came back) applies everything it
    /// finds and deletes what is missing, without a gap in between: applying an unchanged object
    /// costs nothing downstream.
    ///
    /// # Errors
    /// Only for what no retry can mend. What was delivered stays in force.
    fn run(self: Box<Self>, events: mpsc::Sender<Batch>) -> SourceFuture;
}

/// A running [`Source`].
pub type SourceFuture = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// Events that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    pub events: Vec<Event>,
    /// When the last of them reached this process: the time until it is in the maps counts from here.
    pub received: Instant,
}

/// What a source tells the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The object exists, in this form.
    Apply(Object),
    /// The object is gone, or no longer meant for a service proxy.
    Delete(ObjectRef),
    /// The complete list of what is wrong in one place; empty when all is well again.
    Problems {
        /// The place: a file, or an object of the API.
        origin: String,
        problems: Vec<Problem>,
    },
    /// When what this slice, just applied, says came about; only for changes during this source's life.
    EndpointsChanged { slice: ObjectName, at: SystemTime },
    /// Everything that existed at the start has been applied.
    Synced,
}

/// An object in node-lb's own form; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
    Node(Arc<Node>),
}

impl Object {
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
                name: ObjectName {
                    namespace: String::new(),
                    name: node.name.clone(),
                },
            },
        }
    }
}

/// The kinds of objects a source delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Service,
    EndpointSlice,
    Node,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Service, Self::EndpointSlice, Self::Node];

    /// The resource, as in the API's URLs and in roles: `services`.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Service => "services",
            Self::EndpointSlice => "endpointslices",
            Self::Node => "nodes",
        }
    }

    /// Nodes live outside namespaces.
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

/// `Service default/web`, `Node worker-1`; names no API server would take are cut short.
impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind)?;
        if self.kind.is_namespaced() {
            write!(f, "{}/", shortened(&self.name.namespace))?;
        }
        match self.name.name.as_str() {
            "" => f.write_str("(no name)"),
            name => f.write_str(&shortened(name)),
        }
    }
}

/// A source as an operator names it: `kubernetes` or `dir:PATH`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SourceSpec {
    /// The API server, see [`api`].
    #[default]
    Kubernetes,
    /// A directory of manifests, see [`dir`].
    Dir(PathBuf),
}

impl fmt::Display for SourceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubernetes => f.write_str("kubernetes"),
            Self::Dir(path) => write!(f, "dir:{}", path.display()),
        }
    }
}

impl std::str::FromStr for SourceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "kubernetes" => Ok(Self::Kubernetes),
            Some(("dir", path)) if !path.is_empty() => Ok(Self::Dir(path.into())),
            _ => Err(format!(
                "{text:?} is not a source: write kubernetes or dir:PATH"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_named_by_scheme() {
        let dir = SourceSpec::Dir("/etc/node:lb".into());
        assert_eq!("dir:/etc/node:lb".parse(), Ok(dir));
        assert_eq!("kubernetes".parse(), Ok(SourceSpec::Kubernetes));
        for bad in ["", "dir:", "/etc/node-lb", "api:", "kubernetes:"] {
            let error = bad.parse::<SourceSpec>().unwrap_err();
            assert!(error.contains("write kubernetes or dir:PATH"), "{error}");
        }
    }

    #[test]
    fn references_fit_a_log_line() {
        let reference = |name: String| ObjectRef {
            kind: Kind::Service,
            name: ObjectName {
                namespace: "default".to_owned(),
                name,
            },
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
