//! Deadlines of a connection, by the rules for deadlines of requests (KEP-4460): no value, zero or
//! less means the default; more than the maximum means the maximum; text that is not a duration
//! makes the object invalid. No packet of a connection puts its deadlines off. What is silent, and when
//! a connection is ended, `node_lb::flows` decides.

use std::time::Duration;

use lb_objects::go_duration::{self, Malformed};

/// A client may spend this part of its patience waiting for a seat: a quarter, as APF's
/// `requestWaitLimit`.
const QUEUE_WAIT_DIVISOR: u32 = 4;

/// How long a client may wait for a seat, counted from its arrival and not only from when it was
/// put in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueWait {
    /// For a client that does not say how long it waits for an answer.
    pub default: Duration,
    /// The upper limit for all clients.
    pub max: Duration,
}

/// APF's limit for requests, with the API server's usual time-out of a minute.
pub const REQUEST_QUEUE_WAIT: QueueWait = QueueWait {
    default: Duration::from_secs(15),
    max: Duration::from_secs(60),
};
/// The limit for connections. By default a parked SYN is given up no later than the client's first
/// retransmission. After ten seconds most clients are gone.
pub const CONNECTION_QUEUE_WAIT: QueueWait = QueueWait {
    default: Duration::from_secs(1),
    max: Duration::from_secs(5),
};

/// When a connection is ended. `None` means the node's flow timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// How long clients are assumed to wait for the answer to their first packet.
    pub connect_patience: Duration,
    /// From the forwarded SYN to the completed handshake.
    pub handshake: Duration,
    /// While the server waits for data of the client.
    pub client_idle: Option<Duration>,
    /// While the client waits for data of the server.
    pub server_idle: Option<Duration>,
    /// From one side's FIN to the other's.
    pub half_close: Option<Duration>,
    /// From the admission. Varied by 10 %, so that connections which began together do not end
    /// together.
    pub lifetime: Option<Duration>,
}

/// The default of a duration, and its maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds<T> {
    pub default: T,
    pub max: Duration,
}

/// Bounds of [`Deadlines::connect_patience`], which are those of [`CONNECTION_QUEUE_WAIT`].
pub const CONNECT_PATIENCE: Bounds<Duration> = Bounds {
    default: Duration::from_secs(4),
    max: Duration::from_secs(20),
};
/// Bounds of [`Deadlines::handshake`].
pub const HANDSHAKE: Bounds<Duration> = Bounds {
    default: Duration::from_secs(3),
    max: Duration::from_secs(10),
};
/// Bounds of [`Deadlines::client_idle`] and [`Deadlines::server_idle`].
pub const IDLE: Bounds<Option<Duration>> = Bounds {
    default: None,
    max: Duration::from_secs(24 * 3600),
};
/// Bounds of [`Deadlines::half_close`].
pub const HALF_CLOSE: Bounds<Option<Duration>> = Bounds {
    default: None,
    max: Duration::from_secs(3600),
};
/// Bounds of [`Deadlines::lifetime`].
pub const LIFETIME: Bounds<Option<Duration>> = Bounds {
    default: None,
    max: Duration::from_secs(30 * 24 * 3600),
};
/// Bounds of [`Schema::linger`](super::schema::Schema::linger).
pub const LINGER: Bounds<Duration> = Bounds {
    default: Duration::ZERO,
    max: Duration::from_secs(10),
};

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            connect_patience: CONNECT_PATIENCE.default,
            handshake: HANDSHAKE.default,
            client_idle: IDLE.default,
            server_idle: IDLE.default,
            half_close: HALF_CLOSE.default,
            lifetime: LIFETIME.default,
        }
    }
}

impl Deadlines {
    /// The longest time that a connection waits for a seat, from its first packet.
    pub fn queue_wait(&self) -> Duration {
        CONNECTION_QUEUE_WAIT.limit(Some(self.connect_patience))
    }
}

impl QueueWait {
    /// The wait limit for a client that gives up `patience` after its arrival; `None` if it does
    /// not say.
    pub fn limit(&self, patience: Option<Duration>) -> Duration {
        let limit = patience.map_or(self.default, |patience| patience / QUEUE_WAIT_DIVISOR);
        limit.min(self.max)
    }
}

impl<T> Bounds<T> {
    /// The duration that a field's text means.
    ///
    /// # Errors
    /// If the text is not a duration.
    pub fn read(&self, text: Option<&str>) -> Result<Reading<T>, Malformed>
    where
        T: Copy + From<Duration>,
    {
        let given = match text {
            None | Some("") => Duration::ZERO,
            Some(text) => go_duration::parse(text)?,
        };
        Ok(match given {
            Duration::ZERO => Reading {
                value: self.default,
                clamped: false,
            },
            given => Reading {
                value: given.min(self.max).into(),
                clamped: given > self.max,
            },
        })
    }
}

/// A duration within its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading<T> {
    pub value: T,
    /// Whether the text asked for more than the maximum.
    pub clamped: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_the_default_and_too_much_the_maximum() {
        for (text, seconds, clamped) in [
            (None, 3, false),
            (Some(""), 3, false),
            (Some("0"), 3, false),
            (Some("0s"), 3, false),
            (Some("-5s"), 3, false),
            (Some("5s"), 5, false),
            (Some("+5s"), 5, false),
            (Some("10s"), 10, false),
            (Some("10s1ns"), 10, true),
            (Some("1h30m"), 10, true),
        ] {
            let value = Duration::from_secs(seconds);
            assert_eq!(
                HANDSHAKE.read(text),
                Ok(Reading { value, clamped }),
                "{text:?}"
            );
        }
        assert_eq!(IDLE.read(None).unwrap().value, None);
        let lifetime = LIFETIME.read(Some("1.5h")).unwrap().value;
        assert_eq!(lifetime, Some(Duration::from_secs(5400)));
    }

    #[test]
    fn other_text_is_no_duration() {
        for text in ["10", "foo", "1d"] {
            assert_eq!(HANDSHAKE.read(Some(text)), Err(Malformed), "{text:?}");
        }
    }

    #[test]
    fn a_quarter_of_the_patience_is_spent_waiting() {
        let wait = |text| {
            let connect_patience = CONNECT_PATIENCE.read(text).unwrap().value;
            Deadlines {
                connect_patience,
                ..Deadlines::default()
            }
            .queue_wait()
        };
        assert_eq!(wait(None), Duration::from_secs(1));
        assert_eq!(wait(Some("10s")), Duration::from_millis(2500));
        assert_eq!(wait(Some("1h")), CONNECTION_QUEUE_WAIT.max);
        assert_eq!(wait(None), CONNECTION_QUEUE_WAIT.default);
    }
}
