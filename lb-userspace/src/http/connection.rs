//! One connection: HTTP/1.1, or HTTP/2 if the client begins with its preface (prior knowledge).

use std::{convert::Infallible, error::Error, io, sync::Arc, time::Duration};

use http_body_util::Limited;
use hyper::{
    StatusCode,
    body::{Body as _, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::sync::watch;

use super::{
    AnyHandler, Closed, Limits, Response,
    body::Tracked,
    budget::Place,
    exchange::Exchange,
    stream::{DeadlineStream, Socket},
    text,
};

/// After how much silence an HTTP/2 client is pinged, and how long it may take to answer.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// Bytes that an HTTP/2 connection buffers in each direction: the protocol's initial window, which
/// is the smallest one possible at the start.
const WINDOW: u32 = 65_535;

/// Serves one client.
pub(super) struct Connection {
    pub(super) handler: Arc<dyn AnyHandler>,
    pub(super) limits: Limits,
    pub(super) place: Arc<Place>,
}

/// Whether a server goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Serving,
    /// It answers requests in progress, and the first one of who has not asked yet.
    Leaving,
    /// It answers requests in progress.
    Closing,
}

impl Connection {
    pub(super) async fn serve(self, stream: impl Socket, phase: watch::Receiver<Phase>) {
        let (limits, place) = (self.limits, self.place.clone());
        let exchanges = place.exchanges();
        let stream = DeadlineStream::new(stream, exchanges.clone(), limits.write_timeout);
        let closed = tokio::select! {
            closed = self.converse(stream, phase) => closed,
            () = exchanges.overdue(&limits) => {
                tracing::debug!("HTTP connection cut: its client stalls");
                exchanges.abort();
                Closed::Timeout
            }
            closed = place.evicted() => {
                exchanges.abort();
                closed
            }
        };
        place.close(closed);
    }

    async fn converse(
        self,
        stream: DeadlineStream<impl Socket>,
        mut phase: watch::Receiver<Phase>,
    ) -> Closed {
        // Until it says something, a client costs little more than its socket.
        tokio::select! {
            readable = stream.readable() => if readable.is_err() {
                return Closed::Ended;
            },
            _ = phase.wait_for(|phase| *phase == Phase::Closing) => return Closed::Stopped,
        }
        let server = self.protocols();
        let this = Arc::new(self);
        let (begin, mut begun) = watch::channel(false);
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let this = this.clone();
            begin.send_replace(true);
            let open = this.place.exchanges().begin(request.version());
            async move {
                let response = this.answer(request, open.exchange().clone()).await;
                if !response.status().is_client_error() {
                    this.place.note_answer();
                }
                Ok::<_, Infallible>(response.map(|body| Tracked::new(body, open)))
            }
        });
        let mut connection = Box::pin(server.serve_connection(TokioIo::new(stream), service));
        let stopped = async {
            // Either fails only when this no longer matters.
            let stopped = phase.wait_for(|phase| *phase != Phase::Serving).await;
            if stopped.is_ok_and(|phase| *phase == Phase::Leaving) {
                let _ = begun.wait_for(|begun| *begun).await;
            }
        };
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stopped => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        match ended {
            Ok(()) => Closed::Ended,
            Err(error) => {
                tracing::debug!("HTTP connection ended: {error}");
                match is_timeout(&*error) {
                    true => Closed::Timeout,
                    false => Closed::Ended,
                }
            }
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
            .keep_alive(!self.place.crowded())
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
        self.handler.answer(request).await
    }
}

/// Whether a connection ended because its client took too long: with hyper's timer for headers, or
/// the stream's for writes.
fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    let of_hyper = error.downcast_ref::<hyper::Error>();
    let of_stream = error.downcast_ref::<io::Error>();
    of_hyper.is_some_and(hyper::Error::is_timeout)
        || of_stream.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
        || error.source().is_some_and(is_timeout)
}
