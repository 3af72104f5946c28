//! The local API, on a Unix socket that only root may use: what the agent has programmed, the flows
//! in the kernel, the settings, and the agent's state.

pub mod connections;
pub mod explain;
pub mod flows;
pub mod queues;
pub mod services;
pub mod trace;
pub mod traffic;

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use bytes::Bytes;
use hyper::{Method, StatusCode, Uri, header::ALLOW, header::HeaderValue};
use lb_objects::ObjectName;
use tokio::sync::mpsc;

use self::{
    explain::Explain,
    flows::FlowSource,
    services::SERVICES,
    trace::{TRACE, TraceRequest},
    traffic::{TRAFFIC, TrafficSource},
};
use super::{attention, catalog::Catalog, history::History, page, status::Status};
use crate::{
    health::{initialization::Initialization, readiness::Readiness},
    http::{
        Class, Handler, Request, Response, error_status, has_flag, json, not_found, query_value,
        run_blocking,
    },
    map_writer::Numbered,
    waiting::Line,
};

/// A stream is never silent for longer than this. A client that has vanished is noticed only by
/// writing to it.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The most flows, or queues, in one answer.
const MOST: usize = 10_000;

/// The path of flows.
const FLOWS: &str = "/flows";
/// The path of those who hold seats.
const CONNECTIONS: &str = "/connections";
/// The path of queues for seats.
const QUEUES: &str = "/queues";
/// The path of explanations.
pub const EXPLAIN: &str = "/explain";
/// The path of the agent's state.
const STATUS: &str = "/status";
/// The path of the last hour.
const HISTORY: &str = "/history";

/// What the status page asks for besides readiness, and what is below that.
pub const PAGE_PATHS: [&str; 8] = [
    STATUS,
    HISTORY,
    TRAFFIC,
    SERVICES,
    FLOWS,
    CONNECTIONS,
    QUEUES,
    EXPLAIN,
];

/// Answers local commands.
pub struct LocalApi {
    pub catalog: Arc<Catalog>,
    pub flows: Arc<dyn FlowSource>,
    pub traffic: Arc<dyn TrafficSource>,
    pub initialization: Arc<Initialization>,
    pub readiness: Arc<Readiness>,
    pub history: Arc<History>,
    /// `/configz`: the settings in force, a JSON object.
    pub configz: Bytes,
    /// `/status`, which takes time and waits for nobody.
    pub status: Arc<dyn Fn() -> Status + Send + Sync>,
    /// `/explain`.
    pub explain: Explain,
    /// The flow schemas and priority levels in force.
    pub numbered: Arc<Numbered>,
    /// Those who wait for seats, if connection admission is on.
    pub line: Option<Arc<Line>>,
    /// Has the agent trace packets.
    pub trace: mpsc::Sender<TraceRequest>,
}

impl LocalApi {
    /// Whether the answer goes on until one side ends it.
    pub fn is_stream(uri: &Uri) -> bool {
        match uri.path() {
            SERVICES => has_flag(uri, "watch"),
            FLOWS => has_flag(uri, "follow"),
            path => path == TRACE,
        }
    }

    fn history(&self) -> Response {
        written(self.history.json())
    }

    async fn status(&self, request: &Request) -> Response {
        let status = self.status.clone();
        let readiness = self.readiness.clone();
        let collect = move || Status {
            not_ready: readiness.problems(),
            ..status()
        };
        match run_blocking(request, collect).await {
            Ok(status) => object(&attention::Report::of(status)),
            Err(error) => error_status(
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalError",
                format_args!("the status was not collected: {error}"),
            ),
        }
    }
}

impl Handler for LocalApi {
    fn class(&self, request: &Request) -> Class {
        let uri = request.uri();
        match uri.path() {
            _ if Self::is_stream(uri) => Class::Stream,
            SERVICES if matches!(limit(uri), Ok(None)) => Class::Wide,
            // Without all Services, the answer would be wrong.
            EXPLAIN => Class::Wide,
            path if Readiness::serves(path) => Class::Probe,
            _ => Class::Bounded,
        }
    }

    async fn call(&self, request: Request) -> Response {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let code = StatusCode::METHOD_NOT_ALLOWED;
            let mut refusal = error_status(code, "MethodNotAllowed", "this API can only be read");
            let allowed = HeaderValue::from_static("GET, HEAD");
            refusal.headers_mut().insert(ALLOW, allowed);
            return refusal;
        }
        let uri = request.uri();
        match uri.path() {
            STATUS => self.status(&request).await,
            HISTORY => self.history(),
            "/configz" => json(StatusCode::OK, self.configz.clone()),
            SERVICES if has_flag(uri, "watch") => services::watch(&self.catalog),
            SERVICES => services::list(&self.catalog, uri),
            FLOWS if has_flag(uri, "follow") => {
                flows::follow(self.flows.clone(), self.catalog.clone())
            }
            FLOWS => flows::list(&request, self.flows.clone(), self.catalog.clone()).await,
            CONNECTIONS => {
                let (flows, catalog) = (self.flows.clone(), self.catalog.clone());
                connections::list(&request, flows, catalog, self.numbered.clone()).await
            }
            QUEUES => queues::list(&request, self.line.clone(), self.numbered.clone()).await,
            EXPLAIN => explain::explain(&request, self.explain.clone()).await,
            TRACE => trace::start(&request, &self.trace).await,
            TRAFFIC => traffic::all(&request, self.traffic.clone()).await,
            path if Readiness::serves(path) => self.readiness.answer(uri),
            path => {
                if let Some(name) = service_below(SERVICES, path) {
                    services::get(&self.catalog, &self.initialization, &name)
                } else if let Some(name) = service_below(TRAFFIC, path) {
                    traffic::endpoints(&*self.traffic, &name)
                } else {
                    page::file(path).unwrap_or_else(not_found)
                }
            }
        }
    }
}

/// The local API while an agent is in charge, for more servers than one.
#[derive(Clone, Default)]
pub struct SharedApi(Arc<RwLock<Option<Arc<LocalApi>>>>);

impl SharedApi {
    /// From now on this one answers; `None`: nobody.
    pub fn set(&self, api: Option<LocalApi>) {
        let mut shared = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *shared = api.map(Arc::new);
    }

    fn get(&self) -> Option<Arc<LocalApi>> {
        let api = self.0.read().unwrap_or_else(PoisonError::into_inner);
        api.clone()
    }
}

impl Handler for SharedApi {
    fn class(&self, request: &Request) -> Class {
        self.get().map_or(Class::Bounded, |api| api.class(request))
    }

    async fn call(&self, request: Request) -> Response {
        match self.get() {
            Some(api) => api.call(request).await,
            None => error_status(
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "this agent is not in charge of the node now",
            ),
        }
    }
}

/// The Service that a path names below another one: `PARENT/NAMESPACE/NAME`.
fn service_below(parent: &str, path: &str) -> Option<ObjectName> {
    ObjectName::parse(path.strip_prefix(parent)?.strip_prefix('/')?)
}

/// A JSON object as the whole answer.
fn object(value: &impl serde::Serialize) -> Response {
    written(serde_json::to_vec(value))
}

/// The same once it is written.
fn written(object: serde_json::Result<Vec<u8>>) -> Response {
    match object {
        Ok(body) => json(StatusCode::OK, body),
        Err(error) => error_status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", error),
    }
}

/// The parameter `?limit=`: without it, or with zero, there is no limit.
fn limit(uri: &Uri) -> Result<Option<usize>, Box<Response>> {
    let Some(text) = query_value(uri, "limit").filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    match text.parse() {
        Ok(limit) => Ok(Some(limit).filter(|limit| *limit != 0)),
        Err(_) => {
            let message = "limit is not a number of objects";
            Err(Box::new(error_status(
                StatusCode::BAD_REQUEST,
                "BadRequest",
                message,
            )))
        }
    }
}

/// At most `?limit=` objects as the whole answer, `usual` without it. `read` reads so many from the
/// kernel's maps; it may block.
async fn page<T: serde::Serialize + Send + 'static>(
    request: &Request,
    usual: usize,
    read: impl FnOnce(usize) -> anyhow::Result<T> + Send + 'static,
) -> Response {
    let limit = match limit(request.uri()) {
        Ok(limit) => limit.unwrap_or(usual).min(MOST),
        Err(refusal) => return *refusal,
    };
    match from_maps(request, move || read(limit)).await {
        Ok(page) => object(&page),
        Err(refusal) => *refusal,
    }
}

/// What `read` reads from the kernel's maps; it may block. If it fails, the answer that says so.
async fn from_maps<T: Send + 'static>(
    request: &Request,
    read: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> Result<T, Box<Response>> {
    let read = run_blocking(request, read).await;
    let read = read.map_err(anyhow::Error::from).and_then(|read| read);
    read.map_err(|error| {
        Box::new(error_status(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            format_args!("cannot read the maps: {error:#}"),
        ))
    })
}

/// One line of a stream.
fn line(value: &impl serde::Serialize) -> Bytes {
    let mut text = serde_json::to_vec(value).unwrap_or_else(|error| {
        // Strings, numbers and lists of them always serialise.
        tracing::error!("cannot write an event: {error}");
        Vec::new()
    });
    text.push(b'\n');
    text.into()
}
