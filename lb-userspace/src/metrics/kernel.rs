//! Metrics that live in the kernel's maps and are read when somebody asks.

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use crate::model::{ObjectName, Protocol};

/// The data plane, as far as metrics go.
pub trait KernelSource: Send + Sync {
    /// Reads the counters. Called for each scrape, on a thread that may block.
    fn sample(&self) -> anyhow::Result<Sample>;
}

/// The counters of the data plane at one moment. Totals count from when the maps were made: they
/// outlive the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    pub packets: Vec<PacketCount>,
    pub services: Vec<ServiceConnections>,
    pub devices: Vec<DeviceMode>,
    /// Live flows. `None` until the table exists.
    pub flows: Option<u64>,
    /// Flows the table has room for.
    pub flow_table_size: Option<u64>,
}

/// Packets that met one fate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketCount {
    /// Where the packet was seen, as in `xdp` or `connect4`.
    pub hook: &'static str,
    /// What became of it and why.
    pub reason: &'static str,
    pub packets: u64,
}

/// Connections to one service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceConnections {
    pub service: ObjectName,
    /// The port's name, which may be empty.
    pub port: String,
    pub protocol: Protocol,
    pub connections: u64,
}

/// How packets of one device reach the load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMode {
    pub device: String,
    pub mode: XdpMode,
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
    /// Never a family without metrics, which the text format does not know.
    pub(super) fn into_families(self) -> impl Iterator<Item = MetricFamily> {
        let packets = self.packets.iter().map(|count| {
            let labels = [("hook", count.hook), ("reason", count.reason)];
            counter(&labels, count.packets)
        });
        let connections = self.services.iter().map(|service| {
            let protocol = service.protocol.to_string();
            let labels = [
                ("namespace", service.service.namespace.as_str()),
                ("service", service.service.name.as_str()),
                ("port", service.port.as_str()),
                ("protocol", protocol.as_str()),
            ];
            counter(&labels, service.connections)
        });
        let devices = self.devices.iter().map(|device| {
            let labels = [("device", &*device.device), ("mode", device.mode.label())];
            gauge(&labels, 1)
        });
        [
            family(
                "node_lb_packets_total",
                "Packets, by what became of them and why.",
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
                "node_lb_device_xdp_mode",
                "Constant 1; the label `mode` tells how the device is attached.",
                MetricType::GAUGE,
                devices,
            ),
            family(
                "node_lb_flows",
                "Live flows.",
                MetricType::GAUGE,
                self.flows.iter().map(|flows| gauge(&[], *flows)),
            ),
            family(
                "node_lb_flow_table_size",
                "Flows the flow table has room for.",
                MetricType::GAUGE,
                self.flow_table_size.iter().map(|size| gauge(&[], *size)),
            ),
        ]
        .into_iter()
        .filter(|family| !family.get_metric().is_empty())
    }
}

fn family(
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

fn counter(labels: &[(&str, &str)], value: u64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(value as f64);
    let mut metric = Metric::from_label(pairs(labels));
    metric.set_counter(counter);
    metric
}

fn gauge(labels: &[(&str, &str)], value: u64) -> Metric {
    let mut gauge = Gauge::default();
    gauge.set_value(value as f64);
    let mut metric = Metric::from_label(pairs(labels));
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
