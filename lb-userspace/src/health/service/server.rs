//! The server of one Service in one family: its listeners and its answer.

use std::{
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
    state: State,
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
            state: State::Closed,
        }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn answer_with(&self, local_endpoints: usize) {
        let current = &self.answer.local_endpoints;
        current.store(local_endpoints, Ordering::Relaxed);
    }

    /// Tries to open. Logs success, and the first failure.
    pub(super) async fn open_if_closed(&mut self, options: &Options) {
        if matches!(self.state, State::Open(_)) {
            return;
        }
        let opened = self.open(options).await;
        match (&self.state, &opened) {
            (State::Closed, Err(problem)) => tracing::error!("{problem}"),
            (State::Failed(_), Ok(_)) => tracing::info!(
                "Service {}: its healthCheckNodePort {} is open at last",
                self.answer.service,
                self.port,
            ),
            _ => {}
        }
        self.state = opened.map_or_else(State::Failed, State::Open);
    }

    /// Closes the port and cuts connections. When this returns, the port is free.
    pub(super) async fn close(self) {
        if let State::Open(listeners) = self.state {
            close(listeners).await;
        }
    }

    /// Why it is not open.
    pub(super) fn problem(&self) -> Option<&Problem> {
        match &self.state {
            State::Failed(problem) => Some(problem),
            State::Closed | State::Open(_) => None,
        }
    }

    /// The addresses it listens on.
    pub(super) fn listening(&self) -> impl Iterator<Item = SocketAddr> {
        let listeners = match &self.state {
            State::Open(listeners) => listeners.as_slice(),
            State::Closed | State::Failed(_) => &[],
        };
        listeners.iter().map(|listener| listener.address)
    }

    /// Listens on all addresses or none.
    async fn open(&self, options: &Options) -> Result<Vec<Listener>, Problem> {
        let mut listeners = Vec::new();
        for ip in options.addresses.of(self.family) {
            let address = SocketAddr::new(*ip, self.port);
            let handler = options
                .stack
                .wrap("service-health", Answering(self.answer.clone()));
            let server = options.bind.bind(address).and_then(|socket| {
                let _runtime = options.stack.runtime().enter();
                Server::start(socket, handler, options.limits)
            });
            match server {
                Ok(server) => listeners.push(Listener { address, server }),
                Err(error) => {
                    close(listeners).await;
                    return Err(Problem {
                        service: self.answer.service.clone(),
                        address,
                        error: error.to_string(),
                    });
                }
            }
        }
        Ok(listeners)
    }
}

enum State {
    /// Not tried yet.
    Closed,
    Open(Vec<Listener>),
    Failed(Problem),
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
