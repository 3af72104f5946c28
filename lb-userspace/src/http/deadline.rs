//! Gives every request but streams a deadline, counted from its arrival (KEP-4460).

use std::{sync::Arc, time::Duration};

use hyper::StatusCode;
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use super::{
    Class, Exchange, Handler, PostTimeout, Request, Response, SharedObserver, error_status,
    post_timeout::Late, running::Running, timeout_parameter::requested_timeout,
};

/// Ends a request at its deadline, whatever its handler does. The deadline is `?timeout=`, at most
/// the server's maximum. The client gets a 504 or, if the answer has begun, is cut off.
///
/// The handler runs in a task of its own, so it delays nothing even if it blocks its thread. At the
/// deadline it is dropped where it next awaits. What cannot be stopped is on the [`PostTimeout`]
/// list until it ends.
pub struct Deadline<H> {
    handler: Arc<H>,
    /// The server's name, for metrics and logs.
    server: &'static str,
    maximum: Duration,
    observer: SharedObserver,
    post_timeout: Arc<PostTimeout>,
}

impl<H: Handler> Deadline<H> {
    /// No request to `handler` gets more time than `maximum`.
    pub fn new(
        handler: H,
        server: &'static str,
        maximum: Duration,
        observer: SharedObserver,
        post_timeout: Arc<PostTimeout>,
    ) -> Self {
        Self {
            handler: Arc::new(handler),
            server,
            maximum,
            observer,
            post_timeout,
        }
    }

    async fn call_until(
        &self,
        mut request: Request,
        exchange: Exchange,
        deadline: Instant,
    ) -> Response {
        let late = Late {
            server: self.server,
            method: request.method().clone(),
            uri: request.uri().clone(),
            arrival: exchange.arrival(),
            deadline,
        };
        let running = Running::of(&mut request);
        let (handler, of_task) = (self.handler.clone(), running.clone());
        let mut task = AbortOnDrop(tokio::spawn(async move {
            let response = handler.call(request).await;
            drop(of_task);
            response
        }));
        match timeout_at(deadline, &mut task.0).await {
            Ok(Ok(response)) => response.map(|body| body.until(deadline, exchange)),
            Ok(Err(error)) => {
                tracing::error!(server = self.server, uri = %late.uri, "{error}");
                let message = "the request's handler failed; the log says why";
                error_status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
            }
            Err(_) => {
                drop(task);
                self.observer
                    .terminated(self.server, StatusCode::GATEWAY_TIMEOUT);
                self.post_timeout.note(&running, late);
                let message = format!(
                    "request not answered within {:?}",
                    deadline - exchange.arrival()
                );
                error_status(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
            }
        }
    }
}

impl<H: Handler> Handler for Deadline<H> {
    fn class(&self, request: &Request) -> Class {
        self.handler.class(request)
    }

    async fn call(&self, request: Request) -> Response {
        let Some(exchange) = request.extensions().get::<Exchange>().cloned() else {
            let message = "the request has no time of arrival";
            return error_status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message);
        };
        exchange.tell_of_abort(self.server, self.observer.clone());
        if self.handler.class(&request) == Class::Stream {
            return self.handler.call(request).await;
        }
        let timeout = match requested_timeout(request.uri(), self.maximum) {
            Ok(timeout) => timeout,
            Err(wrong) => {
                exchange.set_deadline(exchange.arrival() + self.maximum);
                return error_status(StatusCode::BAD_REQUEST, "BadRequest", wrong);
            }
        };
        let deadline = exchange.arrival() + timeout;
        exchange.set_deadline(deadline);
        self.call_until(request, exchange, deadline).await
    }
}

/// The handler's task, which is aborted when the request ends.
struct AbortOnDrop(JoinHandle<Response>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
