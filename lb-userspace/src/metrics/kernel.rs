//! Metrics that live in the kernel's maps and are read for each scrape.

use std::{net::SocketAddr, time::Duration};

use lb_objects::{IpFamily, ObjectName, Protocol};
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};

use super::{
    IP_FAMILY,
    admission::{self, LevelCount, SchemaCount},
};
use crate::{
    latency::{Answered, Total},
    map_writer::MapFill,
    waiting::Waits,
};

/// The data plane, as far as metrics go.
pub trait KernelSource: Send + Sync {
    /// Reads the counters. Called for each scrape, on a thread that may block.
    fn sample(&self) -> anyhow::Result<Sample>;
}

/// The counters of the data plane at one moment. Totals count from the creation of the maps, so
/// they survive the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    pub packets: Vec<PacketCount>,
    pub services: Vec<ServiceTraffic>,
    /// Limits of connections.
    pub limits: Vec<LimitCount>,
    /// By how many the numbers of connections and seats within limits and levels have been corrected.
    pub limits_corrected: u64,
    /// Priority levels.
    pub levels: Vec<LevelCount>,
    /// Flow schemas.
    pub schemas: Vec<SchemaCount>,
    /// Addresses that there is no room to classify connections to.
    pub unclassified: u64,
    pub devices: Vec<DeviceMode>,
    pub maps: Vec<MapFill>,
    /// Live flows. `None` until the table exists.
    pub flow_tables: Vec<FlowTableFill>,
    /// For how long the sync that runs has been running; zero without one.
    pub sync_running: Duration,
    /// Since when the agent's loop has said nothing of its state.
    pub state_age: Duration,
}

/// How full the flow table of a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTableFill {
    pub family: IpFamily,
    /// Live flows, as the latest pass over them saw it.
    pub flows: u64,
    /// How many flows there is room for.
    pub room: u64,
    /// Flows that have proved themselves of the service port that has the most of them, and how many one
    /// may have.
    pub busiest: u64,
    pub flows_of_one: u64,
}

impl FlowTableFill {
    /// A gauge with the table's label.
    fn gauge(&self, value: u64) -> Metric {
        gauge(&[(IP_FAMILY, &self.family.to_string())], value)
    }
}

/// Packets of one hook and reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketCount {
    /// Where the packet was counted, such as `xdp` or `connect4`.
    pub hook: &'static str,
    /// What happened to it and why.
    pub reason: &'static str,
    pub packets: u64,
}

/// The traffic of one service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceTraffic {
    pub service: ObjectName,
    /// The port's name, which may be empty.
    pub port: String,
    pub protocol: Protocol,
    pub connections: u64,
    /// Flows that have not proved themselves.
    pub half_open: u64,
    /// How many of them have given way to newer ones so far.
    pub gave_way: u64,
    /// Connections dropped because the flow table had no free record.
    pub flow_table_full: u64,
    /// Connections dropped because no port for source NAT was free.
    pub snat_ports_exhausted: u64,
    /// Endpoints that have refused or not answered the latest connections.
    pub failing: Vec<SocketAddr>,
    /// How soon endpoints have answered, by the programs' counters, and in all.
    pub answered: Answered,
    pub latencies: Total,
}

/// A limit of connections, and what is counted of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitCount {
    /// `None` for the node's.
    pub service: Option<ObjectName>,
    /// The most connections; 0 means that they are only counted.
    pub limit: u32,
    /// Whether they do not count against the node's limit.
    pub long_running: bool,
    pub in_use: u32,
    /// The most in use in the latest second.
    pub highest: u32,
    /// Connections refused.
    pub refused: u64,
    /// Connections counted without regard to the limit, because they were in progress.
    pub recovered: u64,
    /// Connections let in without being counted, because the cluster depends on their Service.
    pub exempted: u64,
    /// TCP handshakes that have been open for half a second at least.
    pub slow_handshakes: u32,
    /// Whether these are so many that handshakes take no places.
    pub is_pressed: bool,
}

impl LimitCount {
    /// A metric of this kind with the limit's labels.
    fn metric(&self, of_kind: fn(&[(&str, &str)], u64) -> Metric, value: u64) -> Metric {
        let (scope, namespace, name) = match &self.service {
            Some(service) => ("service", &*service.namespace, &*service.name),
            None => ("node", "", ""),
        };
        let labels = [
            ("scope", scope),
            ("namespace", namespace),
            ("service", name),
        ];
        of_kind(&labels, value)
    }
}

/// How packets of one device reach the load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMode {
    pub device: String,
    pub mode: XdpMode,
    /// Whether that is slower than what the setting `xdp-mode` asks for.
    pub fell_back: bool,
}

/// From best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// XDP in the driver.
    Native,
    /// XDP after the kernel has made an skb.
    Generic,
    /// No XDP on this device; TC does the work.
    Tc,
}

impl ServiceTraffic {
    /// Nothing has come to this Service yet.
    pub fn none(service: ObjectName) -> Self {
        Self {
            service,
            port: String::new(),
            protocol: Protocol::Tcp,
            connections: 0,
            half_open: 0,
            gave_way: 0,
            flow_table_full: 0,
            snat_ports_exhausted: 0,
            failing: Vec::new(),
            answered: Answered::default(),
            latencies: Total::default(),
        }
    }

    /// What only grows.
    pub(super) fn counters(&mut self) -> impl Iterator<Item = &mut u64> {
        let single = [
            &mut self.connections,
            &mut self.gave_way,
            &mut self.flow_table_full,
            &mut self.snat_ports_exhausted,
        ];
        single.into_iter().chain(self.latencies.buckets_mut())
    }

    /// A metric of this kind with the service port's labels.
    fn metric<T>(&self, of_kind: fn(&[(&str, &str)], T) -> Metric, value: T) -> Metric {
        let labels = [
            ("namespace", &*self.service.namespace),
            ("service", &self.service.name),
            ("port", &self.port),
            ("protocol", &self.protocol.to_string()),
        ];
        of_kind(&labels, value)
    }
}

impl XdpMode {
    fn label(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Tc => "tc",
        }
    }
}

impl Sample {
    /// Leaves out families without metrics, which the text format does not allow.
    pub(super) fn into_families(self) -> impl Iterator<Item = MetricFamily> {
        let packets = self.packets.iter().map(|count| {
            let labels = [("hook", count.hook), ("reason", count.reason)];
            counter(&labels, count.packets)
        });
        let services = || self.services.iter();
        let connections = services().map(|service| service.metric(counter, service.connections));
        let half_open = services()
            .filter(|service| service.half_open > 0)
            .map(|service| service.metric(gauge, service.half_open));
        let flow_table_full = services()
            .filter(|service| service.flow_table_full > 0)
            .map(|service| service.metric(counter, service.flow_table_full));
        let snat_ports_exhausted = services()
            .filter(|service| service.snat_ports_exhausted > 0)
            .map(|service| service.metric(counter, service.snat_ports_exhausted));
        let gave_way = services()
            .filter(|service| service.gave_way > 0)
            .map(|service| service.metric(counter, service.gave_way));
        let failing = services()
            .filter(|service| !service.failing.is_empty())
            .map(|service| service.metric(gauge, service.failing.len() as u64));
        let latencies = services()
            .filter(|service| service.latencies.flows() > 0)
            .map(|service| service.metric(latencies, &service.latencies));
        let limits = || self.limits.iter();
        let long_running = limits().filter(|limit| limit.long_running);
        let devices = self.devices.iter().map(|device| {
            let labels = [("device", &*device.device), ("mode", device.mode.label())];
            gauge(&labels, 1)
        });
        let tables = &self.flow_tables;
        let fallbacks = self.devices.iter().map(|device| {
            let labels = [("device", &*device.device)];
            gauge(&labels, device.fell_back.into())
        });
        let maps = |number: fn(&MapFill) -> u32| {
            let maps = self.maps.iter();
            maps.map(move |map| gauge(&[("map", map.map)], number(map).into()))
        };
        [
            family(
                "node_lb_map_entries",
                "Entries in use of the maps that Services are written to.",
                MetricType::GAUGE,
                maps(|map| map.entries),
            ),
            family(
                "node_lb_map_capacity",
                "Entries that there is room for in these maps.",
                MetricType::GAUGE,
                maps(|map| map.capacity),
            ),
            family(
                "node_lb_packets_total",
                "Packets, by hook and by the reason for what happened to them.",
                MetricType::COUNTER,
                packets,
            ),
            family(
                "node_lb_service_connections_total",
                "Connections load-balanced, by service port.",
                MetricType::COUNTER,
                connections,
            ),
            family(
                "node_lb_service_half_open_flows",
                "Half-open flows, by service port; service ports without any are left out.",
                MetricType::GAUGE,
                half_open,
            ),
            family(
                "node_lb_service_flows_gave_way_total",
                "Half-open flows that newer ones replaced, by service port; service ports without any are \
                 left out.",
                MetricType::COUNTER,
                gave_way,
            ),
            family(
                "node_lb_service_flow_table_full_total",
                "Connections dropped because the flow table had no room for them, by service port; service \
                 ports without any are left out.",
                MetricType::COUNTER,
                flow_table_full,
            ),
            family(
                "node_lb_service_snat_ports_exhausted_total",
                "Connections dropped because no port for source NAT was free, by service port; service \
                 ports without any are left out.",
                MetricType::COUNTER,
                snat_ports_exhausted,
            ),
            family(
                "node_lb_service_failing_endpoints",
                "Endpoints that have refused, or not answered, the latest connections, by service port; \
                 service ports without any are left out.",
                MetricType::GAUGE,
                failing,
            ),
            family(
                "node_lb_service_latency_seconds",
                "Time from the first packet of a connection to the first one of its endpoint, as they pass this \
                 node, by service port; service ports without any are left out. The sum is estimated.",
                MetricType::HISTOGRAM,
                latencies,
            ),
            family(
                "node_lb_connection_limit",
                "The most connections at a time, of the node or of a Service; those without a limit are left \
                 out.",
                MetricType::GAUGE,
                limits()
                    .filter(|limit| limit.limit > 0)
                    .map(|limit| limit.metric(gauge, limit.limit.into())),
            ),
            family(
                "node_lb_connection_limit_in_use",
                "Connections that count against the limit of the node or of a Service.",
                MetricType::GAUGE,
                limits().map(|limit| limit.metric(gauge, limit.in_use.into())),
            ),
            family(
                "node_lb_connection_limit_highest",
                "The most connections within the limit in the latest second.",
                MetricType::GAUGE,
                limits().map(|limit| limit.metric(gauge, limit.highest.into())),
            ),
            family(
                "node_lb_connection_limit_refused_total",
                "Connections refused because the limit was reached.",
                MetricType::COUNTER,
                limits().map(|limit| limit.metric(counter, limit.refused)),
            ),
            family(
                "node_lb_connection_limit_recovered_total",
                "Connections counted without regard to the limit, because they were in progress.",
                MetricType::COUNTER,
                limits().map(|limit| limit.metric(counter, limit.recovered)),
            ),
            family(
                "node_lb_connection_limit_exempted_total",
                "Connections let in above the limit and not counted, because the cluster depends on their \
                 Service.",
                MetricType::COUNTER,
                limits().map(|limit| limit.metric(counter, limit.exempted)),
            ),
            family(
                "node_lb_connection_limit_slow_handshakes",
                "TCP handshakes within the limit that have been open for half a second at least.",
                MetricType::GAUGE,
                limits().map(|limit| limit.metric(gauge, limit.slow_handshakes.into())),
            ),
            family(
                "node_lb_connection_limit_pressed",
                "1 while so many handshakes are slow that they take no places.",
                MetricType::GAUGE,
                limits().map(|limit| limit.metric(gauge, limit.is_pressed.into())),
            ),
            family(
                "node_lb_long_running_connections",
                "Connections that do not count against the node's limit, by Service.",
                MetricType::GAUGE,
                long_running.map(|limit| limit.metric(gauge, limit.in_use.into())),
            ),
            family(
                "node_lb_connection_limit_corrected_total",
                "By how many connections the numbers within limits, or by how many seats those of priority \
                 levels, were corrected after a recount.",
                MetricType::COUNTER,
                (!self.limits.is_empty() || !self.levels.is_empty())
                    .then(|| counter(&[], self.limits_corrected))
                    .into_iter(),
            ),
            family(
                "node_lb_device_xdp_mode",
                "Constant 1; the label `mode` says how XDP is attached to the device.",
                MetricType::GAUGE,
                devices,
            ),
            family(
                "node_lb_device_xdp_fallback",
                "1 if XDP is attached to the device in a slower way than asked for.",
                MetricType::GAUGE,
                fallbacks,
            ),
            family(
                "node_lb_flows",
                "Live flows.",
                MetricType::GAUGE,
                tables.iter().map(|table| table.gauge(table.flows)),
            ),
            family(
                "node_lb_flow_table_size",
                "Number of flows that the flow table has room for.",
                MetricType::GAUGE,
                tables.iter().map(|table| table.gauge(table.room)),
            ),
            family(
                "node_lb_service_port_flows_highest",
                "Flows of the service port that has the most, but for half-open ones.",
                MetricType::GAUGE,
                tables.iter().map(|table| table.gauge(table.busiest)),
            ),
            family(
                "node_lb_service_port_flows_limit",
                "Number of flows that one service port may have, but for half-open ones.",
                MetricType::GAUGE,
                tables.iter().map(|table| table.gauge(table.flows_of_one)),
            ),
            family(
                "node_lb_sync_running_seconds",
                "For how long the sync that runs has been running; 0 without one.",
                MetricType::GAUGE,
                [seconds(self.sync_running)].into_iter(),
            ),
            family(
                "node_lb_state_age_seconds",
                "Since when the agent's main loop has said nothing of its state.",
                MetricType::GAUGE,
                [seconds(self.state_age)].into_iter(),
            ),
        ]
        .into_iter()
        .chain(admission::families(&self.levels, &self.schemas, self.unclassified))
        .filter(|family| !family.get_metric().is_empty())
    }
}

pub(super) fn family(
    name: &str,
    help: &str,
    kind: MetricType,
    metrics: impl Iterator<Item = Metric>,
) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.into());
    family.set_help(help.into());
    family.set_field_type(kind);
    family.set_metric(metrics.collect());
    family
}

pub(super) fn counter(labels: &[(&str, &str)], value: u64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(value as f64);
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_counter(counter);
    metric
}

pub(super) fn gauge(labels: &[(&str, &str)], value: u64) -> Metric {
    let mut gauge = Gauge::default();
    gauge.set_value(value as f64);
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_gauge(gauge);
    metric
}

pub(super) fn waits(labels: &[(&str, &str)], waits: &Waits) -> Metric {
    let bounds = waits.up_to_bounds();
    let buckets = bounds.map(|(bound, number)| (bound.as_secs_f64(), number));
    histogram(labels, buckets, waits.number(), waits.total().as_secs_f64())
}

fn latencies(labels: &[(&str, &str)], total: &Total) -> Metric {
    histogram(labels, total.within(), total.flows(), total.seconds())
}

/// `buckets` says how many are not above each bound.
fn histogram(
    labels: &[(&str, &str)],
    buckets: impl Iterator<Item = (f64, u64)>,
    number: u64,
    sum: f64,
) -> Metric {
    let buckets = buckets.map(|(bound, number)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound);
        bucket.set_cumulative_count(number);
        bucket
    });
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(number);
    histogram.set_sample_sum(sum);
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_histogram(histogram);
    metric
}

fn seconds(time: Duration) -> Metric {
    let mut gauge = Gauge::default();
    gauge.set_value(time.as_secs_f64());
    let mut metric = Metric::default();
    metric.set_gauge(gauge);
    metric
}

fn pairs(labels: &[(&str, &str)]) -> Vec<LabelPair> {
    labels
        .iter()
        .map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).into());
            pair.set_value((*value).into());
            pair
        })
        .collect()
}
