//! Watches with events that are cut, corrupted, doubled or reordered.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Error, anyhow};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use tokio::time::timeout;

use super::rule::Fault;

/// How long an event waits for the one that is to be sent before it.
const PATIENCE: Duration = Duration::from_millis(300);

/// A body with a fault in it. `struck` counts how often it broke something. Faults that are not
/// about bodies change nothing.
pub fn body(
    inner: UnsyncBoxBody<Bytes, Error>,
    fault: Fault,
    struck: Arc<AtomicUsize>,
) -> UnsyncBoxBody<Bytes, Error> {
    let tampered = Tampered {
        inner,
        partial: Vec::new(),
        lines: VecDeque::new(),
        ready: VecDeque::new(),
        events: 0,
        ended: false,
        fault,
        struck,
    };
    let frames = stream::unfold(tampered, |mut tampered| async {
        let piece = tampered.next().await?;
        let frame = piece.map(|bytes| Frame::data(Bytes::from(bytes)));
        Some((frame, tampered))
    });
    StreamBody::new(frames).boxed_unsync()
}

struct Tampered {
    inner: UnsyncBoxBody<Bytes, Error>,
    /// The beginning of an incomplete line.
    partial: Vec<u8>,
    /// Complete lines that are still to be handled.
    lines: VecDeque<Vec<u8>>,
    /// Lines that are ready to be sent.
    ready: VecDeque<Vec<u8>>,
    /// Number of lines handled so far.
    events: usize,
    ended: bool,
    fault: Fault,
    struck: Arc<AtomicUsize>,
}

impl Tampered {
    /// The next piece to send; `None` at the end.
    async fn next(&mut self) -> Option<Result<Vec<u8>, Error>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Some(Ok(piece));
            }
            if let Fault::CutWithin { event } = self.fault
                && self.events >= event
            {
                return Some(Err(anyhow!("cut within an event")));
            }
            let line = match self.line().await {
                Ok(Some(line)) => line,
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            };
            self.deal_with(line).await;
        }
    }

    async fn deal_with(&mut self, line: Vec<u8>) {
        self.events += 1;
        match self.fault {
            Fault::CutWithin { event } if event == self.events => {
                let half = line.len() / 2;
                self.ready.push_back(line[..half].to_vec());
                self.strike();
            }
            Fault::Garbage { after } if after == self.events => {
                self.ready.push_back(line);
                self.ready.push_back(b"}{ this is no event\n".to_vec());
                self.strike();
            }
            Fault::Twice => {
                self.ready.push_back(line.clone());
                self.ready.push_back(line);
                self.strike();
            }
            Fault::Swapped => {
                let next = timeout(PATIENCE, self.line()).await;
                // No event came in time, or this is the end: there is nothing to swap it with.
                if let Ok(Ok(Some(next))) = next {
                    self.ready.push_back(next);
                    self.strike();
                }
                self.ready.push_back(line);
            }
            _ => self.ready.push_back(line),
        }
    }

    fn strike(&self) {
        self.struck.fetch_add(1, Ordering::Relaxed);
    }

    /// The next complete line with its end. If the future is dropped, what was received is kept.
    async fn line(&mut self) -> Result<Option<Vec<u8>>, Error> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Ok(Some(line));
            }
            if self.ended {
                return Ok(None);
            }
            let Some(frame) = self.inner.frame().await else {
                self.ended = true;
                let rest = std::mem::take(&mut self.partial);
                return Ok((!rest.is_empty()).then_some(rest));
            };
            let Ok(bytes) = frame?.into_data() else {
                continue;
            };
            for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
                self.partial.extend_from_slice(piece);
                if piece.ends_with(b"\n") {
                    self.lines.push_back(std::mem::take(&mut self.partial));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use http_body_util::{BodyExt as _, Full};
    use tokio::runtime::Builder;

    use super::*;

    /// What becomes of three events, whether the stream reaches its end, and how often the fault
    /// struck.
    fn tampered(fault: Fault) -> (String, bool, usize) {
        let whole = Full::new(Bytes::from("one\ntwo\nthree\n"));
        let whole = whole.map_err(|never| match never {}).boxed_unsync();
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let struck = Arc::<AtomicUsize>::default();
        let (text, whole) = runtime.block_on(async {
            let mut stream = body(whole, fault, struck.clone()).into_data_stream();
            let mut text = String::new();
            while let Some(piece) = stream.next().await {
                match piece {
                    Ok(bytes) => text += std::str::from_utf8(&bytes).unwrap(),
                    Err(_) => return (text, false),
                }
            }
            (text, true)
        });
        (text, whole, struck.load(Ordering::Relaxed))
    }

    #[test]
    fn events_are_broken_as_told() {
        let of = |fault, text: &str, whole, struck| {
            assert_eq!(tampered(fault), (text.to_owned(), whole, struck));
        };
        of(Fault::Twice, "one\none\ntwo\ntwo\nthree\nthree\n", true, 3);
        of(Fault::Swapped, "two\none\nthree\n", true, 1);
        of(Fault::CutWithin { event: 2 }, "one\ntw", false, 1);
        let garbage = "one\n}{ this is no event\ntwo\nthree\n";
        of(Fault::Garbage { after: 1 }, garbage, true, 1);
        of(Fault::Garbage { after: 4 }, "one\ntwo\nthree\n", true, 0);
    }
}
