//! `/trace`: what the data plane decides about live packets, as it does.

use futures_util::stream;
use hyper::{Method, StatusCode};
use tokio::sync::{mpsc, oneshot};

use super::line;
use crate::{
    http::{Body, Request, Response, error_status, query_value, response},
    trace::{Ask, Event},
};

/// The path of traces.
pub const TRACE: &str = "/trace";

/// Room for events besides packets and quiet seconds: start, end, and what was cut off before.
const ENDS: usize = 16;

/// A trace that somebody asks for. It ends when `events` has no reader any more.
pub struct TraceRequest {
    pub ask: Ask,
    /// Has room for all there can be: one for each packet, and one a second.
    pub events: mpsc::Sender<Event>,
    pub started: oneshot::Sender<Result<(), Refusal>>,
}

/// Why there is no trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is one already.
    Busy,
    /// It asks for what cannot be.
    Bad(String),
    /// The kernel does not take the programs.
    Failed(String),
}

/// Starts a trace: an [`Event`] a line until it ends, or the client goes.
pub async fn start(request: &Request, agent: &mpsc::Sender<TraceRequest>) -> Response {
    if *request.method() != Method::GET {
        let code = StatusCode::METHOD_NOT_ALLOWED;
        return error_status(code, "MethodNotAllowed", "a trace is read with GET");
    }
    let value = |name: &str| Some(query_value(request.uri(), name)?.into_owned());
    let ask = match Ask::from_query(value) {
        Ok(ask) => ask,
        Err(error) => return error_status(StatusCode::BAD_REQUEST, "BadRequest", error),
    };
    let room = ask.limit as usize + ask.duration.as_secs() as usize + ENDS;
    let (events, told) = mpsc::channel(room);
    let (started, answer) = oneshot::channel();
    let asked = TraceRequest {
        ask,
        events,
        started,
    };
    let sent = agent.send(asked).await.is_ok();
    match answer.await {
        Ok(Ok(())) if sent => {}
        Ok(Err(refusal)) => return refused(refusal),
        _ => {
            let code = StatusCode::SERVICE_UNAVAILABLE;
            return error_status(code, "ServiceUnavailable", "the agent is stopping");
        }
    }
    let lines = stream::unfold(told, async |mut told| {
        let event = told.recv().await?;
        Some((line(&event), told))
    });
    response(
        StatusCode::OK,
        "application/json;stream=watch",
        Body::stream(lines),
    )
}

fn refused(refusal: Refusal) -> Response {
    match refusal {
        Refusal::Busy => error_status(
            StatusCode::CONFLICT,
            "Conflict",
            "packets are being traced already, and a node has one trace at a time",
        ),
        Refusal::Bad(error) => error_status(StatusCode::BAD_REQUEST, "BadRequest", error),
        Refusal::Failed(error) => {
            error_status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", error)
        }
    }
}
