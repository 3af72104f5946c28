//! A stream with a deadline for writes, so that a client that does not read cannot hold its
//! connection.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use super::exchange::{Exchange, Exchanges};

/// A connected socket of any kind.
pub(super) trait Socket: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static {
    /// Returns once there is something to read, or the other side has closed.
    fn readable(&self) -> impl Future<Output = io::Result<()>> + Send;

    /// Has the kernel forget the connection when it is closed (RST), instead of waiting for an end
    /// that its client may never come to.
    fn forget_on_close(&self);
}

/// Fails a write with `TimedOut` if it still has to wait for the client at the deadline of the
/// exchange, or, where there is none, after the write timeout. What fits into the socket's buffer
/// is accepted even later.
pub(super) struct DeadlineStream<S: Socket> {
    stream: S,
    exchanges: Arc<Exchanges>,
    write_timeout: Duration,
    /// The last exchange, because its end may still be on its way.
    exchange: Option<Exchange>,
    waiting_since: Option<Instant>,
    /// Created only for the rare client that lets a write wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S: Socket> DeadlineStream<S> {
    pub(super) fn new(stream: S, exchanges: Arc<Exchanges>, write_timeout: Duration) -> Self {
        Self {
            stream,
            exchanges,
            write_timeout,
            exchange: None,
            waiting_since: None,
            timer: None,
        }
    }

    /// Returns once there is something to read, or the client has closed.
    pub(super) async fn readable(&self) -> io::Result<()> {
        self.stream.readable().await
    }

    fn settle(
        &mut self,
        written: Poll<io::Result<usize>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.exchange = self.exchanges.only().or(self.exchange.take());
        if written.is_ready() {
            self.waiting_since = None;
            return written;
        }
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        let deadline = match &self.exchange {
            Some(exchange) => exchange.patience(since, self.write_timeout),
            None => since + self.write_timeout,
        };
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        ready!(timer.as_mut().poll(cx));
        if let Some(exchange) = &self.exchange {
            exchange.aborted();
        }
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client did not take the response in time",
        )))
    }
}

impl<S: Socket> Drop for DeadlineStream<S> {
    fn drop(&mut self) {
        if self.exchanges.is_evicted() {
            self.stream.forget_on_close();
        }
    }
}

impl<S: Socket> AsyncRead for DeadlineStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: Socket> AsyncWrite for DeadlineStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.settle(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.settle(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
