//! The questions of clients and the answers of servers, which are the same over every protocol.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A question. On the wire it consists of `KEY=VALUE` words: a line over TCP, a datagram over UDP,
/// and the query over HTTP (with `&` between words, and the padding as the body).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// How many bytes of padding the answer must have. The question has as many.
    pub payload: usize,
    /// How long the server is to take.
    pub delay: Duration,
    /// Whether the server is to close the connection after its answer; only over TCP.
    pub last: bool,
}

impl Ask {
    /// The words without the padding, joined with `separator`.
    pub fn words(self, separator: char) -> String {
        let last = match self.last {
            true => format!("{separator}last=1"),
            false => String::new(),
        };
        format!(
            "payload={}{separator}delay={}{last}",
            self.payload,
            self.delay.as_millis()
        )
    }

    /// The line for TCP and UDP, with its padding and newline.
    pub fn line(self) -> String {
        format!("{} {}\n", self.words(' '), filling(self.payload))
    }

    /// Reads words. Unknown words are ignored, as are limits that make no sense.
    pub fn parse(text: &str) -> Self {
        let mut ask = Self::default();
        for word in text.split([' ', '&']) {
            match word.split_once('=') {
                Some(("payload", n)) => ask.payload = n.parse().unwrap_or(0).min(MAX_PAYLOAD),
                Some(("delay", n)) => ask.delay = Duration::from_millis(n.parse().unwrap_or(0)),
                Some(("last", n)) => ask.last = n == "1",
                _ => {}
            }
        }
        ask
    }
}

/// An answer; on the wire it is a line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The name the server was started with.
    pub server: String,
    /// The client's address as the server sees it.
    pub peer: SocketAddr,
    /// The address the server was reached at.
    pub local: SocketAddr,
    /// As many bytes as the question asked for.
    pub padding: String,
}

impl Answer {
    /// The line, with its newline.
    pub fn line(&self) -> String {
        let mut line = serde_json::to_string(self).expect("strings and addresses are valid JSON");
        line.push('\n');
        line
    }
}

/// Bytes without a meaning.
pub fn filling(size: usize) -> String {
    "x".repeat(size)
}

const MAX_PAYLOAD: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_survives_the_wire() {
        let ask = Ask {
            payload: 3,
            delay: Duration::from_millis(20),
            last: false,
        };
        assert_eq!(ask.line(), "payload=3 delay=20 xxx\n");
        assert_eq!(Ask::parse(ask.line().trim_end()), ask);
        let last = Ask { last: true, ..ask };
        assert_eq!(Ask::parse(last.line().trim_end()), last);
        assert_eq!(Ask::parse(&ask.words('&')), ask);
        assert_eq!(Ask::parse("payload=many =1 x"), Ask::default());
    }
}
