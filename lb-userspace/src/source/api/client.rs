//! Single requests: they have a deadline and are counted, and every answer that cannot be used
//! becomes a [`Failure`].

use std::{future::ready, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::{header::ACCEPT, http};
use kube::client::Body;
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    connection::{Connection, Generation},
    failure::Failure,
    resource::{Request, Resource},
};
use crate::metrics::{ApiMetrics, ApiRequest};

/// How long it may take until an answer begins.
pub const ANSWER_TIME: Duration = Duration::from_secs(30);
/// The most bytes that are read of an error's text.
const MAX_ERROR: usize = 64 << 10;

/// Sends the requests of one resource.
pub struct ApiClient {
    connection: Arc<Connection>,
    pub resource: Resource,
    pub metrics: ApiMetrics,
}

/// The body of an answer with a 2xx status.
pub struct Answer {
    body: Body,
    metrics: ApiMetrics,
    resource: &'static str,
}

impl ApiClient {
    pub fn new(connection: Arc<Connection>, resource: Resource, metrics: ApiMetrics) -> Self {
        Self {
            connection,
            resource,
            metrics,
        }
    }

    /// Sends a request. Returns when its answer begins.
    ///
    /// # Errors
    /// As [`exchange`].
    pub async fn get(&self, request: &Request<'_>) -> Result<Answer, Failure> {
        let uri = self.resource.uri(request);
        let sent = || {
            http::Request::get(&uri)
                .header(ACCEPT, "application/json")
                .body(Body::empty())
        };
        let about = (self.resource.name, request.verb());
        exchange(&self.connection, &self.metrics, about, sent, |body| {
            ready(Answer {
                body,
                metrics: self.metrics.clone(),
                resource: self.resource.name,
            })
        })
        .await
    }
}

/// Sends a request with this verb about a resource, and counts it. Returns what `read` makes of the
/// answer's body.
///
/// # Errors
/// If there is nothing from `read` within [`ANSWER_TIME`], or if the answer is not 2xx. After those
/// that other credentials or another address may mend, the configuration is read again; if it has
/// changed, the request is sent once more at once.
pub async fn exchange<T, R: Future<Output = T>>(
    connection: &Connection,
    metrics: &ApiMetrics,
    about: (&str, &str),
    request: impl Fn() -> http::Result<http::Request<Body>>,
    read: impl Fn(Body) -> R,
) -> Result<T, Failure> {
    let generation = connection.current();
    let failure = match attempt(&generation, metrics, about, request(), &read).await {
        Err(failure) if failure.asks_for_new_configuration() => failure,
        answer => return answer,
    };
    match connection.renew(&generation).await {
        Ok(false) => Err(failure),
        Ok(true) => attempt(&connection.current(), metrics, about, request(), read).await,
        Err(error) => Err(Failure::Unreachable(format!("{failure}; {error:#}"))),
    }
}

async fn attempt<T, R: Future<Output = T>>(
    generation: &Generation,
    metrics: &ApiMetrics,
    (resource, verb): (&str, &str),
    request: http::Result<http::Request<Body>>,
    read: impl Fn(Body) -> R,
) -> Result<T, Failure> {
    let request = request.map_err(|error| Failure::of_connection(&error))?;
    let method = request.method().clone();
    let start = Instant::now();
    let sent = timeout(ANSWER_TIME, async {
        let (code, body) = send(generation, request).await?;
        let answer = match body {
            Ok(body) => Ok(read(body).await),
            Err(failure) => Err(failure),
        };
        Ok((code, answer))
    });
    let (code, answer) = match sent.await {
        Ok(Ok((code, answer))) => (Some(code), answer),
        Ok(Err(failure)) => (None, Err(failure)),
        Err(_) => (None, Err(Failure::TimedOut(ANSWER_TIME))),
    };
    let about = ApiRequest {
        host: &generation.host,
        method: &method,
        resource,
        verb,
    };
    metrics.request(about, code, start.elapsed());
    answer
}

/// Sends a request. Returns the code of its answer, and the body if the code is 2xx.
async fn send(
    generation: &Generation,
    request: http::Request<Body>,
) -> Result<(u16, Result<Body, Failure>), Failure> {
    let answer = generation.client.send(request).await;
    let (head, body) = answer.map_err(of_client)?.into_parts();
    let code = head.status.as_u16();
    if head.status.is_success() {
        return Ok((code, Ok(body)));
    }
    // If the text does not arrive, the code says enough.
    let text = Limited::new(body, MAX_ERROR).collect().await;
    let text = text.map(|text| text.to_bytes()).unwrap_or_default();
    let failure = Failure::of_answer(head.status, &head.headers, &text);
    Ok((code, Err(failure)))
}

/// An error of kube's client, in our words.
fn of_client(error: kube::Error) -> Failure {
    match error {
        kube::Error::Service(error) => Failure::of_connection(&*error),
        kube::Error::HyperError(error) => Failure::of_connection(&error),
        error => Failure::of_connection(&error),
    }
}

impl Answer {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// If the connection breaks, or nothing comes until `deadline`. The error then says that the
    /// answer was waited for during `time`.
    pub async fn next(
        &mut self,
        deadline: Instant,
        time: Duration,
    ) -> Result<Option<Bytes>, Failure> {
        loop {
            let frame = timeout_at(deadline, self.body.frame()).await;
            match frame.map_err(|_| Failure::TimedOut(time))? {
                None => return Ok(None),
                Some(Err(error)) => return Err(of_client(error)),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.metrics.received(self.resource, bytes.len());
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }
}
