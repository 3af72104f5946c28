//! Everything the agent measures about itself, under kube-proxy's names where the meaning is the
//! same, so that existing dashboards and alerts work, and as `node_lb_*` otherwise.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, SystemTime},
};

use lb_objects::IpFamily;
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec,
    IntGauge, IntGaugeVec, Opts, Registry, TextEncoder, core::Collector, exponential_buckets,
    process_collector::ProcessCollector,
};

pub(crate) use self::api::ApiRequest;
use self::services::Selection;
pub use self::{
    admission::{LevelCount, SchemaCount},
    api::ApiMetrics,
    events::EventMetrics,
    http::HttpMetrics,
    kernel::{
        DeviceMode, FlowTableFill, KernelSource, LimitCount, PacketCount, Sample, ServiceTraffic,
        XdpMode,
    },
    verification::{TestPacketMetrics, VerificationMetrics},
};
use crate::config::ServiceSeries;

mod admission;
mod api;
mod events;
mod http;
mod kernel;
mod services;
mod verification;

const IP_FAMILY: &str = "ip_family";
/// In seconds. Fine around 20 and 50 ms, the limit for one change in a large cluster.
const PROGRAMMING_BUCKETS: [f64; 16] = [
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
    60.0,
];

/// The agent's metrics. Each part of the agent updates its own.
pub struct Metrics {
    /// Slice events seen but not yet in the kernel; zero after each sync.
    pub endpoint_changes_pending: IntGauge,
    /// Seconds from the arrival of a change until it is in the maps; see [`Metrics::programmed`].
    programming: HistogramVec,
    /// Slice events seen, also those that changed nothing.
    pub endpoint_changes: IntCounter,
    /// Service events seen but not yet in the kernel; zero after each sync.
    pub service_changes_pending: IntGauge,
    pub service_changes: IntCounter,
    /// Answers of `/healthz`, by `code`.
    pub healthz: IntCounterVec,
    /// Answers of `/livez`, by `code`.
    pub livez: IntCounterVec,
    /// Services that are completely in the kernel.
    pub services_programmed: IntGauge,
    /// Services that could not be written completely, most likely for lack of room.
    pub services_not_programmed: IntGauge,
    /// The latter, by `reason`.
    pub services_lacking: IntGaugeVec,
    /// Service ports whose ClusterIP is left to the node.
    pub left_to_node: IntGauge,
    /// Endpoints that do not have their whole share yet, once for each service port.
    pub slow_starting: IntGauge,
    /// How often a Service has been planned.
    pub services_planned: IntCounter,
    /// The node's own addresses.
    pub local_addresses: LocalAddressMetrics,
    /// Things wrong in the source right now: broken files, refused objects.
    pub source_problems: IntGauge,
    /// Pins that others removed and the agent made again.
    pub pins_restored: IntCounter,
    /// 1 while pins are gone and cannot be made again.
    pub pins_missing: IntGauge,
    /// What the agent finds when it compares the data plane with what it should be.
    pub verification: VerificationMetrics,
    /// What the agent finds when it sends test packets.
    pub test_packets: TestPacketMetrics,
    /// 1 while packets are traced.
    pub trace_running: IntGauge,
    /// healthCheckNodePort servers that are open.
    pub health_servers_listening: IntGauge,
    /// healthCheckNodePort servers that cannot listen.
    pub health_servers_failed: IntGauge,
    /// Metrics of the agent's HTTP servers.
    pub http: HttpMetrics,
    /// Requests to the API server, if it is the source.
    pub api: ApiMetrics,
    /// Events on Services, by outcome.
    pub events: EventMetrics,
    /// Feature gates, as in Kubernetes' components.
    feature_enabled: IntGaugeVec,
    registry: Registry,
    families: FamilyVecs,
    /// Checks by name and type, as in Kubernetes' components.
    checks: IntGaugeVec,
    kernel: OnceLock<Arc<dyn KernelSource>>,
    services: Mutex<Selection>,
    kernel_read_errors: IntCounter,
}

/// The metrics that kube-proxy splits by `ip_family`, for one family.
#[derive(Clone, Debug)]
pub struct FamilyMetrics {
    /// Seconds that each sync took: full or partial, successful or not.
    pub sync_duration: Histogram,
    /// Unix time of the last successful sync; see [`set_to_now`].
    pub last_sync: Gauge,
    /// Unix time when the last sync was requested; see [`set_to_now`].
    pub last_queued: Gauge,
    /// Seconds from the change of an endpoint, by its slice's annotation
    /// `endpoints.kubernetes.io/last-change-trigger-time`, to the end of the sync that wrote it to
    /// the kernel: one sample for each slice update that changed something.
    pub network_programming: Histogram,
    /// Service ports that drop connections under `internalTrafficPolicy: Local`, because all
    /// endpoints are on other nodes.
    pub no_local_endpoints_internal: IntGauge,
    /// The same for `externalTrafficPolicy: Local`.
    pub no_local_endpoints_external: IntGauge,
    /// Services that are served by terminating endpoints because no others are ready (KEP-1669).
    pub services_on_terminating: IntGauge,
    /// The number of those endpoints, counted once for each service port.
    pub terminating_endpoints_serving: IntGauge,
}

/// The node's own addresses, by whether packets find them.
#[derive(Clone, Debug)]
pub struct LocalAddressMetrics {
    pub in_map: IntGauge,
    /// The map has no room for them.
    pub left_out: IntGauge,
}

impl Metrics {
    /// Registers all metrics, with no values yet.
    pub fn new() -> Self {
        let registry = Registry::new();
        let register = Register(&registry);
        register.process();
        let services = register.gauges(
            "node_lb_services",
            "Services, by whether their whole state is in the kernel.",
            &["state"],
        );
        let local_addresses = register.gauges(
            "node_lb_local_addresses",
            "The node's own addresses, by whether there is room for them in the map.",
            &["state"],
        );
        let health_servers = register.gauges(
            "node_lb_health_check_servers",
            "healthCheckNodePort servers, by whether they could be opened.",
            &["state"],
        );
        Self {
            programming: register.histograms_of(
                "node_lb_programming_duration_seconds",
                "Time from the arrival of a changed object until it is in the kernel.",
                &["resource"],
                PROGRAMMING_BUCKETS.to_vec(),
            ),
            feature_enabled: register.gauges(
                "kubernetes_feature_enabled",
                "Feature gates, 1 for those that are on.",
                &["name", "stage"],
            ),
            endpoint_changes_pending: register.gauge(
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
                "Endpoint changes that are not in the kernel yet.",
            ),
            endpoint_changes: register.counter(
                "kubeproxy_sync_proxy_rules_endpoint_changes_total",
                "Endpoint changes seen.",
            ),
            service_changes_pending: register.gauge(
                "kubeproxy_sync_proxy_rules_service_changes_pending",
                "Service changes that are not in the kernel yet.",
            ),
            service_changes: register.counter(
                "kubeproxy_sync_proxy_rules_service_changes_total",
                "Service changes seen.",
            ),
            healthz: register.counters(
                "kubeproxy_proxy_healthz_total",
                "Answers of /healthz, by HTTP status code.",
                &["code"],
            ),
            livez: register.counters(
                "kubeproxy_proxy_livez_total",
                "Answers of /livez, by HTTP status code.",
                &["code"],
            ),
            services_programmed: services.with_label_values(&["programmed"]),
            services_not_programmed: services.with_label_values(&["not_programmed"]),
            services_lacking: register.gauges(
                "node_lb_services_not_programmed",
                "Services of which something is not in the kernel, by the reason.",
                &["reason"],
            ),
            left_to_node: register.gauge(
                "node_lb_service_ports_left_to_node",
                "Service ports with a ClusterIP at which the node itself answers (NodeLocal DNSCache).",
            ),
            slow_starting: register.gauge(
                "node_lb_slow_starting_endpoints",
                "Endpoints in slow start, which do not have their whole share of new connections yet, \
                 once per service port.",
            ),
            services_planned: register.counter(
                "node_lb_services_planned_total",
                "How often a Service has been planned: once for each change that concerns it.",
            ),
            local_addresses: LocalAddressMetrics {
                in_map: local_addresses.with_label_values(&["in_map"]),
                left_out: local_addresses.with_label_values(&["left_out"]),
            },
            source_problems: register.gauge(
                "node_lb_source_problems",
                "Files and objects of the source that cannot be used at this moment.",
            ),
            pins_restored: register.counter(
                "node_lb_pins_restored_total",
                "Pins of programs and maps that were removed, and that the agent has made again.",
            ),
            pins_missing: register.gauge(
                "node_lb_pins_missing",
                "Whether pins are gone and cannot be made again: Services end with the agent.",
            ),
            verification: VerificationMetrics::new(&register),
            test_packets: TestPacketMetrics::new(&register),
            trace_running: register.gauge(
                "node_lb_trace_running",
                "Whether packets are traced, which costs each packet some time.",
            ),
            health_servers_listening: health_servers.with_label_values(&["listening"]),
            health_servers_failed: health_servers.with_label_values(&["failed"]),
            kernel_read_errors: register.counter(
                "node_lb_kernel_read_errors_total",
                "Scrapes in which the kernel's counters could not be read.",
            ),
            http: HttpMetrics::new(&register),
            api: ApiMetrics::new(&register),
            events: EventMetrics::new(&register),
            families: FamilyVecs::new(&register),
            checks: register.gauges(
                "kubernetes_healthcheck",
                "Named checks of the agent's state, 1 for those that hold.",
                &["name", "type"],
            ),
            kernel: OnceLock::new(),
            services: Mutex::default(),
            registry,
        }
    }

    /// The metrics of one family. Its series appear with the first call, so a node without IPv6
    /// shows none for IPv6. Callers should keep the result, because each call looks the metrics up.
    pub fn family(&self, family: IpFamily) -> FamilyMetrics {
        self.families.of(family)
    }

    /// Records the time from the arrival of changed objects until they were in the kernel, one
    /// sample per object. Objects of the first list do not count.
    pub fn programmed(&self, resource: &str, objects: usize, took: Duration) {
        if objects != 0 {
            let histogram = self.programming.with_label_values(&[resource]);
            for _ in 0..objects {
                histogram.observe(took.as_secs_f64());
            }
        }
    }

    /// Shows a feature gate. `stage` is `ALPHA`, `BETA`, or empty if the gate is permanent.
    pub fn set_feature(&self, name: &str, stage: &str, enabled: bool) {
        let gauge = self.feature_enabled.with_label_values(&[name, stage]);
        gauge.set(enabled.into());
    }

    /// Shows a check of `/readyz`, and whether it holds.
    pub fn set_ready(&self, check: &str, holds: bool) {
        let gauge = self.checks.with_label_values(&[check, "readyz"]);
        gauge.set(holds.into());
    }

    /// Adds the data plane's counters to all scrapes from now on. Only the first call has an
    /// effect, because an agent has one data plane.
    pub fn set_kernel_source(&self, source: Arc<dyn KernelSource>) {
        let _ = self.kernel.set(source);
    }

    /// Limits which service ports have metrics of their own from now on; without this, all have.
    pub fn limit_services(&self, series: ServiceSeries) {
        *self.services.lock().unwrap_or_else(PoisonError::into_inner) = Selection::new(series);
    }

    /// All metrics in the Prometheus text format. Reads the kernel's maps, so it may block.
    pub fn encode(&self) -> Vec<u8> {
        let kernel = self.sample_kernel(); // before the gathering, which counts its errors
        let mut families = self.registry.gather();
        families.extend(kernel.into_families());
        let mut text = Vec::new();
        TextEncoder::new()
            .encode(&families, &mut text)
            .expect("every family gathered has a metric, and a Vec takes any write");
        text
    }

    fn sample_kernel(&self) -> Sample {
        let Some(source) = self.kernel.get() else {
            return Sample::default();
        };
        match source.sample() {
            Ok(mut sample) => {
                let selection = self.services.lock();
                let mut selection = selection.unwrap_or_else(PoisonError::into_inner);
                selection.apply(&mut sample.services);
                sample
            }
            Err(error) => {
                tracing::warn!("cannot read the kernel's counters for metrics: {error:#}");
                self.kernel_read_errors.inc();
                Sample::default()
            }
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Sets a `*_timestamp_seconds` gauge to the current time.
pub fn set_to_now(gauge: &Gauge) {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    gauge.set(since_epoch.unwrap_or_default().as_secs_f64());
}

struct FamilyVecs {
    sync_duration: HistogramVec,
    last_sync: GaugeVec,
    last_queued: GaugeVec,
    network_programming: HistogramVec,
    no_local_endpoints: IntGaugeVec,
    services_on_terminating: IntGaugeVec,
    terminating_endpoints_serving: IntGaugeVec,
}

impl FamilyVecs {
    fn new(register: &Register<'_>) -> Self {
        Self {
            sync_duration: register.histograms(
                "kubeproxy_sync_proxy_rules_duration_seconds",
                "Time a sync took.",
                exponential_buckets(0.001, 2.0, 15).expect("a growing series of buckets"),
            ),
            last_sync: register.timestamps(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "When the last sync succeeded.",
                &[IP_FAMILY],
            ),
            last_queued: register.timestamps(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "When the last sync was requested.",
                &[IP_FAMILY],
            ),
            network_programming: register.histograms(
                "kubeproxy_network_programming_duration_seconds",
                "Time from the change of an endpoint until it is in the kernel.",
                network_programming_buckets(),
            ),
            no_local_endpoints: register.gauges(
                "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
                "Service ports that drop traffic because their policy is Local and all \
                 endpoints are on other nodes.",
                &[IP_FAMILY, "traffic_policy"],
            ),
            services_on_terminating: register.gauges(
                "node_lb_services_served_by_terminating_endpoints",
                "Services that only terminating endpoints serve at this moment, because none is ready.",
                &[IP_FAMILY],
            ),
            terminating_endpoints_serving: register.gauges(
                "node_lb_terminating_endpoints_serving",
                "Terminating endpoints that serve at this moment, because none is ready, counted once \
                 per service port.",
                &[IP_FAMILY],
            ),
        }
    }

    fn of(&self, family: IpFamily) -> FamilyMetrics {
        let name = family.to_string();
        let name = name.as_str();
        let no_local = |policy| self.no_local_endpoints.with_label_values(&[name, policy]);
        FamilyMetrics {
            sync_duration: self.sync_duration.with_label_values(&[name]),
            last_sync: self.last_sync.with_label_values(&[name]),
            last_queued: self.last_queued.with_label_values(&[name]),
            network_programming: self.network_programming.with_label_values(&[name]),
            no_local_endpoints_internal: no_local("internal"),
            no_local_endpoints_external: no_local("external"),
            services_on_terminating: self.services_on_terminating.with_label_values(&[name]),
            terminating_endpoints_serving: self
                .terminating_endpoints_serving
                .with_label_values(&[name]),
        }
    }
}

/// As in kube-proxy: fine up to a minute, because the SLO is about seconds, then up to five
/// minutes.
fn network_programming_buckets() -> Vec<f64> {
    let seconds = (1..60)
        .chain((60..120).step_by(5))
        .chain((120..=300).step_by(30));
    [0.25, 0.5]
        .into_iter()
        .chain(seconds.map(f64::from))
        .collect()
}

/// Creates metrics and registers them, which cannot fail for the fixed set above.
struct Register<'a>(&'a Registry);

impl Register<'_> {
    /// What every process reports: its build, CPU time, memory and file descriptors.
    fn process(&self) {
        let info = self.gauges(
            "node_lb_build_info",
            "Constant 1; the labels describe this build.",
            &["version"],
        );
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        self.register(ProcessCollector::for_self());
    }

    fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.add(IntCounter::new(name, help))
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(IntCounterVec::new(Opts::new(name, help), labels))
    }

    fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.add(IntGauge::new(name, help))
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    fn timestamps(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.add(GaugeVec::new(Opts::new(name, help), labels))
    }

    fn histograms(&self, name: &str, help: &str, buckets: Vec<f64>) -> HistogramVec {
        self.histograms_of(name, help, &[IP_FAMILY], buckets)
    }

    fn histograms_of(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: Vec<f64>,
    ) -> HistogramVec {
        let opts = HistogramOpts::new(name, help).buckets(buckets);
        self.add(HistogramVec::new(opts, labels))
    }

    fn add<C>(&self, metric: prometheus::Result<C>) -> C
    where
        C: Collector + Clone + 'static,
    {
        let metric = metric.expect("the names and labels in this file are well-formed");
        self.register(metric.clone());
        metric
    }

    fn register(&self, collector: impl Collector + 'static) {
        self.0
            .register(Box::new(collector))
            .expect("the names in this file are unique");
    }
}
