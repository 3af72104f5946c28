//! Plans are complete: a straightforward implementation of the packet rules that uses only plans
//! decides on every packet of the vectors' scenarios as kube-proxy does.

use std::net::{IpAddr, SocketAddr};

use lb_objects::{IpFamily, TrafficPolicy};
use lb_vectors::{ExpectedVerdict, Fixture, Packet, Scenario, Vectors};
use node_lb::plan::{FrontendKind, LocalDetector, Plan, ServicePlan, Verdict, plan};

#[test]
fn packets() {
    let Vectors { flows, .. } = Vectors::load();
    for scenario in &flows.scenarios {
        let plans = plans(scenario, &flows.fixture);
        let rules = Rules {
            plans: plans.iter().flat_map(|service| &service.ports).collect(),
            detector: scenario.detector(&flows.fixture),
            masquerade_all: scenario.masquerade_all(),
            node: flows.fixture.local_addresses(),
        };
        for packet in &scenario.packets {
            let decided = rules.decide(packet);
            assert_eq!(decided, packet.expect, "{} {}", scenario.id, packet.name);
        }
    }
}

#[test]
fn health_checks() {
    let Vectors { flows, .. } = Vectors::load();
    for scenario in &flows.scenarios {
        let Some(expected) = &scenario.health_check else {
            continue;
        };
        let plans = plans(scenario, &flows.fixture);
        let health = plans[0].health_checks.first();
        assert_eq!(health.is_some(), expected.listening, "{}", scenario.id);
        assert_eq!(
            health.map(|h| h.local_ready),
            expected.local_endpoints,
            "{}",
            scenario.id
        );
        assert_eq!(
            health.map(|h| h.status()),
            expected.status,
            "{}",
            scenario.id
        );
    }
}

fn plans(scenario: &Scenario, fixture: &Fixture) -> Vec<ServicePlan> {
    let node = scenario.local_node(fixture);
    let services = scenario.services();
    services
        .iter()
        .map(|(service, slices)| plan(service, &slices.iter().collect::<Vec<_>>(), &node))
        .collect()
}

/// kube-proxy's rules for the first packet of a connection.
struct Rules<'a> {
    plans: Vec<&'a Plan>,
    detector: LocalDetector,
    masquerade_all: bool,
    node: Vec<IpAddr>,
}

impl Rules<'_> {
    fn decide(&self, packet: &Packet) -> ExpectedVerdict {
        let Some((kind, plan)) = self.frontend(packet) else {
            return without_endpoints("pass");
        };
        let blocked = kind == FrontendKind::LoadBalancerIp
            && !plan.source_ranges.is_empty()
            && !plan
                .source_ranges
                .iter()
                .any(|range| range.contains(&packet.source));
        if blocked {
            return without_endpoints("drop");
        }

        let from_pod = self.detector.is_local_pod(packet.source, None);
        let from_node = !from_pod && self.node.contains(&packet.source);
        let policy = match kind.is_external() && (from_pod || from_node) {
            true => TrafficPolicy::Cluster,
            false => plan.policy(kind),
        };
        let verdict = plan.verdict(policy);
        if verdict != Verdict::Forward {
            return without_endpoints(&verdict.to_string());
        }

        let covered = self.detector.covers(IpFamily::of(packet.source));
        let source_nat = match (kind.is_external(), plan.external_policy) {
            (false, _) => self.masquerade_all || (covered && !from_pod),
            (true, TrafficPolicy::Cluster) => true,
            (true, TrafficPolicy::Local) => from_node,
        };
        let mut endpoints: Vec<_> = plan.set(policy).iter().map(ToString::to_string).collect();
        endpoints.sort();
        ExpectedVerdict {
            verdict: "forward".into(),
            endpoints,
            source_nat: Some(source_nat),
        }
    }

    fn frontend(&self, packet: &Packet) -> Option<(FrontendKind, &Plan)> {
        let destination = SocketAddr::new(packet.destination, packet.port);
        let plans = self.plans.iter();
        plans
            .filter(|plan| plan.name.protocol == packet.protocol())
            .flat_map(|plan| {
                plan.frontends
                    .iter()
                    .map(move |f| (f.kind, f.address, *plan))
            })
            .filter(|(_, address, _)| *address == destination)
            .map(|(kind, _, plan)| (kind, plan))
            .min_by_key(|(kind, _)| *kind)
    }
}

fn without_endpoints(verdict: &str) -> ExpectedVerdict {
    ExpectedVerdict {
        verdict: verdict.into(),
        endpoints: Vec::new(),
        source_nat: None,
    }
}
