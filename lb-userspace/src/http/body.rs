//! The body of an answer: bytes that exist, or bytes still to come.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::Stream;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use super::{
    exchange::{Exchange, OpenExchange},
    running::Running,
};

/// The most bytes that a connection gets at a time, so that a client that takes none can be told
/// from one that does.
const CHUNK: usize = 16 * 1024;

/// A response's body.
pub struct Body {
    source: Source,
    deadline: Option<Deadline>,
    /// Keeps the request running until the client has the answer.
    _running: Option<Running>,
}

enum Source {
    Whole(Bytes),
    Stream(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
}

struct Deadline {
    timer: Pin<Box<Sleep>>,
    exchange: Exchange,
}

/// The deadline came in the middle of the body: HTTP/1.1 closes the connection, HTTP/2 resets the
/// stream.
#[derive(Debug, thiserror::Error)]
#[error("the request's deadline has passed")]
pub struct Cut;

impl Body {
    /// A body that comes piece by piece, until the stream ends.
    pub fn stream(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self {
            source: Source::Stream(Box::pin(pieces)),
            deadline: None,
            _running: None,
        }
    }

    /// Cuts what is still to come at `deadline`. A body that is complete is not cut: the connection
    /// sees to it that the client takes it in time.
    pub(super) fn until(mut self, deadline: Instant, exchange: Exchange) -> Self {
        if matches!(self.source, Source::Stream(_)) {
            self.deadline = Some(Deadline {
                timer: Box::pin(sleep_until(deadline)),
                exchange,
            });
        }
        self
    }

    /// Lets the request count as running until the client has taken the body.
    pub(super) fn part_of(self, running: Running) -> Self {
        Self {
            _running: Some(running),
            ..self
        }
    }
}

impl<B: Into<Bytes>> From<B> for Body {
    fn from(bytes: B) -> Self {
        Self {
            source: Source::Whole(bytes.into()),
            deadline: None,
            _running: None,
        }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = &mut *self;
        if let Some(deadline) = &mut this.deadline
            && deadline.timer.as_mut().poll(cx).is_ready()
        {
            deadline.exchange.aborted();
            return Poll::Ready(Some(Err(Cut)));
        }
        match &mut this.source {
            Source::Whole(bytes) => {
                let chunk = bytes.split_to(bytes.len().min(CHUNK));
                Poll::Ready((!chunk.is_empty()).then(|| Ok(Frame::data(chunk))))
            }
            Source::Stream(pieces) => {
                let piece = pieces.as_mut().poll_next(cx);
                piece.map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.source, Source::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Stream(_) => SizeHint::default(),
        }
    }
}

/// A body that notes when there is something for the client to take, and ends its exchange.
pub(super) struct Tracked {
    body: Body,
    open: OpenExchange,
}

impl Tracked {
    pub(super) fn new(body: Body, open: OpenExchange) -> Self {
        open.offer(true); // the headers
        Self { body, open }
    }
}

impl hyper::body::Body for Tracked {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        self.open.offer(frame.is_ready());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
