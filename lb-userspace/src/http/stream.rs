//! A stream whose writes end at a deadline, so that a client that does not read cannot hold
//! its connection.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

/// When the client must have taken the response to the current request.
///
/// The server sets it when a request arrives and leaves it in the request's extensions for
/// layers with a deadline of their own.
#[derive(Clone, Debug)]
pub struct WriteDeadline(Arc<Mutex<Instant>>);

impl WriteDeadline {
    pub(super) fn new(deadline: Instant) -> Self {
        Self(Arc::new(Mutex::new(deadline)))
    }

    /// Replaces the deadline; it holds from the next time a write has to wait.
    pub fn set(&self, deadline: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
    }

    fn at(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fails a write with `TimedOut` if it still has to wait for the client at the deadline. What
/// fits into the socket's buffer is accepted even later.
pub(super) struct DeadlineStream<S> {
    stream: S,
    deadline: WriteDeadline,
    /// Made only for the rare client that lets a write wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> DeadlineStream<S> {
    pub(super) fn new(stream: S, deadline: WriteDeadline) -> Self {
        Self {
            stream,
            deadline,
            timer: None,
        }
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let deadline = self.deadline.at();
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client did not take the response in time",
        )))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for DeadlineStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for DeadlineStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(cx, bytes) {
            Poll::Pending => self.poll_deadline(cx),
            written => written,
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(cx, slices) {
            Poll::Pending => self.poll_deadline(cx),
            written => written,
        }
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
