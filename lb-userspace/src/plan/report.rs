//! A service port in the form of `node-lb plan` and the agent's API, both families together.

use std::{collections::HashMap, net::SocketAddr};

use lb_objects::{Protocol, TrafficPolicy};
use serde::Serialize;

use super::{EndpointClass, FrontendKind, HealthCheck, Plan, ServicePlan, TopologyMode, Verdict};

/// One service port. For a dual-stack Service the lists contain both families, sorted by text.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PortReport<'a> {
    namespace: &'a str,
    /// The Service's name.
    name: &'a str,
    /// The port's name, which may be empty.
    port: &'a str,
    protocol: String,
    /// `None` if no traffic can need the Cluster policy.
    pub cluster_endpoints: Option<Vec<String>>,
    /// `None` if no traffic can need the Local policy.
    pub local_endpoints: Option<Vec<String>>,
    /// Whether any endpoint is usable, on any node.
    has_endpoints: bool,
    pub frontends: Vec<FrontendReport>,
    /// ClusterIPs at which the node itself answers on this port.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_to_node: Vec<String>,
    pub session_affinity_seconds: Option<u64>,
    health_check: Option<HealthReport>,
    /// `namespace/name:port` and the protocol.
    #[serde(skip)]
    pub title: String,
    /// Of all families.
    #[serde(skip)]
    pub health_checks: &'a [HealthCheck],
    #[serde(skip)]
    pub notes: Vec<&'static str>,
}

/// One address of the port, and what happens to a new connection from outside there.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendReport {
    pub kind: &'static str,
    /// `ip:port`, or `[ip]:port`.
    pub address: String,
    /// `Cluster` or `Local`. On external frontends local pods and the node itself get Cluster.
    pub policy: String,
    /// `forward`, `reject` or `drop`.
    pub verdict: String,
    /// The only sources that are accepted; empty means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub source_ranges: Vec<String>,
    #[serde(skip)]
    pub endpoints: usize,
}

/// The health check node port and its answer; of a dual-stack Service, for its primary family.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthReport {
    port: u16,
    status: u16,
    local_endpoints: usize,
}

impl<'a> PortReport<'a> {
    /// The ports of a Service, in its order.
    pub fn all(service: &'a ServicePlan) -> Vec<Self> {
        let Some(primary) = service.ports.first() else {
            return Vec::new();
        };
        let mut families: HashMap<_, Vec<&Plan>> = HashMap::new();
        for port in &service.ports {
            families.entry(&port.name).or_default().push(port);
        }
        let of_primary = service.ports.iter().filter(|p| p.family == primary.family);
        of_primary
            .map(|port| Self::new(service, &families[&port.name]))
            .collect()
    }

    fn new(service: &'a ServicePlan, families: &[&'a Plan]) -> Self {
        let name = &families[0].name;
        Self {
            namespace: &name.service.namespace,
            name: &name.service.name,
            port: &name.port,
            protocol: name.protocol.to_string(),
            cluster_endpoints: merged(families, Plan::uses_cluster, Plan::cluster_set),
            local_endpoints: merged(families, Plan::uses_local, Plan::local_set),
            has_endpoints: families.iter().any(|plan| plan.has_any()),
            frontends: families.iter().flat_map(|plan| frontends(plan)).collect(),
            left_to_node: families
                .iter()
                .filter_map(|plan| plan.left_to_node.as_ref().map(ToString::to_string))
                .collect(),
            session_affinity_seconds: families[0].session_affinity.map(|t| t.as_secs()),
            health_check: service.health_checks.first().map(|health| HealthReport {
                port: health.port,
                status: health.status(),
                local_endpoints: health.local_ready,
            }),
            title: format!("{name} {}", name.protocol),
            health_checks: &service.health_checks,
            notes: notes(families),
        }
    }
}

fn merged(
    families: &[&Plan],
    used: fn(&Plan) -> bool,
    set: fn(&Plan) -> &[SocketAddr],
) -> Option<Vec<String>> {
    let using: Vec<_> = families.iter().filter(|plan| used(plan)).collect();
    if using.is_empty() {
        return None;
    }
    let endpoints = using.iter().flat_map(|plan| set(plan));
    let mut texts: Vec<_> = endpoints.map(ToString::to_string).collect();
    texts.sort();
    Some(texts)
}

fn frontends(plan: &Plan) -> impl Iterator<Item = FrontendReport> {
    plan.frontends.iter().map(|frontend| {
        let policy = plan.policy(frontend.kind);
        FrontendReport {
            kind: frontend.kind.name(),
            address: frontend.address.to_string(),
            policy: policy.to_string(),
            verdict: plan.verdict(policy).to_string(),
            source_ranges: match frontend.kind {
                FrontendKind::LoadBalancerIp => {
                    plan.source_ranges.iter().map(ToString::to_string).collect()
                }
                _ => Vec::new(),
            },
            endpoints: plan.set(policy).len(),
        }
    })
}

/// Facts that the sets alone do not show.
fn notes(families: &[&Plan]) -> Vec<&'static str> {
    let any = |holds: fn(&Plan) -> bool| families.iter().any(|plan| holds(plan));
    [
        (
            any(|p| p.left_to_node.is_some()),
            "its ClusterIP is an address of this node's, which answers there itself (NodeLocal DNSCache)",
        ),
        (
            any(|p| p.endpoints.topology() == TopologyMode::SameZone),
            "topology hints keep the Cluster set to this node's zone",
        ),
        (
            any(|p| p.endpoints.topology() == TopologyMode::SameNode),
            "topology hints keep the Cluster set to this node",
        ),
        (
            any(|p| !p.cluster_set().is_empty() && p.endpoints.ready().is_empty()),
            "no endpoint is ready, so the Cluster set is the terminating ones",
        ),
        (
            any(|p| {
                let local = p.local_set();
                !local.is_empty() && local == p.endpoints.class(EndpointClass::LocalTerminating)
            }),
            "no endpoint of this node is ready, so the Local set is its terminating ones",
        ),
        (
            any(|p| {
                p.external_policy == TrafficPolicy::Local
                    && p.externally_accessible
                    && p.verdict(TrafficPolicy::Cluster) == Verdict::Forward
            }),
            "local pods and this node itself use the Cluster set on external frontends",
        ),
        (
            any(|p| p.name.protocol != Protocol::Udp && p.remaining.is_some()),
            "connections to endpoints that leave are reset",
        ),
    ]
    .into_iter()
    .filter_map(|(holds, note)| holds.then_some(note))
    .collect()
}
