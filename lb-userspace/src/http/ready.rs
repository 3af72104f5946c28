//! While the caches are not initialised, what would need them whole is refused at once (KEP-4568).

use std::sync::Arc;

use hyper::StatusCode;

use super::{Class, Handler, Request, Response, too_many_requests};
use crate::{health::caches::Caches, metrics::HttpMetrics};

/// Answers unbounded lists and streams with 429 and Retry-After while a cache is not initialised, so that
/// clients wait and resume instead of hanging. Gets and bounded lists are served from what there is.
/// A stream ends, complete and without an error, when a cache stops being initialised.
pub struct WhenReady<H> {
    handler: H,
    server: &'static str,
    caches: Arc<Caches>,
    metrics: HttpMetrics,
}

impl<H: Handler> WhenReady<H> {
    pub fn new(
        handler: H,
        server: &'static str,
        caches: Arc<Caches>,
        metrics: HttpMetrics,
    ) -> Self {
        Self {
            handler,
            server,
            caches,
            metrics,
        }
    }
}

impl<H: Handler> Handler for WhenReady<H> {
    fn class(&self, request: &Request) -> Class {
        self.handler.class(request)
    }

    async fn call(&self, request: Request) -> Response {
        let class = self.class(&request);
        if !matches!(class, Class::Wide | Class::Stream) {
            return self.handler.call(request).await;
        }
        // Before the question, so that a change in between is not missed.
        let mut changes = self.caches.subscribe();
        if let Some(retry_after) = self.caches.retry_after() {
            self.metrics
                .terminated(self.server, StatusCode::TOO_MANY_REQUESTS);
            let missing = self.caches.uninitialized().join(", ");
            return too_many_requests(
                retry_after,
                format_args!("not initialised yet: {missing}; try again later"),
            );
        }
        let response = self.handler.call(request).await;
        if class != Class::Stream {
            return response;
        }
        response.map(|body| {
            body.ending_with(async move {
                // Without anybody who could change them, they stay as they are.
                if changes.wait_for(|ready| !ready).await.is_err() {
                    std::future::pending().await
                }
            })
        })
    }
}
