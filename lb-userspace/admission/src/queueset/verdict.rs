//! The answers of a queue set.

use super::{arrival::Rejection, connection::Handle, grant::Grant};

/// The answer to an [`super::Arrival`].
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has its seats.
    Admitted(Grant),
    /// It is in a queue. [`super::QueueSet::dispatch`] returns it when it is admitted, which may be
    /// at once.
    Queued(Handle),
    Rejected(Rejection),
}

/// A connection that was in a queue, possibly for no time at all, and has its seats now.
#[derive(Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// Its name until now.
    pub connection: Handle,
    pub grant: Grant,
}

/// Something that happens by the clock alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// A waiter's deadline has passed: [`Rejection::TimeOut`]. Its handle is no longer valid.
    TimedOut(Handle),
    /// Seats that lingered after the end of a connection are free now.
    Released,
}
