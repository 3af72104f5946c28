//! What has come to service ports, for metrics and `status`.

use crate::{
    map_writer::{Counts, Roster},
    metrics::ServiceTraffic,
    plan::ServicePortName,
};

/// What has come to every service port in the maps, both families together. Takes time.
pub fn traffic(roster: &Roster) -> Vec<ServiceTraffic> {
    let mut traffic: Vec<ServiceTraffic> = Vec::new();
    roster.tell(|key, counts| {
        // The families of a port follow each other.
        match traffic.last_mut().filter(|last| is_of(last, &key.name)) {
            Some(port) => add(port, counts),
            None => {
                let mut port = nothing(&key.name);
                add(&mut port, counts);
                traffic.push(port);
            }
        }
    });
    traffic
}

fn is_of(traffic: &ServiceTraffic, name: &ServicePortName) -> bool {
    (&traffic.service, &*traffic.port, traffic.protocol)
        == (&name.service, &*name.port, name.protocol)
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
    } = counts;
    traffic.connections += stats.connections;
    traffic.half_open += u64::try_from(stats.half_open).unwrap_or(0);
    traffic.gave_way += u64::from(stats.gave_way);
    traffic.flow_table_full += shortages.flow_table_full;
    traffic.snat_ports_exhausted += shortages.snat_ports_exhausted;
    traffic.failing.extend(failing);
}
