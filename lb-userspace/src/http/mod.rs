//! The agent's one HTTP stack: every server it runs (health checks, metrics, local API) is a
//! [`Handler`] behind a [`Server`], under the same [`Limits`].

use std::{fmt, future::Future};

use bytes::Bytes;
use http_body_util::{Full, Limited};
use hyper::{
    StatusCode,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS},
};

pub use self::{
    listen::{Bind, SystemBind, bind, bind_all_families, bind_unix, bind_until_free},
    server::{Limits, LocalServer, Server},
    stream::WriteDeadline,
};

mod listen;
mod server;
mod stream;

/// A request; reading more of its body than [`Limits::body_bytes`] fails. Its extensions hold
/// the exchange's [`WriteDeadline`].
pub type Request = hyper::Request<Limited<Incoming>>;

/// A response, whole: nothing the agent says is long enough to be streamed.
pub type Response = hyper::Response<Full<Bytes>>;

/// Answers requests. An async function from [`Request`] to [`Response`] is a handler, and so is
/// a layer: a type that holds a handler and decides whether and how to call it.
pub trait Handler: Send + Sync + 'static {
    /// The future is dropped at the request's deadline, wherever it stands.
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

/// A JSON answer. `body` is sent as it is.
pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Response {
    response(status, "application/json", body)
}

/// A plain text answer, closed with a line feed as `curl` users like it.
pub fn text(status: StatusCode, message: impl fmt::Display) -> Response {
    response(status, "text/plain; charset=utf-8", format!("{message}\n"))
}

/// The answer for a path that does not exist here.
pub fn not_found() -> Response {
    text(StatusCode::NOT_FOUND, "404 page not found")
}

/// An answer of any content type, which browsers are told not to guess otherwise.
pub fn response(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
