//! A decision in sentences, one per line.

use std::time::Duration;

use lb_common::{
    abi::{FrontendKind, RejectAnswer, plan_flag},
    flow::party::{Common, PartyRule},
    select::Policy,
    service::Origin,
    verdict::Reason,
};
use lb_objects::{Algorithm, Protocol};

use crate::{
    explain::{Decision, Frontend, Limit, Verdict, Whose},
    map_writer::NumberedSchema,
};

/// Longer sets are shortened; `-o json` shows all of them.
const SHOWN_ENDPOINTS: usize = 16;

/// Why a packet to a Service passes.
const HANDED_OVER: &str =
    "With `handover: out`, new connections are left to the service proxy that takes over.";
/// The same for SCTP of the node's own processes.
const OWN_ASSOCIATION: &str = "The node's own connections are translated at their sockets, which Linux \
    has no hooks for with SCTP: the packet leaves the node untranslated.";

pub fn render(decision: &Decision<'_>) -> String {
    let mut sentences = vec![headline(decision)];
    match &decision.frontend {
        None => sentences.push(without_service(decision)),
        Some(frontend) => {
            sentences.push(addressed(decision, frontend));
            match decision.verdict {
                Verdict::Forward => sentences.extend(forwarded(decision, frontend)),
                Verdict::Pass if decision.is_own_association() => {
                    sentences.push(OWN_ASSOCIATION.to_owned());
                }
                Verdict::Pass => sentences.push(HANDED_OVER.to_owned()),
                _ => sentences.push(refused(decision, frontend)),
            }
            sentences.extend(decision.schema.iter().map(|schema| {
                let NumberedSchema { name, level, .. } = schema;
                format!("FlowSchema {name} takes it, with PriorityLevel {level}.")
            }));
            sentences.extend(
                decision
                    .part
                    .and_then(|rule| Some(part(decision, rule, rule.limit()?))),
            );
            sentences.extend(decision.limits.iter().map(limit));
        }
    }
    sentences.join("\n") + "\n"
}

fn headline(decision: &Decision<'_>) -> String {
    let packet = decision.packet;
    let (protocol, source, destination) = (packet.protocol, packet.source, packet.destination);
    let origin = match decision.origin {
        Origin::Pod => "a local pod",
        Origin::Node => "this node",
        Origin::Outside => "outside",
    };
    let verdict = match decision.verdict {
        Verdict::Forward => "is forwarded",
        Verdict::Reject => "is rejected",
        Verdict::Drop => "is dropped",
        Verdict::Wait => "waits for a seat",
        Verdict::Pass => "passes untouched",
    };
    let reason = decision.reason.name();
    format!("{protocol} from {source} ({origin}) to {destination} {verdict} ({reason}).")
}

fn without_service(decision: &Decision<'_>) -> String {
    if let Some(service) = decision.left_to_node {
        let destination = decision.packet.destination;
        return format!(
            "{destination} is the cluster IP of Service {service}, and an address of a device of this \
             node: the node itself answers there, such as a DNS cache (NodeLocal DNSCache)."
        );
    }
    let address = decision.packet.destination.ip();
    match decision.reason {
        Reason::UnknownPort => {
            let whose = decision.other_port.map_or_else(
                || "of a Service".to_owned(),
                |port| format!("of Service {}", port.service),
            );
            format!(
                "{address} is the cluster IP {whose}, and no Service has this port and protocol there; \
                 the client gets ICMP port unreachable."
            )
        }
        Reason::NoSuchService => format!(
            "{address} is in a ServiceCIDR, and no Service has this address. The packet is dropped \
             where it leaves the node, unless something else there has translated it by then."
        ),
        Reason::OtherProtocol => {
            let protocol = decision.packet.protocol;
            format!(
                "{protocol} is not translated, whatever its Services say: the packet is left to the kernel."
            )
        }
        _ => {
            "No Service has this address, port and protocol here: the packet is left to the kernel."
                .to_owned()
        }
    }
}

fn addressed(decision: &Decision<'_>, frontend: &Frontend<'_>) -> String {
    let kind = match frontend.kind {
        FrontendKind::ClusterIp => "the cluster IP",
        FrontendKind::NodePort => "a node port",
        FrontendKind::LoadBalancerIp => "a load balancer IP",
        FrontendKind::ExternalIp => "an external IP",
    };
    let (destination, service) = (decision.packet.destination, frontend.service);
    format!("{destination} is {kind} of Service {service}.")
}

fn refused(decision: &Decision<'_>, frontend: &Frontend<'_>) -> String {
    match decision.reason {
        Reason::SourceRange => {
            let ranges: Vec<_> = frontend
                .source_ranges
                .iter()
                .map(ToString::to_string)
                .collect();
            let (source, ranges) = (decision.packet.source, ranges.join(", "));
            format!("Its loadBalancerSourceRanges, {ranges}, do not contain {source}.")
        }
        Reason::Parked => "All seats of its PriorityLevel are taken, or others wait for one: the agent \
            keeps the SYN until the connection has its turn, or has waited for a quarter of the schema's \
            connectPatience; it is refused if too many wait in its queue."
            .to_owned(),
        Reason::NoEndpoints => "No endpoint on any node is ready, or still serves while it \
            terminates; the client gets ICMP port unreachable."
            .to_owned(),
        Reason::ConcurrencyLimit | Reason::FlowLimit | Reason::EndpointLimit => {
            let answer = match (decision.answer, decision.packet.protocol) {
                (RejectAnswer::Drop, _) => "no answer",
                (_, Protocol::Udp) => "ICMP port unreachable",
                (RejectAnswer::Icmp, _) => "ICMP administratively prohibited",
                (RejectAnswer::Reset, Protocol::Tcp) => "a RST",
                (RejectAnswer::Reset, Protocol::Sctp) => "an ABORT",
            };
            let limit = match decision.reason {
                Reason::FlowLimit => "The client has as many connections as one flow may have",
                Reason::EndpointLimit => "Each endpoint has as many connections as it may have",
                _ => "A limit of connections is reached",
            };
            format!("{limit}; the client gets {answer}.")
        }
        _ => format!(
            "{} is Local, and no endpoint on this node is usable, but others are. The packet \
             is dropped without an answer, so that a load balancer uses another node.",
            policy_field(frontend)
        ),
    }
}

/// How many connections a flow may have, and what belongs to it.
fn part(decision: &Decision<'_>, rule: PartyRule, most: u32) -> String {
    let source = decision.packet.source;
    let common = rule.common(source, decision.origin != Origin::Outside);
    let of_tenant = decision.tenant.as_ref();
    let of_tenant = of_tenant.map(|tenant| format!("the pods of {tenant} together"));
    let whose = of_tenant.unwrap_or_else(|| match common {
        Common::Service => "each service port".to_owned(),
        Common::Nothing => "all clients together".to_owned(),
        Common::Source(32) if source.is_ipv4() => "each source address".to_owned(),
        Common::Source(128) => "each source address".to_owned(),
        Common::Source(bits) => format!("each source network (/{bits})"),
    });
    format!(
        "Of its connections, {whose} may have {most} at a time (maxConnectionsPerFlow); \
         `node-lb admission levels` shows how many more were refused (FLOW LIMIT)."
    )
}

/// What a limit says, and what it would do now.
fn limit(limit: &Limit) -> String {
    let whose = match &limit.whose {
        Whose::Service(service) => format!("Service {service}"),
        Whose::Level(level) => format!("PriorityLevel {level}"),
        Whose::Node => "this node".to_owned(),
    };
    let in_use = match limit.in_use {
        Some(1) => "1 is open now".to_owned(),
        Some(in_use) => format!("{in_use} are open now"),
        None => "no agent answers here that knows how many are open now".to_owned(),
    };
    let most = match limit.most {
        None => format!("Connections of {whose} are counted, without a limit"),
        Some(most) => format!("The limit of {whose} is {most} connections"),
    };
    let above = match limit.most {
        Some(_) if limit.is_audited => "; those above it are counted, and let in",
        Some(_) if limit.exempt => {
            "; those of this Service are let in above it, because the cluster depends on them"
        }
        _ => "",
    };
    format!("{most}; {in_use}{above}.")
}

fn forwarded(decision: &Decision<'_>, frontend: &Frontend<'_>) -> Vec<String> {
    let mut sentences = vec![policy(frontend), picked(decision, frontend)];
    if frontend.terminating() {
        sentences.push("None is ready; these still serve while they terminate.".to_owned());
    }
    if frontend.hinted() {
        sentences.push("Topology hints leave these, the nearest ones.".to_owned());
    }
    if frontend.plan.affinity_seconds != 0 {
        let timeout = Duration::from_secs(frontend.plan.affinity_seconds.into());
        let timeout = humantime::format_duration(timeout);
        sentences.push(format!(
            "A client that connected within the last {timeout} returns to its endpoint \
             (session affinity)."
        ));
    }
    sentences.push(source_address(decision));
    sentences
}

fn policy(frontend: &Frontend<'_>) -> String {
    let field = policy_field(frontend);
    let short_circuit =
        frontend.kind != FrontendKind::ClusterIp && frontend.plan.has(plan_flag::EXTERNAL_LOCAL);
    match frontend.policy {
        Policy::Local => format!("{field} is Local: only endpoints on this node serve it."),
        Policy::Cluster if short_circuit => format!(
            "{field} is Local, but what local pods and the node itself send may go to any node."
        ),
        Policy::Cluster => format!("{field} is Cluster: endpoints on any node serve it."),
    }
}

fn policy_field(frontend: &Frontend<'_>) -> &'static str {
    match frontend.kind {
        FrontendKind::ClusterIp => "internalTrafficPolicy",
        _ => "externalTrafficPolicy",
    }
}

fn picked(decision: &Decision<'_>, frontend: &Frontend<'_>) -> String {
    let candidates = &decision.candidates;
    let shown = candidates.iter().take(SHOWN_ENDPOINTS);
    let shown: Vec<_> = shown
        .map(|candidate| match candidate.weight {
            0 => candidate.address.to_string(),
            weight => format!("{} (weight {weight})", candidate.address),
        })
        .collect();
    let shown = shown.join(", ");
    let how = match frontend.algorithm {
        Algorithm::Random => "at random",
        Algorithm::Maglev => "by Maglev",
        Algorithm::LeastConnections => "by least connections, of two at random",
        Algorithm::LeastLatency => "by least latency, of two at random",
    };
    match candidates.len() {
        1 => format!("The only such endpoint is {shown}."),
        n if n > SHOWN_ENDPOINTS => {
            let more = n - SHOWN_ENDPOINTS;
            format!("One of {n} is picked {how}: {shown} and {more} more.")
        }
        n => format!("One of {n} is picked {how}: {shown}."),
    }
}

fn source_address(decision: &Decision<'_>) -> String {
    let source = decision.packet.source;
    if !decision.source_nat() {
        return match decision.hairpin() {
            Some(client) if client.source_nat => format!(
                "The source address is kept, unless {} is picked, which is the client itself: \
                 then it becomes this node's.",
                client.address
            ),
            _ => "The source address is kept.".to_owned(),
        };
    }
    match decision.node {
        Some(node) if node == source => "The source address is this node's already.".to_owned(),
        Some(node) => format!(
            "The source address becomes this node's, {node}, or that on a tunnel to the endpoint."
        ),
        None => "The source address has to become this node's, but none is known: as it is, the \
            packet would be dropped (no-node-address)."
            .to_owned(),
    }
}
