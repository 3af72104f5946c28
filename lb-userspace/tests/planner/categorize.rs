//! Endpoint sets, verdicts and health checks of single service ports, by the vectors.

use std::collections::BTreeSet;

use lb_objects::{EndpointSlice, Service, ServiceType, TrafficPolicy};
use lb_vectors::{Categorize, ExpectedVerdict, Vectors, object_name};
use node_lb::plan::{FrontendKind, LocalNode, Plan, PlanOptions, ServicePlan, TopologyMode, plan};

#[test]
fn endpoint_sets() {
    for row in Vectors::load().categorize {
        let planned = planned(&row);
        let port = &planned.ports[0];

        let cluster = port.uses_cluster().then(|| texts(port.cluster_set()));
        assert_eq!(
            cluster,
            row.expect.cluster.map(sorted),
            "{} cluster",
            row.id
        );
        let local = port.uses_local().then(|| texts(port.local_set()));
        assert_eq!(local, row.expect.local.map(sorted), "{} local", row.id);
        assert_eq!(port.has_any(), row.expect.has_any, "{} hasAny", row.id);

        let union: BTreeSet<_> = cluster.into_iter().chain(local).flatten().collect();
        assert_eq!(
            union.into_iter().collect::<Vec<_>>(),
            sorted(row.expect.all),
            "{} all",
            row.id
        );
    }
}

#[test]
fn topology_mode() {
    for row in Vectors::load().categorize {
        let mode = match planned(&row).ports[0].endpoints.topology() {
            TopologyMode::None => "",
            TopologyMode::SameZone => "PreferSameZone",
            TopologyMode::SameNode => "PreferSameNode",
        };
        assert_eq!(mode, row.topology_mode, "{}", row.id);
    }
}

#[test]
fn verdicts() {
    for row in Vectors::load().categorize {
        let planned = planned(&row);
        let port = &planned.ports[0];

        let cluster_ip = verdict(port, port.policy(FrontendKind::ClusterIp));
        assert_eq!(cluster_ip, row.derived.cluster_ip, "{}", row.id);
        for (policy, expected) in [
            (port.external_policy, row.derived.external),
            (TrafficPolicy::Cluster, row.derived.pod_or_host_to_external),
        ] {
            let external = port.externally_accessible.then(|| verdict(port, policy));
            assert_eq!(external, expected, "{} {policy}", row.id);
        }
    }
}

#[test]
fn no_local_endpoints_metric() {
    for row in Vectors::load().categorize {
        let planned = planned(&row);
        let port = &planned.ports[0];
        let expected = row.derived.no_local_endpoints_metric;
        assert_eq!(
            port.internal_lacks_local() as u8,
            expected.internal,
            "{}",
            row.id
        );
        assert_eq!(
            port.external_lacks_local() as u8,
            expected.external,
            "{}",
            row.id
        );
    }
}

#[test]
fn health_checks() {
    for row in Vectors::load().categorize {
        let planned = planned(&row);
        let health = planned.health_checks.first();
        let Some(expected) = row.derived.health_check else {
            assert_eq!(health, None, "{}", row.id);
            continue;
        };
        assert_eq!(health.is_some(), expected.listening, "{}", row.id);
        assert_eq!(
            health.map(|h| h.local_ready),
            expected.local_endpoints,
            "{}",
            row.id
        );
        assert_eq!(health.map(|h| h.status()), expected.status, "{}", row.id);
    }
}

#[test]
fn local_ready_counts() {
    for row in Vectors::load().local_ready_counts {
        let slices: Vec<_> = row.slices.iter().enumerate().collect();
        let slices: Vec<EndpointSlice> = slices.iter().map(|(i, s)| s.model(*i)).collect();
        let node = lb_objects::Node {
            name: row.node.clone(),
            ..Default::default()
        };
        let node = LocalNode::new(&node, &[], &PlanOptions::default());

        for name in row.slices.iter().map(|slice| slice.service.as_str()) {
            // The service has no port with the slices' names, and the count must not need one.
            let service = Service {
                name: object_name(name),
                ..health_checked_service()
            };
            let own: Vec<_> = slices
                .iter()
                .filter(|slice| *slice.service == *service.name.name)
                .collect();
            let expected = row.expect_local_ready.get(name).copied().unwrap_or(0);
            let planned = plan(&service, &own, &node);
            assert_eq!(planned.health_checks[0].local_ready, expected, "{}", row.id);
        }
    }
}

fn planned(row: &Categorize) -> ServicePlan {
    let slices = row.slices();
    let slices: Vec<_> = slices.iter().collect();
    plan(&row.service(), &slices, &row.local_node())
}

fn health_checked_service() -> Service {
    let categorize = Vectors::load().categorize;
    Service {
        service_type: ServiceType::LoadBalancer,
        external_traffic_policy: TrafficPolicy::Local,
        health_check_node_port: 30_000,
        ports: Vec::new(),
        ..categorize[0].service()
    }
}

fn verdict(port: &Plan, policy: TrafficPolicy) -> ExpectedVerdict {
    ExpectedVerdict {
        verdict: port.verdict(policy).to_string(),
        endpoints: texts(port.set(policy)),
        source_nat: None,
    }
}

fn texts(endpoints: &[std::net::SocketAddr]) -> Vec<String> {
    sorted(endpoints.iter().map(ToString::to_string).collect())
}

fn sorted(mut texts: Vec<String>) -> Vec<String> {
    texts.sort();
    texts
}
