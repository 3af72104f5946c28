//! The limits of a server towards its clients.

use std::time::Duration;

/// The defaults suit small, short exchanges with clients that are not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections open at a time; for one more, another one goes (see
    /// [`ConnectionBudget`](super::ConnectionBudget)). Once half of them are in use, new HTTP/1
    /// ones are closed after their first response instead of being kept alive.
    pub connections: usize,
    /// Connections of one caller, an IPv4 address or an IPv6 network of 64 bits; for one more,
    /// another one of its own goes. The node itself may have as many as the server.
    pub connections_of_caller: usize,
    /// Requests under way at a time on one HTTP/2 connection; others are refused.
    pub streams: u32,
    /// The most bytes of request line and headers together, at least 8192. Beyond it the answer is
    /// 431.
    pub header_bytes: usize,
    /// The most headers. Beyond it the answer is 431.
    pub headers: usize,
    /// The most bytes of a request body. Beyond it the answer is 413 if the length was declared;
    /// otherwise the handler gets an error.
    pub body_bytes: usize,
    /// How long the client may take to send a request up to the end of its headers, counted from
    /// the start of the connection or the end of the last response. So it also limits how long a
    /// connection may be idle.
    pub header_timeout: Duration,
    /// How long the client may leave an answer untaken if the exchange has no deadline.
    pub write_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_of_caller: 32,
            streams: 32,
            header_bytes: 16 * 1024,
            headers: 64,
            body_bytes: 64 * 1024,
            header_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(10),
        }
    }
}
