//! What has come to service ports, for metrics, `status` and `top`.

use std::sync::Arc;

use super::local_api::traffic::{EndpointTraffic, PortTraffic};
use crate::{
    latency::micros,
    map_writer::{Counts, EndpointCounts, Key, Roster},
    metrics::ServiceTraffic,
    plan::{ServicePlan, ServicePortName},
};

/// What has come to every service port in the maps, both families together. Takes time.
pub fn traffic(roster: &Roster) -> Vec<ServiceTraffic> {
    summed_up(roster, nothing, add)
}

/// The same, as the local API shows it.
pub fn ports(roster: &Roster) -> Vec<PortTraffic> {
    summed_up(roster, silent, add_all)
}

/// The endpoints of a Service that are in the maps.
pub fn endpoints(roster: &Roster, service: &ServicePlan) -> Vec<EndpointTraffic> {
    let ports = service.ports.iter().flat_map(|plan| {
        let of_port = |endpoint| endpoint_traffic(&plan.name, endpoint);
        let endpoints = roster.endpoints(&Key::of(plan)).into_iter();
        endpoints.map(of_port)
    });
    ports.collect()
}

/// An entry for each service port in the maps, to which the numbers of each of its families are
/// added.
fn summed_up<T>(
    roster: &Roster,
    nothing: impl Fn(&ServicePortName) -> T,
    add: impl Fn(&mut T, Counts),
) -> Vec<T> {
    let mut all = Vec::with_capacity(roster.len());
    let mut of: Option<Arc<ServicePortName>> = None;
    roster.tell(|key, counts| {
        // The families of a port follow each other.
        let mut port = match of.as_ref().is_some_and(|name| *name == key.name) {
            true => all.pop(),
            false => None,
        }
        .unwrap_or_else(|| nothing(&key.name));
        add(&mut port, counts);
        all.push(port);
        of = Some(key.name.clone());
    });
    all
}

fn nothing(name: &ServicePortName) -> ServiceTraffic {
    ServiceTraffic {
        port: name.port.to_string(),
        protocol: name.protocol,
        ..ServiceTraffic::none(name.service.clone())
    }
}

fn add(traffic: &mut ServiceTraffic, counts: Counts) {
    let Counts {
        stats,
        shortages,
        failing,
        latencies,
        ..
    } = counts;
    traffic.connections += stats.connections;
    traffic.half_open += u64::try_from(stats.half_open).unwrap_or(0);
    traffic.gave_way += u64::from(stats.gave_way);
    traffic.flow_table_full += shortages.flow_table_full;
    traffic.snat_ports_exhausted += shortages.snat_ports_exhausted;
    traffic.failing.extend(failing);
    traffic.answered.add(&latencies);
}

fn silent(name: &ServicePortName) -> PortTraffic {
    PortTraffic {
        service: name.service.to_string(),
        service_port: name.to_string(),
        protocol: name.protocol.to_string(),
        ..PortTraffic::default()
    }
}

fn add_all(traffic: &mut PortTraffic, counts: Counts) {
    let Counts {
        id,
        stats,
        flows,
        shortages,
        failing,
        latencies,
        ready,
        terminating,
    } = counts;
    traffic.ids.push(id);
    traffic.open += u64::try_from(flows.flows).unwrap_or(0);
    traffic.half_open += u64::try_from(stats.half_open).unwrap_or(0);
    traffic.connections += stats.connections;
    traffic.rejected += stats.rejected;
    traffic.dropped += stats.dropped;
    traffic.flow_table_full += shortages.flow_table_full;
    traffic.snat_ports_exhausted += shortages.snat_ports_exhausted;
    traffic.gave_way += u64::from(stats.gave_way);
    traffic.ready += ready;
    traffic.terminating += terminating;
    traffic.failing += failing.len();
    traffic.answered.add(&latencies);
}

fn endpoint_traffic(port: &ServicePortName, endpoint: EndpointCounts) -> EndpointTraffic {
    EndpointTraffic {
        service_port: port.to_string(),
        protocol: port.protocol.to_string(),
        address: endpoint.address,
        ready: endpoint.is_ready,
        connections: endpoint.connections,
        failures: endpoint.failures,
        avoided: endpoint.is_failing(),
        latency_us: (endpoint.latency != 0).then(|| micros(endpoint.latency)),
    }
}
