//! The server of one Service in one family: its listeners and its answer.

use std::{
    io, mem,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper::{
    StatusCode,
    header::{HeaderName, HeaderValue},
};
use lb_objects::{IpFamily, ObjectName};
use serde::Serialize;
use serde_json::ser::PrettyFormatter;
use tokio::task::JoinHandle;

use super::{Options, Problem, ServiceHealth};
use crate::{
    health::proxy::ProxyHealth,
    http::{Class, Handler, Request, Response, Server, json},
};

/// With this header, load balancers can weight nodes by their number of endpoints.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The server of one Service in one family, open or not.
pub(super) struct ServiceServer {
    family: IpFamily,
    port: u16,
    answer: Arc<Answer>,
    listeners: Vec<Listener>,
    /// Why it does not listen where it should.
    problem: Option<Problem>,
}

impl ServiceServer {
    /// Not open yet.
    pub(super) fn new(wanted: ServiceHealth, health: Arc<ProxyHealth>) -> Self {
        Self {
            family: wanted.family,
            port: wanted.port,
            answer: Arc::new(Answer {
                service: wanted.service,
                local_endpoints: AtomicUsize::new(wanted.local_endpoints),
                health,
            }),
            listeners: Vec::new(),
            problem: None,
        }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn answer_with(&self, local_endpoints: usize) {
        let current = &self.answer.local_endpoints;
        current.store(local_endpoints, Ordering::Relaxed);
    }

    /// Listens on the addresses of its family, and on no others; tries to open those that are not
    /// open. Says so in the log if that works or fails for the first time.
    pub(super) async fn listen(&mut self, options: &Options) {
        let wanted = options.addresses.of(self.family);
        let listeners = mem::take(&mut self.listeners).into_iter();
        let (kept, unwanted) = listeners.partition(|open| wanted.contains(&open.address.ip()));
        self.listeners = kept;
        close(unwanted).await;

        match self.open_missing(options).await {
            Ok(()) => {
                if self.problem.take().is_some() {
                    tracing::info!(
                        "Service {}: its healthCheckNodePort {} is now open",
                        self.answer.service,
                        self.port,
                    );
                }
            }
            Err(problem) => {
                if self.problem.is_none() {
                    tracing::error!("{problem}");
                }
                self.problem = Some(problem);
            }
        }
    }

    /// Closes the port and cuts connections. When this returns, the port is free.
    pub(super) async fn close(self) {
        close(self.listeners).await;
    }

    /// Leaves the sockets to another process; see [`Server::leave`], of which these are the tasks.
    pub(super) async fn leave(self, grace: Duration) -> Vec<JoinHandle<()>> {
        let mut leaving = Vec::new();
        for listener in self.listeners {
            leaving.push(listener.server.leave(grace).await);
        }
        leaving
    }

    /// Why it is not open, or not on all addresses.
    pub(super) fn problem(&self) -> Option<&Problem> {
        self.problem.as_ref()
    }

    /// The addresses it listens on.
    pub(super) fn listening(&self) -> impl Iterator<Item = SocketAddr> {
        self.listeners.iter().map(|listener| listener.address)
    }

    /// Opens what is not open. A new server opens on all of its addresses or on none. One that is
    /// open stays open if it cannot listen on an address that comes to the node later.
    async fn open_missing(&mut self, options: &Options) -> Result<(), Problem> {
        let is_new = self.listeners.is_empty();
        let mut outcome = Ok(());
        for ip in options.addresses.of(self.family) {
            if self.listening().any(|open| open.ip() == *ip) {
                continue;
            }
            let address = SocketAddr::new(*ip, self.port);
            match self.open(address, options) {
                Ok(server) => self.listeners.push(Listener { address, server }),
                Err(error) => {
                    outcome = Err(Problem {
                        service: self.answer.service.clone(),
                        address,
                        error: error.to_string(),
                    });
                    if is_new {
                        close(mem::take(&mut self.listeners)).await;
                        break;
                    }
                }
            }
        }
        outcome
    }

    fn open(&self, address: SocketAddr, options: &Options) -> io::Result<Server> {
        let socket = options.bind.bind(address)?;
        let handler = Answering(self.answer.clone());
        let stack = &options.stack;
        stack.serve(socket, "service-health", handler, options.limits)
    }
}

struct Listener {
    /// The address asked for; a [`crate::http::Bind`] may have chosen another one.
    address: SocketAddr,
    server: Server,
}

async fn close(listeners: Vec<Listener>) {
    for listener in listeners {
        listener.server.close(Duration::ZERO).await;
    }
}

/// The answer of one server, whatever the path and the method.
struct Answer {
    service: ObjectName,
    local_endpoints: AtomicUsize,
    health: Arc<ProxyHealth>,
}

/// The answer as one listener's handler.
struct Answering(Arc<Answer>);

impl Handler for Answering {
    fn class(&self, _: &Request) -> Class {
        Class::Probe
    }

    async fn call(&self, _: Request) -> Response {
        let Answer {
            service,
            local_endpoints,
            health,
        } = &*self.0;
        let local_endpoints = local_endpoints.load(Ordering::Relaxed);
        let service_proxy_healthy = health.is_healthy();
        let status = match local_endpoints > 0 && service_proxy_healthy {
            true => StatusCode::OK,
            false => StatusCode::SERVICE_UNAVAILABLE,
        };
        // An unhealthy agent still tells how many endpoints there are.
        let body = Body {
            service: NamespacedName {
                namespace: &service.namespace,
                name: &service.name,
            },
            local_endpoints,
            service_proxy_healthy,
        };
        let mut response = json(status, body.to_tab_indented());
        let headers = response.headers_mut();
        headers.insert(WEIGHT, HeaderValue::from(local_endpoints));
        response
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    service: NamespacedName<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct NamespacedName<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl Body<'_> {
    /// The layout that kube-proxy prints, byte for byte.
    fn to_tab_indented(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let formatter = PrettyFormatter::with_indent(b"\t");
        self.serialize(&mut serde_json::Serializer::with_formatter(
            &mut text, formatter,
        ))
        .expect("strings and numbers always serialize");
        text
    }
}
