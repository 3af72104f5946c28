//! Observes what happens to requests, to count it.

use std::{sync::Arc, time::Duration};

use hyper::StatusCode;

use super::Closed;

/// Is told of what the layers do. `server` is the name given to
/// [`Stack::wrap`](super::Stack::wrap).
pub trait Observer: Send + Sync + 'static {
    /// A layer ended a request with this status: 504 at the deadline, or 429 as a refusal.
    fn terminated(&self, server: &'static str, code: StatusCode);

    /// An answer was broken off.
    fn aborted(&self, server: &'static str);

    /// A request is past its deadline, and something still works on it. `listed` says whether there
    /// was room for it on the list.
    fn overran(&self, listed: bool);

    /// Nothing works any more on a request that had overrun its deadline by `overrun`.
    fn returned(&self, server: &'static str, overrun: Duration);

    /// What works on a request past its deadline is assumed to hang for ever.
    fn hangs(&self, server: &'static str);

    /// The most requests at a time in the last second. `kind` is `readOnly`, `mutating` or
    /// `stream`.
    fn in_flight(&self, kind: &'static str, most: usize);

    /// A connection was accepted.
    fn connection_opened(&self, server: &'static str);

    /// It was closed.
    fn connection_closed(&self, server: &'static str, why: Closed);

    /// None could be accepted, for want of descriptors or memory.
    fn accept_failed(&self, server: &'static str);
}

/// An observer that all layers share.
pub type SharedObserver = Arc<dyn Observer>;

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Mutex;

    use super::*;

    /// What was observed, in order.
    #[derive(Default)]
    pub struct Observed(Mutex<Vec<String>>);

    impl Observed {
        /// What was observed since the last call.
        pub fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap())
        }

        fn note(&self, what: String) {
            self.0.lock().unwrap().push(what);
        }
    }

    impl Observer for Observed {
        fn terminated(&self, server: &'static str, code: StatusCode) {
            self.note(format!("{server} terminated {}", code.as_u16()));
        }

        fn aborted(&self, server: &'static str) {
            self.note(format!("{server} aborted"));
        }

        fn overran(&self, listed: bool) {
            self.note(format!("overran, listed: {listed}"));
        }

        fn returned(&self, server: &'static str, overrun: Duration) {
            self.note(format!("{server} returned after {overrun:?}"));
        }

        fn hangs(&self, server: &'static str) {
            self.note(format!("{server} hangs"));
        }

        fn in_flight(&self, kind: &'static str, most: usize) {
            self.note(format!("{kind}: {most}"));
        }

        fn connection_opened(&self, _: &'static str) {}

        fn connection_closed(&self, server: &'static str, why: Closed) {
            self.note(format!("{server} closed: {}", why.name()));
        }

        fn accept_failed(&self, server: &'static str) {
            self.note(format!("{server} cannot accept"));
        }
    }
}
