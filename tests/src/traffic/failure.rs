//! Why a request failed, in the few ways that matter to a load balancer.

use std::error::Error;
use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

/// A request that got no proper answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub kind: FailureKind,
    /// The words of the library or the kernel.
    pub detail: String,
}

/// The kinds of failure.
///
/// In a lab, an ICMP error may come back while `connect` still holds its socket, and then Linux
/// takes note of it only when the next SYN, a second later, gets one too. Give TCP requests that
/// shall fail by ICMP a deadline of 1.5 seconds or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FailureKind {
    /// TCP reset during the handshake, or ICMP port unreachable.
    Refused,
    /// Nothing came until the deadline.
    Timeout,
    /// ICMP host or network unreachable or prohibited, or no route. Of these, Linux tells UDP
    /// sockets only of prohibitions.
    Unreachable,
    /// TCP reset of an established connection, or a connected UDP socket that the kernel has ended.
    Reset,
    /// The server closed the connection before it had answered.
    Closed,
    /// The answer does not come from one of this lab's servers.
    Malformed,
    /// The kernel refused the socket, for example because the source address is in use.
    Local,
    /// The lab failed, not the traffic: a thread or process could not be started.
    Lab,
}

impl Failure {
    pub(super) fn new(kind: FailureKind, detail: impl fmt::Display) -> Self {
        Self {
            kind,
            detail: detail.to_string(),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind as Io;
        let kind = match error.kind() {
            Io::ConnectionRefused => FailureKind::Refused,
            Io::TimedOut => FailureKind::Timeout,
            Io::HostUnreachable | Io::NetworkUnreachable => FailureKind::Unreachable,
            Io::ConnectionReset | Io::ConnectionAborted | Io::BrokenPipe => FailureKind::Reset,
            Io::UnexpectedEof => FailureKind::Closed,
            Io::InvalidData => FailureKind::Malformed,
            _ if error.raw_os_error() == Some(libc::EACCES) => FailureKind::Unreachable,
            // It was connected before.
            _ if error.raw_os_error() == Some(libc::EDESTADDRREQ) => FailureKind::Reset,
            _ => FailureKind::Local,
        };
        Self::new(kind, error)
    }
}

impl From<hyper::Error> for Failure {
    fn from(error: hyper::Error) -> Self {
        let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
        while let Some(e) = cause {
            if let Some(io) = e.downcast_ref::<io::Error>() {
                return Self::from(io::Error::new(io.kind(), error.to_string()));
            }
            cause = e.source();
        }
        let kind = if error.is_parse() {
            FailureKind::Malformed
        } else {
            FailureKind::Closed
        };
        Self::new(kind, error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.detail)
    }
}

impl Error for Failure {}
