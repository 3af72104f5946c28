//! The limits of a server towards its clients.

use std::time::Duration;

/// The defaults suit small, short exchanges with clients that are not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections served at a time. Others wait to be accepted. Once half of them are in use, new
    /// HTTP/1 connections are closed after their first response instead of being kept alive.
    pub connections: usize,
    /// Requests at a time on one HTTP/2 connection. Others are refused.
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
            connections: 256,
            streams: 32,
            header_bytes: 16 * 1024,
            headers: 64,
            body_bytes: 64 * 1024,
            header_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(10),
        }
    }
}
