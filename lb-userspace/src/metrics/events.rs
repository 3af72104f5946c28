//! Counts the agent's Events by outcome.

use prometheus::IntCounterVec;

use super::Register;

/// Notices by outcome.
#[derive(Clone, Debug)]
pub struct EventMetrics {
    notices: IntCounterVec,
    dropped: IntCounterVec,
}

impl EventMetrics {
    pub(super) fn new(register: &Register<'_>) -> Self {
        Self {
            notices: register.counters(
                "node_lb_events_total",
                "Events on Services: `created`, `present` (another node has written it), `updated` (the \
                 count of a series written), `counted` (a repetition that is written later, or never).",
                &["result"],
            ),
            dropped: register.counters(
                "node_lb_events_dropped_total",
                "Events that were not written, by reason: `queue_full`, `rate_limited`, `over_budget`, \
                 `forbidden`, `failed`.",
                &["reason"],
            ),
        }
    }

    pub(crate) fn created(&self) {
        self.notices.with_label_values(&["created"]).inc();
    }

    /// Another node, or an earlier run, has written it.
    pub(crate) fn present(&self) {
        self.notices.with_label_values(&["present"]).inc();
    }

    /// The count of a series was written.
    pub(crate) fn updated(&self) {
        self.notices.with_label_values(&["updated"]).inc();
    }

    /// A repetition was noted.
    pub(crate) fn counted(&self) {
        self.notices.with_label_values(&["counted"]).inc();
    }

    pub(crate) fn dropped(&self, reason: &str) {
        self.dropped.with_label_values(&[reason]).inc();
    }
}
