//! The tables of views, made of the numbers of one moment.

use std::collections::HashMap;

use super::{
    flows::{Count, Whose},
    frame::{Frame, Port},
    table::{Cell, Column, Row, Table},
    view::{Known, PortName, Subject},
};
use crate::agent::status::ConnectionLimit;

/// A column of so many characters.
const fn column(title: &'static str, width: u16, rank: u8) -> Column {
    Column { title, width, rank }
}

const SERVICES: &[Column] = &[
    column("SERVICE PORT", 0, 0),
    column("PROTO", 5, 7),
    column("OPEN", 7, 0),
    column("HALF", 6, 3),
    column("NEW/S", 7, 0),
    column("REJ/S", 6, 1),
    column("DROP/S", 6, 2),
    column("P50", 6, 14),
    column("P99", 6, 5),
    column("IN B/S", 6, 9),
    column("OUT B/S", 7, 8),
    column("SEATS", 9, 6),
    column("READY", 5, 4),
    column("TERM", 4, 11),
    column("AVOID", 5, 10),
    column("FULL/S", 6, 12),
    column("SNAT/S", 6, 13),
    column("TOTAL", 10, 15),
];
const ENDPOINTS: &[Column] = &[
    column("ENDPOINT", 0, 0),
    column("STATE", 11, 0),
    column("AVOIDED", 7, 1),
    column("OPEN", 7, 0),
    column("HALF", 6, 3),
    column("NEW/S", 7, 0),
    column("LATENCY", 7, 2),
    column("IN B/S", 6, 5),
    column("OUT B/S", 7, 4),
    column("FAILURES", 8, 6),
    column("TOTAL", 10, 7),
];
const CLIENTS: &[Column] = &[
    column("CLIENT", 0, 0),
    column("OPEN", 9, 0),
    column("HALF", 9, 0),
    column("SHARE", 7, 1),
    column("IN B/S", 6, 3),
    column("OUT B/S", 7, 2),
];
const SOURCES: &[Column] = &[
    column("SOURCE", 0, 0),
    column("OPEN", 9, 0),
    column("HALF", 9, 0),
    column("SHARE", 7, 1),
    column("IN B/S", 6, 4),
    column("OUT B/S", 7, 3),
    column("SERVICE PORT", 30, 2),
];
const BUDGETS: &[Column] = &[
    column("BUDGET", 0, 0),
    column("USED", 9, 0),
    column("ROOM", 9, 1),
    column("FULL", 7, 0),
    column("", 22, 2),
    column("WAITING", 7, 3),
];
const REASONS: &[Column] = &[
    column("REASON", 0, 0),
    column("PACKETS/S", 10, 0),
    column("PACKETS", 14, 0),
];

/// All service ports.
pub fn services(frame: &Frame) -> Table {
    let limits = frame.connection_limits.iter();
    let limits: HashMap<_, _> = limits
        .filter_map(|limit| Some((limit.service.as_deref()?, limit)))
        .collect();
    let rows = frame
        .service_ports
        .iter()
        .map(|port| service(port, limits.get(&*port.traffic.service).copied()));
    Table {
        columns: SERVICES,
        rows: rows.collect(),
    }
}

fn service(port: &Port, limit: Option<&ConnectionLimit>) -> Row {
    let Port {
        traffic,
        per_second,
        latency,
    } = port;
    let seats = limit.map_or_else(
        || Cell::Text("-".to_owned()),
        |limit| Cell::Of(limit.in_use.into(), limit.limit.into()),
    );
    let endpoints = traffic.ready + traffic.terminating;
    Row {
        subject: Subject::Port(traffic.into()),
        cells: vec![
            Cell::Text(traffic.service_port.clone()),
            Cell::Text(traffic.protocol.clone()),
            Cell::Number(traffic.open),
            Cell::Number(traffic.half_open),
            Cell::Rate(per_second.connections),
            Cell::Rate(per_second.rejected),
            Cell::Rate(per_second.dropped),
            Cell::Time(latency.map(|latency| latency.p50_us)),
            Cell::Time(latency.map(|latency| latency.p99_us)),
            Cell::Rate(per_second.bytes_from_clients),
            Cell::Rate(per_second.bytes_to_clients),
            seats,
            Cell::Text(format!("{}/{endpoints}", traffic.ready)),
            Cell::Number(traffic.terminating as u64),
            Cell::Number(traffic.failing as u64),
            Cell::Rate(per_second.flow_table_full),
            Cell::Rate(per_second.snat_ports_exhausted),
            Cell::Number(traffic.connections),
        ],
    }
}

/// The endpoints of a service port.
pub fn endpoints(port: &PortName, known: &Known, count: Option<&Count>) -> Table {
    let of_service = known.endpoints.as_ref();
    let of_service = of_service.filter(|(service, _)| *service == port.service);
    let endpoints = of_service.map_or(&[][..], |(_, endpoints)| endpoints);
    let of_port = endpoints.iter().filter(|endpoint| {
        let of = &endpoint.traffic;
        (&of.service_port, &of.protocol) == (&port.service_port, &port.protocol)
    });
    let rows = of_port.map(|endpoint| {
        let traffic = &endpoint.traffic;
        let crowd = count.map(|count| count.of(Whose::Endpoint(traffic.address)));
        let open = crowd.map(|crowd| crowd.map_or(0, |crowd| crowd.open));
        let half_open = crowd.map(|crowd| crowd.map_or(0, |crowd| crowd.half_open));
        let [from_clients, to_clients] =
            count.map_or([None; 2], |count| count.rates(crowd.flatten()));
        let state = if traffic.ready {
            "ready"
        } else {
            "terminating"
        };
        let avoided = if traffic.avoided { "avoided" } else { "" };
        Row {
            subject: Subject::Endpoint(traffic.address),
            cells: vec![
                Cell::Text(traffic.address.to_string()),
                Cell::Text(state.to_owned()),
                Cell::Text(avoided.to_owned()),
                Cell::Known(open),
                Cell::Known(half_open),
                Cell::Rate(endpoint.connections_per_second),
                Cell::Time(traffic.latency_us),
                Cell::Rate(from_clients),
                Cell::Rate(to_clients),
                Cell::Number(traffic.failures.into()),
                Cell::Number(traffic.connections),
            ],
        }
    });
    Table {
        columns: ENDPOINTS,
        rows: rows.collect(),
    }
}

/// The clients of an endpoint.
pub fn clients(frame: &Frame, count: Option<&Count>) -> Table {
    crowds(CLIENTS, frame, count)
}

/// Who has flows, of all services.
pub fn sources(frame: &Frame, count: Option<&Count>) -> Table {
    crowds(SOURCES, frame, count)
}

/// Sources of flows. The column of the service port is left out if they are all of one.
fn crowds(columns: &'static [Column], frame: &Frame, count: Option<&Count>) -> Table {
    let ports = frame.service_ports.iter();
    let names: HashMap<u32, &str> = ports
        .flat_map(|port| {
            let name = &*port.traffic.service_port;
            port.traffic.ids.iter().map(move |id| (*id, name))
        })
        .collect();
    let all = count.map_or(0, |count| count.flows);
    let crowds = count
        .into_iter()
        .flat_map(|count| count.crowds.iter().map(move |crowd| (count, crowd)));
    let rows = crowds.filter_map(|(count, (whose, crowd))| {
        let Whose::Source(source) = whose else {
            return None;
        };
        let service = match crowd.service {
            Some(id) => names.get(&id).map_or("-", |name| name),
            None => "several",
        };
        let [from_clients, to_clients] = count.rates([crowd]);
        let mut cells = vec![
            Cell::Text(source.to_string()),
            Cell::Number(crowd.open),
            Cell::Number(crowd.half_open),
            Cell::Percent(crowd.open as f64 / all.max(1) as f64),
            Cell::Rate(from_clients),
            Cell::Rate(to_clients),
            Cell::Text(service.to_owned()),
        ];
        cells.truncate(columns.len());
        Some(Row {
            subject: Subject::Source(*source),
            cells,
        })
    });
    Table {
        columns,
        rows: rows.collect(),
    }
}

/// Why packets are refused or dropped.
pub fn reasons(frame: &Frame) -> Table {
    let reasons = frame.refused_packets.iter();
    let rows = reasons.map(|(reason, packets)| Row {
        subject: Subject::Named(reason.clone()),
        cells: vec![
            Cell::Text(reason.clone()),
            Cell::Rate(packets.per_second),
            Cell::Number(packets.packets),
        ],
    });
    Table {
        columns: REASONS,
        rows: rows.collect(),
    }
}

/// Endpoints shown that have the most ports for source NAT in use.
const SNAT_SHOWN: usize = 20;

/// What is limited.
pub fn budgets(frame: &Frame, count: Option<&Count>) -> Table {
    let mut rows = of_agent(frame);
    rows.extend(count.into_iter().flat_map(source_nat));
    Table {
        columns: BUDGETS,
        rows,
    }
}

/// The budgets that the agent tells of.
fn of_agent(frame: &Frame) -> Vec<Row> {
    let mut rows = Vec::new();
    for table in frame.flow_tables.iter().flatten() {
        let name = format!("flow table {}", table.family);
        rows.push(budget(name, table.occupied.into(), table.records.into(), 0));
    }
    for map in &frame.maps {
        let (used, room) = (map.entries.into(), map.capacity.into());
        rows.push(budget(format!("map {}", map.name), used, room, 0));
    }
    for limit in &frame.connection_limits {
        let whose = limit.service.as_deref().unwrap_or("node");
        let (used, room) = (limit.in_use.into(), limit.limit.into());
        rows.push(budget(format!("connections of {whose}"), used, room, 0));
    }
    for level in &frame.priority_levels {
        let room = if level.exempt { 0 } else { level.limit };
        let (used, waiting) = (level.in_use.into(), level.waiting.into());
        let name = format!("level {}", level.name);
        rows.push(budget(name, used, room.into(), waiting));
    }
    rows
}

/// The endpoints with the most ports for source NAT.
fn source_nat(count: &Count) -> Vec<Row> {
    let crowds = count.crowds.iter();
    let crowds = crowds.filter(|(_, crowd)| crowd.source_nat != 0);
    let mut crowds: Vec<_> = crowds
        .map(|(whose, crowd)| (crowd.source_nat, *whose))
        .collect();
    crowds.sort_unstable_by(|one, other| other.cmp(one));
    let crowds = crowds.into_iter().take(SNAT_SHOWN);
    let rows = crowds.filter_map(|(used, whose)| match whose {
        Whose::Endpoint(endpoint) => {
            let name = format!("source NAT to {endpoint}");
            Some(budget(name, used, count.snat_ports.into(), 0))
        }
        Whose::Service(_) | Whose::Source(_) => None,
    });
    rows.collect()
}

/// So much of a budget is used; it has no end if `room` is zero.
fn budget(name: String, used: u64, room: u64, waiting: u64) -> Row {
    let part = match room {
        0 => 0.0,
        room => used as f64 / room as f64,
    };
    Row {
        subject: Subject::Named(name.clone()),
        cells: vec![
            Cell::Text(name),
            Cell::Number(used),
            Cell::Known(Some(room).filter(|room| *room != 0)),
            Cell::Percent(part),
            Cell::Bar(part),
            Cell::Number(waiting),
        ],
    }
}
