//! One connection: HTTP/1.1, or HTTP/2 if the client begins with its preface (prior knowledge).

use std::{convert::Infallible, sync::Arc, time::Duration};

use http_body_util::Limited;
use hyper::{
    StatusCode,
    body::{Body as _, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::Watcher},
};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    Handler, Limits, Response,
    body::Tracked,
    exchange::{Exchange, Exchanges},
    stream::DeadlineStream,
    text,
};

/// After how much silence an HTTP/2 client is pinged, and how long it may take to answer.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// Bytes that an HTTP/2 connection buffers in each direction: the protocol's initial window, which
/// is the smallest one possible at the start.
const WINDOW: u32 = 65_535;

/// Serves one client.
pub(super) struct Connection<H> {
    pub(super) handler: Arc<H>,
    pub(super) limits: Limits,
    /// Whether an HTTP/1 connection may serve more than one request.
    pub(super) keep_alive: bool,
}

impl<H: Handler> Connection<H> {
    pub(super) async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        watcher: Watcher,
    ) {
        let limits = self.limits;
        let exchanges = Exchanges::new();
        let io = DeadlineStream::new(stream, exchanges.clone(), limits.write_timeout);
        let server = self.protocols();
        let this = Arc::new(self);
        let of_connection = exchanges.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let this = this.clone();
            let open = of_connection.begin(request.version());
            async move {
                let response = this.answer(request, open.exchange().clone()).await;
                Ok::<_, Infallible>(response.map(|body| Tracked::new(body, open)))
            }
        });
        let connection = watcher.watch(server.serve_connection(TokioIo::new(io), service));
        tokio::select! {
            ended = connection => if let Err(error) = ended {
                tracing::debug!("HTTP connection ended: {error}");
            },
            () = exchanges.overdue(&limits) => tracing::debug!("HTTP connection cut: its client stalls"),
        }
    }

    fn protocols(&self) -> auto::Builder<TokioExecutor> {
        let limits = &self.limits;
        let mut server = auto::Builder::new(TokioExecutor::new());
        server
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_headers(limits.headers)
            .max_buf_size(limits.header_bytes)
            .keep_alive(self.keep_alive)
            .half_close(true); // simple probes shut down their side after the request
        server
            .http2()
            .timer(TokioTimer::new())
            // Data that a client may send without being asked, in all its requests together.
            .initial_connection_window_size(WINDOW)
            .initial_stream_window_size(WINDOW)
            .max_send_buf_size(WINDOW as usize)
            .max_concurrent_streams(limits.streams)
            .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
            .keep_alive_interval(PING.0)
            .keep_alive_timeout(PING.1);
        server
    }

    async fn answer(&self, mut request: hyper::Request<Incoming>, exchange: Exchange) -> Response {
        let limits = &self.limits;
        // HTTP/2 limits only their total size.
        if request.headers().len() > limits.headers {
            return text(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                format_args!("more than {} headers", limits.headers),
            );
        }
        if request.body().size_hint().lower() > limits.body_bytes as u64 {
            return text(
                StatusCode::PAYLOAD_TOO_LARGE,
                format_args!("request body exceeds {} bytes", limits.body_bytes),
            );
        }
        request.extensions_mut().insert(exchange);
        let request = request.map(|body| Limited::new(body, limits.body_bytes));
        self.handler.call(request).await
    }
}
