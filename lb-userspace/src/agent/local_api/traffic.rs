//! `/traffic`: what comes to Services, in the kernel's own numbers.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use hyper::StatusCode;
use lb_objects::ObjectName;
use serde::{Deserialize, Serialize};

use super::{from_maps, object};
use crate::{
    agent::status::{ConnectionLimit, FlowTable, Map, PriorityLevel},
    http::{Request, Response, error_status, json},
    latency::Answered,
};

/// The path of all Services' traffic; that of one is below it, `NAMESPACE/NAME`.
pub const TRAFFIC: &str = "/traffic";

/// What has come to Services until one moment. What is counted *so far* counts from when the maps,
/// or the entry in them, were made: an agent that starts anew goes on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// When the numbers were read, in milliseconds of the kernel's monotonic clock. What is counted
    /// between two answers took the time between them.
    pub at_ms: u64,
    pub node: String,
    /// In the order of names.
    pub service_ports: Vec<PortTraffic>,
    /// Where the buckets of [`PortTraffic::answered`] end, in microseconds.
    #[serde(default)]
    pub answered_within_us: Vec<f64>,
    /// Limits of connections.
    pub connection_limits: Vec<ConnectionLimit>,
    pub priority_levels: Vec<PriorityLevel>,
    /// Packets that were refused or dropped so far, by reason, at all hooks.
    pub refused_packets: BTreeMap<String, u64>,
    /// As the latest pass over the flow tables saw them; absent until the first pass.
    pub flow_tables: Option<[FlowTable; 2]>,
    /// The maps that Services are written to.
    pub maps: Vec<Map>,
}

/// What has come to a service port, both families together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortTraffic {
    /// Its Service, `namespace/name`.
    pub service: String,
    /// `namespace/name:port`, without the colon if the port has no name.
    pub service_port: String,
    pub protocol: String,
    /// Its numbers in the maps, one of each family: by these flows name it.
    pub ids: Vec<u32>,
    /// Flows at this moment. Programs count out of order, so it may be off for a moment.
    pub open: u64,
    /// Those of them that have not proved themselves.
    pub half_open: u64,
    /// Connections load-balanced so far.
    pub connections: u64,
    /// First packets that were answered with a refusal so far: there is no endpoint, or a limit of
    /// connections is reached.
    pub rejected: u64,
    /// First packets dropped so far.
    pub dropped: u64,
    /// Those of them for which the flow table had no free record.
    pub flow_table_full: u64,
    /// Those of them for which no port for source NAT was free.
    pub snat_ports_exhausted: u64,
    /// Half-open flows that gave way to newer ones so far, modulo 2^32 of each family.
    pub gave_way: u64,
    /// Endpoints that are ready.
    pub ready: usize,
    /// Endpoints that are used only where none is ready.
    pub terminating: usize,
    /// Endpoints that have refused or not answered the latest connections.
    pub failing: usize,
    /// How soon endpoints have answered flows so far, by [`Traffic::answered_within_us`]: from a flow's
    /// first packet to the first one of its endpoint, at this node.
    #[serde(default)]
    pub answered: Answered,
}

/// The endpoints of a Service, and what has come to them until one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceEndpoints {
    /// As in [`Traffic`].
    pub at_ms: u64,
    /// In the order of service ports, those that are ready first.
    pub endpoints: Vec<EndpointTraffic>,
}

/// An endpoint of a service port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointTraffic {
    /// As in [`PortTraffic`].
    pub service_port: String,
    pub protocol: String,
    pub address: SocketAddr,
    /// If not, it is terminating: used only where none is ready.
    pub ready: bool,
    /// Connections sent to it so far.
    pub connections: u64,
    /// How many of the latest connections in a row it has refused or not answered; refused ones
    /// count several times.
    pub failures: u32,
    /// Whether these are so many that new connections avoid it, if there is another one.
    pub avoided: bool,
    /// How soon it answers new flows, smoothed, in microseconds; absent if it has never answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<f64>,
}

/// The counters of the data plane.
pub trait TrafficSource: Send + Sync + 'static {
    /// What has come to all Services. Takes time, and may be the same again for a moment.
    ///
    /// # Errors
    ///
    /// If a map cannot be read.
    fn traffic(&self) -> anyhow::Result<Arc<Traffic>>;

    /// The endpoints of a Service; `None` if there is no such Service in the maps.
    fn endpoints(&self, service: &ObjectName) -> Option<ServiceEndpoints>;
}

/// The traffic of all Services.
pub async fn all(request: &Request, source: Arc<dyn TrafficSource>) -> Response {
    let read = move || Ok(serde_json::to_vec(&*source.traffic()?)?);
    match from_maps(request, read).await {
        Ok(traffic) => json(StatusCode::OK, traffic),
        Err(refusal) => *refusal,
    }
}

/// The endpoints of one Service.
pub fn endpoints(source: &dyn TrafficSource, service: &ObjectName) -> Response {
    match source.endpoints(service) {
        Some(endpoints) => object(&endpoints),
        None => error_status(
            StatusCode::NOT_FOUND,
            "NotFound",
            format_args!("there is no Service {service} in the maps"),
        ),
    }
}
