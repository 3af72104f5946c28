//! Refuses at once what needs the whole cluster, until the agent knows it (KEP-4568).

use std::{sync::Arc, time::Duration};

use hyper::StatusCode;

use super::{Class, Handler, Request, Response, SharedObserver, too_many_requests};

/// Why requests that need the whole cluster cannot be served yet, and when to ask again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unready {
    /// What is missing, for people.
    pub missing: String,
    /// Whole seconds.
    pub retry_after: Duration,
}

/// Says whether the agent is not ready for requests that need the whole cluster, and why.
pub type AskReady = Arc<dyn Fn() -> Option<Unready> + Send + Sync>;

/// Answers unbounded lists and streams with 429 and Retry-After until the agent knows the whole
/// cluster, so that clients wait and try again instead of hanging. Gets and bounded lists are
/// answered from what is known.
pub struct WhenReady<H> {
    handler: H,
    server: &'static str,
    unready: AskReady,
    observer: SharedObserver,
}

impl<H: Handler> WhenReady<H> {
    pub fn new(
        handler: H,
        server: &'static str,
        unready: AskReady,
        observer: SharedObserver,
    ) -> Self {
        Self {
            handler,
            server,
            unready,
            observer,
        }
    }
}

impl<H: Handler> Handler for WhenReady<H> {
    fn class(&self, request: &Request) -> Class {
        self.handler.class(request)
    }

    async fn call(&self, request: Request) -> Response {
        if matches!(self.class(&request), Class::Wide | Class::Stream)
            && let Some(Unready {
                missing,
                retry_after,
            }) = (self.unready)()
        {
            self.observer
                .terminated(self.server, StatusCode::TOO_MANY_REQUESTS);
            return too_many_requests(
                retry_after,
                format_args!("not initialised yet: {missing}; try again later"),
            );
        }
        self.handler.call(request).await
    }
}
