//! healthCheckNodePort servers: they tell external load balancers, per Service and family, whether
//! this node has ready endpoints. They exist for Services with `externalTrafficPolicy: Local`.

use std::{
    collections::BTreeMap,
    fmt, mem,
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use lb_objects::{IpFamily, ObjectName};
use prometheus::IntGauge;
use tokio::{
    sync::Mutex,
    task::{AbortHandle, JoinHandle},
};

use self::server::ServiceServer;
use super::{addresses::ListenAddresses, proxy::ProxyHealth};
use crate::{
    http::{Bind, Limits, Stack},
    metrics::Metrics,
};

mod server;

/// A server that should exist, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceHealth {
    pub service: ObjectName,
    pub family: IpFamily,
    /// The Service's healthCheckNodePort.
    pub port: u16,
    /// Distinct addresses of ready endpoints on this node, in this family.
    pub local_endpoints: usize,
}

/// A server that should exist but does not. Its Service has no health check in this family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub service: ObjectName,
    pub address: SocketAddr,
    /// The system's error.
    pub error: String,
}

impl Problem {
    /// Reason and action of the Event that kube-proxy writes on the Service for this.
    pub const EVENT: (&str, &str) = ("FailedToStartServiceHealthcheck", "Listen");
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Service {}: cannot listen on {} for its healthCheckNodePort: {}; free the port on \
             this node or give the Service another one",
            self.service, self.address, self.error
        )
    }
}

/// How the servers listen and serve.
pub struct Options {
    pub addresses: ListenAddresses,
    pub limits: Limits,
    /// The layers around every answer.
    pub stack: Arc<Stack>,
    pub bind: Box<dyn Bind>,
    /// How often a server is tried again between syncs if its port was taken. Without this, a
    /// source that seldom changes would leave it closed.
    pub retry_interval: Duration,
}

impl Options {
    /// The default options for servers on `addresses`.
    pub fn new(addresses: ListenAddresses, stack: Arc<Stack>) -> Self {
        Self {
            addresses,
            limits: Limits::default(),
            bind: Box::new(stack.listeners().clone()),
            stack,
            retry_interval: Duration::from_secs(5),
        }
    }
}

/// All healthCheckNodePort servers of this node. Dropping it closes them.
pub struct ServiceHealthServers {
    servers: Arc<Mutex<Servers>>,
    retry: AbortHandle,
}

impl ServiceHealthServers {
    /// Starts without servers; needs a Tokio runtime. Every answer is 503 while `health` is
    /// unhealthy.
    pub fn new(options: Options, health: Arc<ProxyHealth>, metrics: &Metrics) -> Self {
        let retry_interval = options.retry_interval;
        let servers = Arc::new(Mutex::new(Servers {
            options,
            health,
            servers: BTreeMap::new(),
            listening: metrics.health_servers_listening.clone(),
            failed: metrics.health_servers_failed.clone(),
        }));
        let retry = tokio::spawn(retry(Arc::downgrade(&servers), retry_interval)).abort_handle();
        Self { servers, retry }
    }

    /// Makes the servers equal to `desired`: opens servers, closes them (which cuts connections),
    /// reopens those with another port, and sets what each one answers from now on. To be called
    /// after the kernel's maps have been written, so that no answer is ahead of the traffic.
    ///
    /// Returns the servers that could not be opened. They are tried again without another call; see
    /// [`Self::problems`] for the result.
    pub async fn sync(&self, desired: impl IntoIterator<Item = ServiceHealth>) -> Vec<Problem> {
        let desired = desired
            .into_iter()
            .map(|wanted| ((wanted.service.clone(), wanted.family), wanted))
            .collect();
        let mut servers = self.servers.lock().await;
        servers.sync(desired).await;
        servers.problems()
    }

    /// Has all servers listen on these addresses, from now on. Listeners on addresses that stay
    /// go on undisturbed.
    ///
    /// Returns what could not be opened, if the addresses are others than before; see
    /// [`Self::sync`].
    pub async fn listen_on(&self, addresses: ListenAddresses) -> Vec<Problem> {
        let mut servers = self.servers.lock().await;
        if servers.options.addresses == addresses {
            return Vec::new();
        }
        servers.options.addresses = addresses;
        servers.open_missing().await;
        servers.problems()
    }

    /// Has all servers leave their sockets to another process; see
    /// [`Server::leave`](crate::http::Server::leave), of which these are the tasks.
    pub async fn leave(&self, grace: Duration) -> Vec<JoinHandle<()>> {
        self.retry.abort();
        let mut servers = self.servers.lock().await;
        let mut leaving = Vec::new();
        for server in mem::take(&mut servers.servers).into_values() {
            leaving.extend(server.leave(grace).await);
        }
        leaving
    }

    /// The servers that are not open although they should be.
    pub async fn problems(&self) -> Vec<Problem> {
        self.servers.lock().await.problems()
    }

    /// The addresses on which the servers listen, in no particular order.
    pub async fn listening(&self) -> Vec<SocketAddr> {
        self.servers.lock().await.listening()
    }
}

impl Drop for ServiceHealthServers {
    fn drop(&mut self) {
        self.retry.abort();
    }
}

async fn retry(servers: Weak<Mutex<Servers>>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(servers) = servers.upgrade() else {
            return;
        };
        servers.lock().await.open_missing().await;
    }
}

/// As in kube-proxy, there is a server per Service and family: a probe over IPv6 is told of IPv6
/// endpoints, and a problem in one family does not affect the other.
type Key = (ObjectName, IpFamily);

struct Servers {
    options: Options,
    health: Arc<ProxyHealth>,
    servers: BTreeMap<Key, ServiceServer>,
    listening: IntGauge,
    failed: IntGauge,
}

impl Servers {
    async fn sync(&mut self, desired: BTreeMap<Key, ServiceHealth>) {
        // Close first, because a port may move from one Service to another.
        for (_, server) in self.take_unwanted(&desired) {
            server.close().await;
        }
        for (key, wanted) in desired {
            match self.servers.get(&key) {
                Some(server) => server.answer_with(wanted.local_endpoints),
                None => {
                    let server = ServiceServer::new(wanted, self.health.clone());
                    self.servers.insert(key, server);
                }
            }
        }
        self.open_missing().await;
    }

    /// Removes and returns the servers that are not in `desired`, or are there with another port.
    fn take_unwanted(
        &mut self,
        desired: &BTreeMap<Key, ServiceHealth>,
    ) -> BTreeMap<Key, ServiceServer> {
        let (wanted, unwanted) =
            mem::take(&mut self.servers)
                .into_iter()
                .partition(|(key, server)| {
                    let wanted = desired.get(key);
                    wanted.is_some_and(|wanted| wanted.port == server.port())
                });
        self.servers = wanted;
        unwanted
    }

    async fn open_missing(&mut self) {
        for server in self.servers.values_mut() {
            server.listen(&self.options).await;
        }
        let failed = self.problems().len();
        self.failed.set(failed as i64);
        self.listening.set((self.servers.len() - failed) as i64);
    }

    fn problems(&self) -> Vec<Problem> {
        let servers = self.servers.values();
        servers
            .filter_map(ServiceServer::problem)
            .cloned()
            .collect()
    }

    fn listening(&self) -> Vec<SocketAddr> {
        let servers = self.servers.values();
        servers.flat_map(ServiceServer::listening).collect()
    }
}
