//! The agent's requests to the API server.

use std::time::Duration;

use hyper::Method;
use prometheus::{GaugeVec, HistogramVec, IntCounterVec, IntGaugeVec};

use super::{Register, set_to_now};

const RESOURCE: &str = "resource";
/// In seconds, as in Kubernetes' components.
const REQUEST_BUCKETS: [f64; 12] = [
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
];

/// Requests to the API server by outcome and by `resource`, as in URLs.
#[derive(Clone, Debug)]
pub struct ApiMetrics {
    requests: IntCounterVec,
    /// The same as Kubernetes' components count their requests.
    rest_requests: IntCounterVec,
    rest_duration: HistogramVec,
    retries: IntCounterVec,
    lists: IntCounterVec,
    relists: IntCounterVec,
    received_bytes: IntCounterVec,
    refused: IntCounterVec,
    synced: IntGaugeVec,
    last_sync: GaugeVec,
}

/// A request to the API server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ApiRequest<'a> {
    /// Host and port of the API server.
    pub host: &'a str,
    pub method: &'a Method,
    /// As in URLs.
    pub resource: &'a str,
    /// As in Kubernetes' roles.
    pub verb: &'a str,
}

impl ApiMetrics {
    pub(super) fn new(register: &Register<'_>) -> Self {
        Self {
            requests: register.counters(
                "node_lb_api_requests_total",
                "Requests to the API server, by HTTP status code; `none` means no answer.",
                &[RESOURCE, "verb", "code"],
            ),
            rest_requests: register.counters(
                "rest_client_requests_total",
                "Requests to the API server, by HTTP status code, host and method; `<error>` means no \
                 answer.",
                &["code", "host", "method"],
            ),
            rest_duration: register.histograms_of(
                "rest_client_request_duration_seconds",
                "Time until the answer of a request to the API server began, by host and method.",
                &["host", "verb"],
                REQUEST_BUCKETS.to_vec(),
            ),
            retries: register.counters(
                "node_lb_api_retries_total",
                "Requests to the API server that failed or broke off, and that the agent repeats.",
                &[RESOURCE, "verb"],
            ),
            lists: register.counters(
                "node_lb_api_lists_total",
                "Complete lists, streamed or in pages.",
                &[RESOURCE],
            ),
            relists: register.counters(
                "node_lb_api_relists_total",
                "New lists, because a watch could not continue.",
                &[RESOURCE, "reason"],
            ),
            received_bytes: register.counters(
                "node_lb_api_received_bytes_total",
                "Bytes of lists and watches received from the API server.",
                &[RESOURCE],
            ),
            refused: register.counters(
                "node_lb_api_decode_errors_total",
                "Objects from the API server that could not be used, counted each time they arrived.",
                &[RESOURCE],
            ),
            synced: register.gauges(
                "node_lb_api_synced",
                "1 after a resource has been listed completely.",
                &[RESOURCE],
            ),
            last_sync: register.timestamps(
                "node_lb_api_last_sync_timestamp_seconds",
                "When a resource was last known to be up to date.",
                &[RESOURCE],
            ),
        }
    }

    /// A request, with the code of its answer, and how long that took to begin.
    pub(crate) fn request(&self, request: ApiRequest<'_>, code: Option<u16>, took: Duration) {
        let code = code.map(|code| code.to_string());
        let or = |none| code.as_deref().unwrap_or(none);
        let labels = [request.resource, request.verb, or("none")];
        self.requests.with_label_values(&labels).inc();
        let method = request.method.as_str();
        let labels = [or("<error>"), request.host, method];
        self.rest_requests.with_label_values(&labels).inc();
        let labels = [request.host, method];
        let duration = self.rest_duration.with_label_values(&labels);
        duration.observe(took.as_secs_f64());
    }

    /// A request that failed and will be repeated.
    pub(crate) fn retry(&self, resource: &str, verb: &str) {
        self.retries.with_label_values(&[resource, verb]).inc();
    }

    pub(crate) fn list_complete(&self, resource: &str) {
        self.lists.with_label_values(&[resource]).inc();
        self.synced.with_label_values(&[resource]).set(1);
        self.in_sync(resource);
    }

    pub(crate) fn relist(&self, resource: &str, reason: &str) {
        self.relists.with_label_values(&[resource, reason]).inc();
    }

    pub(crate) fn received(&self, resource: &str, bytes: usize) {
        let counter = self.received_bytes.with_label_values(&[resource]);
        counter.inc_by(bytes as u64);
    }

    /// An object that could not be used.
    pub(crate) fn refused(&self, resource: &str) {
        self.refused.with_label_values(&[resource]).inc();
    }

    /// The API server has just sent what is new.
    pub(crate) fn in_sync(&self, resource: &str) {
        set_to_now(&self.last_sync.with_label_values(&[resource]));
    }
}
