//! The agent's only HTTP stack. Every server (health checks, metrics, local API) is a [`Handler`]
//! behind a [`Server`], with the same [`Limits`] and inside the same layers ([`Stack`]). A request
//! passes the layers in this order:
//!
//! | Layer | What it does |
//! |---|---|
//! | [`Deadline`] | ends a request at its deadline, whatever its handler does |
//! | [`InFlight`] | refuses what is more than the agent wants to do at a time |
//! | [`WhenReady`] | refuses what needs the whole cluster until the agent knows it |
//!
//! Their connections are parts of one [`ConnectionBudget`].

use std::future::Future;

use http_body_util::Limited;
use hyper::body::Incoming;

pub use self::{
    answer::{error_status, json, not_found, response, text, too_many_requests},
    body::Body,
    budget::{Closed, ConnectionBudget, Share},
    client::{get, open},
    deadline::Deadline,
    descriptors::raise_descriptor_limit,
    erased::AnyHandler,
    exchange::Exchange,
    inflight::{InFlight, Places},
    limits::Limits,
    listen::{Bind, bind, bind_all_families, bind_unix, bind_until_free},
    listeners::{Listeners, Listening},
    observer::{Observer, SharedObserver},
    post_timeout::{PostTimeout, Report},
    query::{has_flag, query_value, query_values},
    ready::{AskReady, Unready, WhenReady},
    running::{Running, run_blocking},
    server::{LocalServer, Server},
    stack::Stack,
};

mod answer;
mod body;
mod budget;
mod caller;
mod client;
mod connection;
mod deadline;
mod descriptors;
mod erased;
mod exchange;
mod inflight;
mod limits;
mod listen;
mod listeners;
mod observer;
mod post_timeout;
mod query;
mod ready;
mod running;
mod server;
mod stack;
mod stream;
mod timeout_parameter;

/// A request. Reading more of its body than [`Limits::body_bytes`] fails. Its extensions hold the
/// [`Exchange`] and, inside [`Deadline`], the [`Running`] of the request.
pub type Request = hyper::Request<Limited<Incoming>>;

/// A response.
pub type Response = hyper::Response<Body>;

/// How the layers treat a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Health and liveness: has a deadline, and is never refused.
    Probe,
    /// Has a deadline, and takes a place among the requests in flight.
    Bounded,
    /// Like [`Self::Bounded`], but needs the whole cluster: refused until the agent knows it.
    Wide,
    /// Lasts until one side ends it (watch, follow). It has no deadline, takes a place among the
    /// streams, and is refused until the agent knows the whole cluster.
    Stream,
}

/// Answers requests. An async function from [`Request`] to [`Response`] is a handler. A layer is a
/// handler too: a type that holds a handler and decides whether and how to call it.
pub trait Handler: Send + Sync + 'static {
    /// How the layers treat `request`.
    fn class(&self, request: &Request) -> Class {
        let _ = request;
        Class::Bounded
    }

    /// Answers `request`. The future is dropped at the request's deadline, wherever it stands, and
    /// when the client disconnects.
    fn call(&self, request: Request) -> impl Future<Output = Response> + Send;
}

impl<F, R> Handler for F
where
    F: Fn(Request) -> R + Send + Sync + 'static,
    R: Future<Output = Response> + Send,
{
    fn call(&self, request: Request) -> impl Future<Output = Response> + Send {
        self(request)
    }
}
