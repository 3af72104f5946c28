//! Where Services, EndpointSlices and Nodes come from: a [`Source`] sends [`Event`]s. Nothing after
//! the store knows which source it was.

pub mod api;
pub mod dir;
pub mod health;

use std::{
    fmt,
    future::Future,
    path::PathBuf,
    pin::Pin,
    time::{Instant, SystemTime},
};

use tokio::sync::mpsc;

use lb_objects::{Object, ObjectName, ObjectRef, Problem};

/// Knows the objects of the cluster, and follows their changes.
pub trait Source: Send {
    /// Sends every object, then [`Event::Synced`] once, then each change, until the receiver is
    /// gone. Events that belong together are in one batch; batches arrive in order.
    ///
    /// A source that lists again (after a lost watch, or when a directory is back) applies
    /// everything it finds and deletes what is missing, in one batch. Applying an unchanged object
    /// costs nothing further on.
    ///
    /// # Errors
    /// Only if no retry can help. What was delivered stays in force.
    fn run(self: Box<Self>, events: mpsc::Sender<Batch>) -> SourceFuture;
}

/// A running [`Source`].
pub type SourceFuture = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// Events that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    pub events: Vec<Event>,
    /// When the last of them reached this process. The time until they are in the maps is counted
    /// from here.
    pub received: Instant,
}

/// What a source tells the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The object exists, in this form.
    Apply(Object),
    /// The object is gone, or no longer meant for a service proxy.
    Delete(ObjectRef),
    /// The complete list of problems at one place. An empty list means that they are solved.
    Problems {
        /// The place: a file, or an object of the API.
        origin: String,
        problems: Vec<Problem>,
    },
    /// When the change happened that this slice, just applied, reports. Only for changes since this
    /// source started.
    EndpointsChanged { slice: ObjectName, at: SystemTime },
    /// Everything that existed at the start has been applied.
    Synced,
}

/// A source in the form of the flag: `kubernetes` or `dir:PATH`.
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
}
