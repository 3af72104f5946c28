//! Admission's configuration as people write it: `PriorityLevel` and `FlowSchema` objects, shaped
//! like `flowcontrol.apiserver.k8s.io/v1`.
//!
//! The steps for an object: [`manifest`] reads it, [`defaults`] fills in what it leaves out, and
//! [`validate`] turns it into a [`Level`](super::level::Level) or a
//! [`Schema`](super::schema::Schema), or lists everything that is wrong with it.

use std::{borrow::Cow, fmt};

pub mod crd;
pub mod defaults;
pub mod finding;
pub mod flow_schema;
pub mod manifest;
pub mod namespace;
pub mod priority_level;
pub mod rule;
pub mod status;
pub mod validate;
mod wire;

pub use self::{
    finding::{Finding, Path},
    flow_schema::FlowSchemaSpec,
    manifest::{Document, Manifest},
    namespace::NamespaceSpec,
    priority_level::PriorityLevelSpec,
};

/// The API group of the objects.
pub const GROUP: &str = "node-lb.io";
/// The version of the API group.
pub const VERSION: &str = "v1alpha1";

/// An object: its name and what it asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    pub name: String,
    pub spec: Spec,
}

/// The specification of an object, as written.
#[derive(Clone, Debug, PartialEq)]
pub enum Spec {
    PriorityLevel(PriorityLevelSpec),
    FlowSchema(Box<FlowSchemaSpec>),
    Namespace(NamespaceSpec),
}

/// The kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    PriorityLevel,
    FlowSchema,
    /// Kubernetes' own. Only one with a [limit](namespace) matters.
    Namespace,
}

/// Identity of an object. No kind has a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    pub kind: Kind,
    pub name: String,
}

impl Object {
    /// What identifies the object.
    pub fn reference(&self) -> ObjectRef {
        ObjectRef {
            kind: match self.spec {
                Spec::PriorityLevel(_) => Kind::PriorityLevel,
                Spec::FlowSchema(_) => Kind::FlowSchema,
                Spec::Namespace(_) => Kind::Namespace,
            },
            name: self.name.clone(),
        }
    }
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::PriorityLevel, Self::FlowSchema, Self::Namespace];
    /// The kinds of [`GROUP`].
    pub const OWN: [Self; 2] = [Self::PriorityLevel, Self::FlowSchema];

    /// As in an object's `kind`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PriorityLevel => "PriorityLevel",
            Self::FlowSchema => "FlowSchema",
            Self::Namespace => "Namespace",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `FlowSchema/probes`.
impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, shortened(&self.name))
    }
}

/// Cuts names that are longer than an API server accepts.
fn shortened(name: &str) -> Cow<'_, str> {
    match name {
        "" => "(no name)".into(),
        name => lb_objects::shortened(name),
    }
}
