//! kube-proxy's conntrack clean-up, for node-lb's flows. A flow names its service port by id, where
//! conntrack has to guess it from address and port.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use lb_common::flow::{flow_flag, record::flags, tag};
use lb_objects::{
    Algorithm, Endpoint, EndpointPort, EndpointSlice, Node, ObjectName, Protocol, RemovedEndpoints,
    Service, ServicePort, ServiceType, TrafficPolicy, Weights,
};
use lb_vectors::{Conntrack, ConntrackFlow, Delete, Vectors};
use node_lb::{
    flows::{Stale, stale::changed, stats::Removed},
    plan::{LocalNode, PlanOptions, ServicePlan, plan},
};

use super::table::{NewFlow, Sweeping, Table};

/// Ids of the vectors' UDP port, of their TCP port, and of a service port that is not in them.
const UDP: u32 = 1;
const TCP: u32 = 2;
const OTHER: u32 = 3;

#[test]
fn conntrack() {
    let rows = Vectors::load().conntrack;
    let table = Table::new(1024);
    // SCTP is not translated, so it has no flows.
    let translated = rows
        .flows
        .iter()
        .enumerate()
        .filter(|(_, row)| row.protocol != "SCTP");
    let flows: Vec<_> = translated
        .map(|(number, row)| (row, new_flow(&rows, row, number as u32)))
        .collect();
    for (row, flow) in &flows {
        assert!(table.open(flow).is_some(), "{row:?}");
    }

    let serving = rows.endpoints.iter().filter(|endpoint| endpoint.serving);
    let ended = end_stale(
        &table,
        UDP,
        serving.map(|endpoint| endpoint.address().into()),
    );

    for (row, flow) in &flows {
        assert_eq!(table.has(flow), !row.delete, "{row:?}");
    }
    assert_eq!(
        ended,
        flows.iter().filter(|(row, _)| row.delete).count() as u64
    );
    let sctp = rows.flows.iter().filter(|row| row.protocol == "SCTP");
    assert!(sctp.into_iter().all(|row| !row.delete));
}

#[test]
fn conntrack_in_words() {
    let rows = Vectors::load().conntrack;
    let flow = NewFlow {
        service: UDP,
        ..NewFlow::udp(1)
    };
    let endpoint = flow.endpoint();
    let mut other_port = endpoint;
    other_port.set_port(endpoint.port() + 1);

    for row in rows.extra {
        let table = Table::new(64);
        table.open(&flow).unwrap();
        match row.case.as_str() {
            "UDP flow to the service whose reply source is the serving IP but another port" => {
                end_stale(&table, UDP, [other_port]);
            }
            "UDP flow to a serving endpoint that is terminating" => {
                let mut slice = slice("s", &[("dns", 8080)], &[endpoint.ip()]);
                slice.endpoints[0].ready = false;
                slice.endpoints[0].terminating = true;
                let planned = planned(&service(Protocol::Udp, &["dns"]), &[slice]);
                let remaining = planned.ports[0].remaining.clone();
                end_stale(&table, UDP, remaining.unwrap());
            }
            "UDP flow of a service that no longer exists" => {
                end_stale(&table, OTHER, []);
            }
            "UDP service with zero serving endpoints, two flows to it" => {
                let second = NewFlow { client: 2, ..flow };
                table.open(&second).unwrap();
                assert_eq!(end_stale(&table, UDP, []), 2);
                assert!(!table.has(&second));
            }
            "nothing of a UDP service port's endpoints changed in this sync" => {
                let service = service(Protocol::Udp, &["dns"]);
                let slices = [slice("s", &[("dns", 8080)], &[endpoint.ip()])];
                let (before, after) = (planned(&service, &slices), planned(&service, &slices));
                assert_eq!(changed(Some(&before), &after).count(), 0);
            }
            case => panic!("unknown case {case:?}"),
        }
        let deleted = match row.delete {
            None => false,
            Some(Delete::Always(delete)) => delete,
            Some(Delete::ByRelease(releases)) => {
                let newest = releases
                    .iter()
                    .find(|(release, _)| release.starts_with("with PR"));
                *newest.unwrap().1
            }
        };
        assert_eq!(table.has(&flow), !deleted, "{}", row.case);
    }
}

#[test]
fn conntrack_trigger() {
    let [a, b]: [IpAddr; 2] = ["10.0.1.1", "10.0.1.2"].map(|ip| ip.parse().unwrap());
    let udp = service(Protocol::Udp, &["p11", "p12"]);
    let base = slice("s1", &[("p11", 11)], &[a]);
    let larger = slice("s1", &[("p11", 11), ("p12", 12)], &[a, b]);
    for row in Vectors::load().conntrack_trigger {
        let (service, before, after) = match row.change.as_str() {
            "add slice with UDP port" => (&udp, vec![], vec![base.clone()]),
            "add an address and a port" => (&udp, vec![base.clone()], vec![larger.clone()]),
            "remove an address and a port" => (&udp, vec![larger.clone()], vec![base.clone()]),
            "add second slice" => {
                let second = slice("s2", &[("p12", 12)], &[b]);
                (&udp, vec![base.clone()], vec![base.clone(), second])
            }
            "rename UDP port" => {
                let renamed = slice("s1", &[("p11-2", 11)], &[a]);
                (&udp, vec![base.clone()], vec![renamed])
            }
            "only slices of Services without any UDP slice port changed" => {
                let of_tcp = |mut slice: EndpointSlice| {
                    slice
                        .ports
                        .iter_mut()
                        .for_each(|port| port.protocol = Protocol::Tcp);
                    slice
                };
                let tcp = &service(Protocol::Tcp, &["p11", "p12"]);
                let (before, after) = (of_tcp(base.clone()), of_tcp(larger.clone()));
                let (before, after) = (planned(tcp, &[before]), planned(tcp, &[after]));
                assert_ne!(before, after);
                assert_eq!(changed(Some(&before), &after).count(), 0);
                assert!(!row.cleanup_required);
                continue;
            }
            change => panic!("unknown change {change:?}"),
        };
        let (before, after) = (planned(service, &before), planned(service, &after));
        let required = changed(Some(&before), &after).count() != 0;
        assert_eq!(required, row.cleanup_required, "{}", row.change);
    }
}

#[test]
fn answers_that_are_under_way_are_let_through() {
    let table = Table::new(64);
    let mut sweeping = Sweeping::new(&table);
    let flow = NewFlow {
        service: UDP,
        ..NewFlow::udp(1)
    };
    table.open(&flow).unwrap();
    sweeping.pass(1);
    assert_eq!(end_stale(&table, UDP, []), 1);
    assert!(!table.has(&flow) && table.has_answers(&flow));
    sweeping.pass(1);
    assert!(table.has_answers(&flow), "a pass may follow at once");
    assert_eq!(table.count(tag::SWEPT), 1, "no other flow takes its place");

    let again = table.open(&flow);
    assert!(
        again.is_none(),
        "the answers would be taken for the new flow's"
    );
    (0..3).for_each(|_| sweeping.pass(1));
    assert_eq!(table.count(tag::LIVE) + table.count(tag::SWEPT), 0);
    assert_eq!(sweeping.removed.orphans, 1);
    assert!(table.open(&flow).is_some());
}

#[test]
fn a_tcp_flow_is_marked_for_its_client_to_be_told_and_lives_on_until_then() {
    let table = Table::new(64);
    let flow = NewFlow {
        service: TCP,
        ..NewFlow::tcp(1)
    };
    table.open(&flow).unwrap();
    let (forward, _) = table.pair(&flow).unwrap();
    let is_gone = || flags(forward) & flow_flag::GONE != 0;
    assert_eq!(end_stale_of_both(&table, TCP, [flow.endpoint()]), (0, 0));
    assert_eq!(end_stale_of_both(&table, OTHER, []), (0, 0));
    assert!(!is_gone());
    assert_eq!(end_stale_of_both(&table, TCP, []), (0, 1));
    assert!(is_gone() && table.has(&flow) && table.has_answers(&flow));
    assert_eq!(end_stale_of_both(&table, TCP, []), (0, 0), "it is known");
}

#[test]
fn after_a_start_every_udp_port_is_looked_at() {
    let ports = ["p11", "p12"];
    let udp = planned(&service(Protocol::Udp, &ports), &[]);
    let tcp = planned(&service(Protocol::Tcp, &ports), &[]);
    assert_eq!(changed(None, &udp).count(), 2);
    assert_eq!(changed(None, &tcp).count(), 0);
}

fn new_flow(rows: &Conntrack, row: &ConntrackFlow, client: u32) -> NewFlow {
    let udp = row.protocol == "UDP";
    NewFlow {
        frontend: row.frontend(),
        endpoint: row.endpoint(),
        service: match rows.service.has(&row.protocol, row.frontend()) {
            true if udp => UDP,
            true => TCP,
            false => OTHER,
        },
        udp,
        ..NewFlow::tcp(client)
    }
}

/// Ends the stale flows of a service port. Returns how many UDP and TCP flows these were.
fn end_stale_of_both(
    table: &Arc<Table>,
    id: u32,
    remaining: impl IntoIterator<Item = SocketAddr>,
) -> (u64, u64) {
    let mut stale = Stale::default();
    stale.add(id, remaining);
    let mut removed = Removed::default();
    let sweeping = Sweeping::new(table);
    sweeping.sweeper().end_stale(&stale, &mut removed);
    (removed.stale_udp, removed.reset_tcp)
}

fn end_stale(table: &Arc<Table>, id: u32, remaining: impl IntoIterator<Item = SocketAddr>) -> u64 {
    end_stale_of_both(table, id, remaining).0
}

fn planned(service: &Service, slices: &[EndpointSlice]) -> ServicePlan {
    let node = Node {
        name: "node".to_owned(),
        ..Node::default()
    };
    let node = LocalNode::new(&node, &[], &PlanOptions::default());
    plan(service, &slices.iter().collect::<Vec<_>>(), &node)
}

fn service(protocol: Protocol, ports: &[&str]) -> Service {
    Service {
        name: ObjectName::new("ns", "svc"),
        uid: None,
        created: 0,
        service_type: ServiceType::ClusterIp,
        cluster_ips: vec!["10.96.0.1".parse().unwrap()],
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        ports: (1..)
            .zip(ports)
            .map(|(port, name)| ServicePort {
                name: (*name).into(),
                protocol,
                port,
                node_port: 0,
            })
            .collect(),
        internal_traffic_policy: TrafficPolicy::Cluster,
        external_traffic_policy: TrafficPolicy::Cluster,
        load_balancer_source_ranges: Vec::new(),
        health_check_node_port: 0,
        session_affinity: None,
        algorithm: Algorithm::Random,
        weights: Weights::default(),
        slow_start: None,
        removed_endpoints: RemovedEndpoints::Keep,
        max_connections: 0,
        hash_balance_factor: 0,
        max_connections_per_endpoint: 0,
        long_running: false,
    }
}

fn slice(name: &str, ports: &[(&str, u16)], addresses: &[IpAddr]) -> EndpointSlice {
    EndpointSlice {
        name: ObjectName::new("ns", name),
        service: "svc".to_owned(),
        weight: 1,
        ports: ports
            .iter()
            .map(|(name, port)| EndpointPort {
                name: (*name).into(),
                protocol: Protocol::Udp,
                port: *port,
            })
            .collect(),
        endpoints: addresses
            .iter()
            .map(|address| Endpoint {
                address: *address,
                ready: true,
                serving: true,
                terminating: false,
                node_name: None,
                zone_hints: Box::default(),
                node_hints: Box::default(),
            })
            .collect(),
    }
}
