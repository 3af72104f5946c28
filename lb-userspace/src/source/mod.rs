//! Where Services, EndpointSlices, Nodes and pods come from: a [`Source`] sends [`Event`]s. Nothing after
//! the store knows which source it was.

pub mod api;
pub mod dir;
pub mod health;

use std::{
    future::Future,
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
    /// The same of the objects of connection admission, which the rest does not wait for.
    AdmissionSynced,
    /// The same of Namespaces, if they are followed: some have limits.
    NamespacesSynced,
    /// The same of this node's pods, if they are followed by themselves.
    PodsSynced,
    /// The same of ServiceCIDRs, if they are followed by themselves.
    ServiceCidrsSynced,
}
