//! Metrics of the layers of the agent's HTTP servers.

use std::time::Duration;

use hyper::StatusCode;
use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::Register;
use crate::http::{Closed, Observer};

/// In seconds. What lasts longer counts as hanging.
const POST_TIMEOUT_BUCKETS: [f64; 9] = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0];

/// Shared by all servers; `server` is a label.
#[derive(Clone, Debug)]
pub struct HttpMetrics {
    /// Requests that a layer ended, by `server` and `code`: 504 at the deadline, 429 as a refusal.
    terminations: IntCounterVec,
    /// Requests broken off in the middle of the answer, by `server`.
    aborts: IntCounterVec,
    /// Requests that were worked on after their deadline, by `server` and `status`: `returned`, or
    /// `pending` if they are assumed never to end.
    post_timeouts: IntCounterVec,
    /// Seconds from the deadline to the end of the work, by `server`.
    post_timeout_seconds: HistogramVec,
    /// Requests past their deadline that something still works on.
    past_deadline: IntGauge,
    /// The same, for those without room on the list.
    past_deadline_unlisted: IntCounter,
    /// The most requests at a time in the last second, by `request_kind`.
    in_flight: IntGaugeVec,
    /// Open connections, by `server`.
    connections: IntGaugeVec,
    /// Connections that are closed, by `server` and `reason`.
    connections_closed: IntCounterVec,
    /// Connections that could not be accepted, by `server`.
    accept_errors: IntCounterVec,
}

impl HttpMetrics {
    pub(super) fn new(register: &Register<'_>) -> Self {
        Self {
            terminations: register.counters(
                "node_lb_http_request_terminations_total",
                "Requests that the agent ended early, by HTTP status code: 504 at the deadline, 429 refused.",
                &["server", "code"],
            ),
            aborts: register.counters(
                "node_lb_http_request_aborts_total",
                "Requests whose answer was broken off in the middle.",
                &["server"],
            ),
            post_timeouts: register.counters(
                "node_lb_http_request_post_timeout_total",
                "Requests whose work went on after their deadline, by whether it has ended.",
                &["server", "status"],
            ),
            post_timeout_seconds: register.histograms_of(
                "node_lb_http_request_post_timeout_seconds",
                "Time from a request's deadline until its work ended.",
                &["server"],
                POST_TIMEOUT_BUCKETS.to_vec(),
            ),
            past_deadline: register.gauge(
                "node_lb_http_requests_past_deadline",
                "Requests past their deadline whose work still goes on.",
            ),
            past_deadline_unlisted: register.counter(
                "node_lb_http_requests_past_deadline_unlisted_total",
                "Requests past their deadline for which /debug/requests had no room.",
            ),
            in_flight: register.gauges(
                "node_lb_http_current_inflight_requests",
                "Highest number of simultaneous requests in the last second.",
                &["request_kind"],
            ),
            connections: register.gauges(
                "node_lb_http_connections",
                "Connections that are open.",
                &["server"],
            ),
            connections_closed: register.counters(
                "node_lb_http_connections_closed_total",
                "Connections that are closed, by why.",
                &["server", "reason"],
            ),
            accept_errors: register.counters(
                "node_lb_http_accept_errors_total",
                "Times that no connection could be accepted, for want of descriptors or memory.",
                &["server"],
            ),
        }
    }
}

impl Observer for HttpMetrics {
    fn terminated(&self, server: &'static str, code: StatusCode) {
        let labels = [server, code.as_str()];
        self.terminations.with_label_values(&labels).inc();
    }

    fn aborted(&self, server: &'static str) {
        self.aborts.with_label_values(&[server]).inc();
    }

    fn overran(&self, listed: bool) {
        self.past_deadline.inc();
        if !listed {
            self.past_deadline_unlisted.inc();
        }
    }

    fn returned(&self, server: &'static str, overrun: Duration) {
        self.past_deadline.dec();
        let seconds = self.post_timeout_seconds.with_label_values(&[server]);
        seconds.observe(overrun.as_secs_f64());
        let returned = [server, "returned"];
        self.post_timeouts.with_label_values(&returned).inc();
    }

    fn hangs(&self, server: &'static str) {
        let pending = [server, "pending"];
        self.post_timeouts.with_label_values(&pending).inc();
    }

    fn in_flight(&self, kind: &'static str, most: usize) {
        let gauge = self.in_flight.with_label_values(&[kind]);
        gauge.set(i64::try_from(most).unwrap_or(i64::MAX));
    }

    fn connection_opened(&self, server: &'static str) {
        self.connections.with_label_values(&[server]).inc();
    }

    fn connection_closed(&self, server: &'static str, why: Closed) {
        self.connections.with_label_values(&[server]).dec();
        let labels = [server, why.name()];
        self.connections_closed.with_label_values(&labels).inc();
    }

    fn accept_failed(&self, server: &'static str) {
        self.accept_errors.with_label_values(&[server]).inc();
    }
}
