//! The Kubernetes API server as a source. There is one reflector for Services, one for
//! EndpointSlices and one for this Node.
//!
//! TLS, credentials and kubeconfigs are kube-rs's client's; the connection below that is
//! `transport`'s and `dial`'s, one for everything where the server speaks HTTP/2. The reflectors
//! are ours, because what they promise is finer than `kube::runtime::watcher` offers: a 429 or 503
//! is waited out and the same request repeated, down to the same page of a list; what happens on
//! which failure is one table (`reflector::recovery`); lists are decoded while they arrive and
//! dropped item by item; objects that cannot be decoded cost nobody else anything; every request is
//! counted.
//!
//! Rules:
//! - A list is streamed (KEP-3157) if the server can do that. Otherwise it comes in pages from the
//!   server's cache.
//! - Objects that a new list does not contain are deleted once the list is complete, in the same
//!   batch as everything it contains, so there is no state in between. Objects of a version that is
//!   already known are not passed on.
//! - A watch that breaks is continued where it was. Only if its history is gone (410) is there a
//!   new list, and nodes spread these over some seconds.
//! - Until Services, EndpointSlices and the Node have been listed once, there is no
//!   [`super::Event::Synced`].
//! - The objects of connection admission are followed if they are asked for, but nobody waits for
//!   them: a cluster need not have their kinds.
//! - Namespaces, whose limits belong to these, likewise: the agent may lack the right to read them.
//! - ServiceCIDRs likewise: an old cluster does not have them.
//! - This node's pods are followed once a rule of theirs asks whose a pod is.

mod backoff;
mod body;
mod client;
mod connection;
mod dial;
mod event;
mod failure;
mod known;
mod reflector;
mod resource;
mod servers;
mod transport;
mod writer;

use std::sync::Arc;

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use lb_objects::Kind;

use super::{Batch, Event, Source, SourceFuture, health::SourceHealth};
use crate::{
    config::{ApiAccess, Config},
    metrics::ApiMetrics,
};
pub(crate) use backoff::{Backoff, up_to};
use client::ApiClient;
pub use connection::Connection;
pub use failure::{Failure, within};
use reflector::{Group, Reflector};
use resource::Resource;
pub use servers::{ApiServers, Way};
pub use writer::ApiWriter;

/// The objects of a cluster that matter to one node; see [the module](self).
pub struct ApiSource {
    connection: Arc<Connection>,
    resources: Vec<Resource>,
    /// This node's name.
    node: String,
    health: Arc<SourceHealth>,
    /// The state of the resources of connection admission, if they are followed.
    admission: Option<Arc<SourceHealth>>,
    /// The state of Namespaces, if they are followed.
    namespaces: Option<Arc<SourceHealth>>,
    /// The state of ServiceCIDRs, if they are followed.
    service_cidrs: Option<Arc<SourceHealth>>,
    pods: Option<PodWatch>,
    metrics: ApiMetrics,
}

/// The states of the resources that a cluster need not have, of each that the settings ask for.
#[derive(Debug)]
pub struct Optional {
    /// Has the resources of [`Kind::ADMISSION`].
    pub admission: Option<Arc<SourceHealth>>,
    /// Has the resource of [`Kind::Namespace`].
    pub namespaces: Option<Arc<SourceHealth>>,
    /// Has the resource of [`Kind::ServiceCidr`].
    pub service_cidrs: Option<Arc<SourceHealth>>,
}

impl Optional {
    /// Of a source with these settings.
    pub fn of(config: &Config) -> Self {
        let health = |kinds: &[Kind]| {
            let names = kinds.iter().map(|kind| kind.resource());
            Arc::new(SourceHealth::new(names))
        };
        let admission = config.follows_admission();
        let service_cidrs = config.follows_service_cidrs();
        Self {
            admission: admission.then(|| health(&Kind::ADMISSION)),
            namespaces: admission.then(|| health(&[Kind::Namespace])),
            service_cidrs: service_cidrs.then(|| health(&[Kind::ServiceCidr])),
        }
    }
}

/// How this node's pods are followed: not before somebody wants them.
#[derive(Clone, Debug)]
pub struct PodWatch {
    /// Has the resource [`Kind::Pod`].
    pub health: Arc<SourceHealth>,
    pub wanted: watch::Receiver<bool>,
}

impl ApiSource {
    /// Reads how to reach the API server, which need not be there yet.
    ///
    /// # Errors
    /// If the configuration is missing or makes no sense.
    pub async fn open(access: ApiAccess, node: &str, metrics: ApiMetrics) -> anyhow::Result<Self> {
        Self::open_with(access, Arc::default(), node, metrics).await
    }

    /// The same; what is known of the API server's addresses is kept in `servers`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_with(
        access: ApiAccess,
        servers: Arc<ApiServers>,
        node: &str,
        metrics: ApiMetrics,
    ) -> anyhow::Result<Self> {
        let connection = Connection::open(access, servers).await?;
        Ok(Self::with(connection, node, metrics))
    }

    /// A source that always uses this client.
    pub fn with_client(client: kube::Client, node: &str, metrics: ApiMetrics) -> Self {
        Self::with(Connection::of(client), node, metrics)
    }

    fn with(connection: Connection, node: &str, metrics: ApiMetrics) -> Self {
        let resources = vec![
            Resource::services(),
            Resource::endpoint_slices(),
            Resource::node(node),
        ];
        Self {
            connection: Arc::new(connection),
            health: Arc::new(SourceHealth::new(
                resources.iter().map(|resource| resource.name),
            )),
            resources,
            node: node.to_owned(),
            admission: None,
            namespaces: None,
            service_cidrs: None,
            pods: None,
            metrics,
        }
    }

    /// Also follows the objects of connection admission, and reports their state to `health`, which
    /// has the resources of [`Kind::ADMISSION`].
    #[must_use]
    pub fn following_admission(self, health: Option<Arc<SourceHealth>>) -> Self {
        Self {
            admission: health,
            ..self
        }
    }

    /// Also follows Namespaces, and reports their state to `health`, which has the resource of
    /// [`Kind::Namespace`].
    #[must_use]
    pub fn following_namespaces(self, health: Option<Arc<SourceHealth>>) -> Self {
        Self {
            namespaces: health,
            ..self
        }
    }

    /// Also follows ServiceCIDRs, and reports their state to `health`, which has the resource of
    /// [`Kind::ServiceCidr`].
    #[must_use]
    pub fn following_service_cidrs(self, health: Option<Arc<SourceHealth>>) -> Self {
        Self {
            service_cidrs: health,
            ..self
        }
    }

    /// Also follows these.
    #[must_use]
    pub fn following(self, optional: &Optional) -> Self {
        self.following_admission(optional.admission.clone())
            .following_namespaces(optional.namespaces.clone())
            .following_service_cidrs(optional.service_cidrs.clone())
    }

    /// Also follows this node's pods, once they are wanted.
    #[must_use]
    pub fn following_pods(self, pods: Option<PodWatch>) -> Self {
        Self { pods, ..self }
    }

    /// Reports the state of each resource to `health`.
    #[must_use]
    pub fn reporting_to(self, health: Arc<SourceHealth>) -> Self {
        Self { health, ..self }
    }

    /// The state of each resource.
    pub fn health(&self) -> Arc<SourceHealth> {
        self.health.clone()
    }

    /// A writer of objects over the same connection.
    pub fn writer(&self) -> ApiWriter {
        ApiWriter::new(self.connection.clone(), self.metrics.clone())
    }
}

impl Source for ApiSource {
    fn run(self: Box<Self>, events: mpsc::Sender<Batch>) -> SourceFuture {
        Box::pin(async move {
            let mut reflectors = JoinSet::new();
            let group = Group {
                health: self.health,
                complete: Event::Synced,
            };
            let needed = self.resources.into_iter();
            let needed = needed.map(|resource| (resource, group.clone()));
            let admission = self.admission.into_iter().flat_map(|health| {
                let group = Group {
                    health,
                    complete: Event::AdmissionSynced,
                };
                Kind::ADMISSION.map(|kind| (Resource::of_admission(kind), group.clone()))
            });
            let namespaces = self.namespaces.into_iter().map(|health| {
                let complete = Event::NamespacesSynced;
                (Resource::namespaces(), Group { health, complete })
            });
            let service_cidrs = self.service_cidrs.into_iter().map(|health| {
                let complete = Event::ServiceCidrsSynced;
                (Resource::service_cidrs(), Group { health, complete })
            });
            let reflector = |resource, group| {
                let connection = self.connection.clone();
                let client = ApiClient::new(connection, resource, self.metrics.clone());
                Reflector::new(client, group, events.clone())
            };
            let others = admission.chain(namespaces).chain(service_cidrs);
            for (resource, group) in needed.chain(others) {
                reflectors.spawn(reflector(resource, group).run());
            }
            if let Some(PodWatch { health, mut wanted }) = self.pods {
                let group = Group {
                    health,
                    complete: Event::PodsSynced,
                };
                let reflector = reflector(Resource::pods(&self.node), group);
                reflectors.spawn(async move {
                    if wanted.wait_for(|is_wanted| *is_wanted).await.is_err() {
                        // Whoever could want them is gone.
                        std::future::pending().await
                    }
                    reflector.run().await;
                });
            }
            tokio::select! {
                () = events.closed() => Ok(()),
                () = self.connection.find_servers() => Ok(()),
                // A reflector ends when the receiver is gone, or by a panic.
                Some(ended) = reflectors.join_next() => Ok(ended?),
            }
        })
    }
}
