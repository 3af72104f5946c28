//! A report in sentences, one per line.

use std::time::Duration;

use lb_common::{
    abi::{FrontendKind, RejectAnswer},
    service::Origin,
    verdict::Reason,
};
use lb_objects::{Algorithm, Protocol, TrafficPolicy};

use crate::explain::{FlowOf, LimitReport, Report, Verdict};

/// Longer sets are shortened; `-o json` shows all of them.
const SHOWN_ENDPOINTS: usize = 16;

/// Why a packet to a Service passes.
const HANDED_OVER: &str =
    "With `handover: out`, new connections are left to the service proxy that takes over.";
/// The same for SCTP of the node's own processes.
const OWN_ASSOCIATION: &str = "The node's own connections are translated at their sockets, which Linux \
    has no hooks for with SCTP: the packet leaves the node untranslated.";

pub fn render(report: &Report) -> String {
    let mut sentences = vec![headline(report)];
    match (&report.service, report.frontend) {
        (Some(service), Some(kind)) => {
            sentences.push(addressed(report, service, kind));
            match report.verdict {
                Verdict::Forward => sentences.extend(forwarded(report, kind)),
                Verdict::Pass if report.is_own_association() => {
                    sentences.push(OWN_ASSOCIATION.to_owned());
                }
                Verdict::Pass => sentences.push(HANDED_OVER.to_owned()),
                _ => sentences.push(refused(report, kind)),
            }
            if let (Some(name), Some(level)) = (&report.flow_schema, &report.priority_level) {
                let taken = format!("FlowSchema {name} takes it, with PriorityLevel {level}.");
                sentences.push(taken);
            }
            let most = report.max_connections_per_flow.zip(report.flow_of);
            sentences.extend(most.map(|(most, flow_of)| part(report, flow_of, most)));
            sentences.extend(report.limits.iter().map(limit));
        }
        _ => sentences.push(without_service(report)),
    }
    sentences.join("\n") + "\n"
}

fn headline(report: &Report) -> String {
    let (protocol, source, destination) = (report.protocol, report.from, report.to);
    let origin = match report.origin {
        Origin::Pod => "a local pod",
        Origin::Node => "this node",
        Origin::Outside => "outside",
    };
    let verdict = match report.verdict {
        Verdict::Forward => "is forwarded",
        Verdict::Reject => "is rejected",
        Verdict::Drop => "is dropped",
        Verdict::Wait => "waits for a seat",
        Verdict::Pass => "passes untouched",
    };
    let reason = report.reason.name();
    format!("{protocol} from {source} ({origin}) to {destination} {verdict} ({reason}).")
}

fn without_service(report: &Report) -> String {
    if let Some(service) = &report.left_to_node {
        let destination = report.to;
        return format!(
            "{destination} is the cluster IP of Service {service}, and an address of a device of this \
             node: the node itself answers there, such as a DNS cache (NodeLocal DNSCache)."
        );
    }
    let address = report.to.ip();
    match report.reason {
        Reason::UnknownPort => {
            let whose = report.other_ports_of.as_ref().map_or_else(
                || "of a Service".to_owned(),
                |service| format!("of Service {service}"),
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
            let protocol = report.protocol;
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

fn addressed(report: &Report, service: &str, kind: FrontendKind) -> String {
    let kind = match kind {
        FrontendKind::ClusterIp => "the cluster IP",
        FrontendKind::NodePort => "a node port",
        FrontendKind::LoadBalancerIp => "a load balancer IP",
        FrontendKind::ExternalIp => "an external IP",
    };
    format!("{} is {kind} of Service {service}.", report.to)
}

fn refused(report: &Report, kind: FrontendKind) -> String {
    match report.reason {
        Reason::SourceRange => {
            let ranges = report.source_ranges.iter();
            let ranges: Vec<_> = ranges.map(ToString::to_string).collect();
            let (source, ranges) = (report.from, ranges.join(", "));
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
            let answer = report.refusal.unwrap_or(RejectAnswer::Reset);
            let answer = match (answer, report.protocol) {
                (RejectAnswer::Drop, _) => "no answer",
                (_, Protocol::Udp) => "ICMP port unreachable",
                (RejectAnswer::Icmp, _) => "ICMP administratively prohibited",
                (RejectAnswer::Reset, Protocol::Tcp) => "a RST",
                (RejectAnswer::Reset, Protocol::Sctp) => "an ABORT",
            };
            let limit = match report.reason {
                Reason::FlowLimit => "The client has as many connections as one flow may have",
                Reason::EndpointLimit => "Each endpoint has as many connections as it may have",
                _ => "A limit of connections is reached",
            };
            format!("{limit}; the client gets {answer}.")
        }
        _ => format!(
            "{} is Local, and no endpoint on this node is usable, but others are. The packet \
             is dropped without an answer, so that a load balancer uses another node.",
            policy_field(kind)
        ),
    }
}

/// How many connections a flow may have, and what belongs to it.
fn part(report: &Report, flow_of: FlowOf, most: u32) -> String {
    let of_tenant = report.flow.as_ref();
    let of_tenant = of_tenant.map(|tenant| format!("the pods of {tenant} together"));
    let whose = of_tenant.unwrap_or_else(|| match flow_of {
        FlowOf::Service => "each service port".to_owned(),
        FlowOf::Everybody => "all clients together".to_owned(),
        FlowOf::SourcePrefix(32) if report.from.is_ipv4() => "each source address".to_owned(),
        FlowOf::SourcePrefix(128) => "each source address".to_owned(),
        FlowOf::SourcePrefix(bits) => format!("each source network (/{bits})"),
    });
    format!(
        "Of its connections, {whose} may have {most} at a time (maxConnectionsPerFlow); \
         `node-lb admission levels` shows how many more were refused (FLOW LIMIT)."
    )
}

/// What a limit says, and what it would do now.
fn limit(limit: &LimitReport) -> String {
    let whose = match (&limit.service, &limit.priority_level) {
        (Some(service), _) => format!("Service {service}"),
        (None, Some(level)) => format!("PriorityLevel {level}"),
        (None, None) => "this node".to_owned(),
    };
    let (things, state) = match limit.seats {
        1 => ("connections".to_owned(), "open"),
        seats => (format!("seats, and this connection takes {seats}"), "taken"),
    };
    let in_use = match limit.in_use {
        Some(1) => format!("1 is {state} now"),
        Some(in_use) => format!("{in_use} are {state} now"),
        None => format!("no agent answers here that knows how many are {state} now"),
    };
    let most = match limit.only_counted {
        true => format!("Connections of {whose} are counted, without a limit"),
        false => format!("The limit of {whose} is {} {things}", limit.limit),
    };
    let above = match limit.only_counted {
        false if limit.audited => "; those above it are counted, and let in",
        false if limit.exempt => {
            "; those of this Service are let in above it, because the cluster depends on them"
        }
        _ => "",
    };
    format!("{most}; {in_use}{above}.")
}

fn forwarded(report: &Report, kind: FrontendKind) -> Vec<String> {
    let mut sentences = vec![policy(report, kind), picked(report)];
    if report.terminating {
        sentences.push("None is ready; these still serve while they terminate.".to_owned());
    }
    if report.hinted {
        sentences.push("Topology hints leave these, the nearest ones.".to_owned());
    }
    if let Some(seconds) = report.affinity_seconds {
        let timeout = humantime::format_duration(Duration::from_secs(seconds.into()));
        sentences.push(format!(
            "A client that connected within the last {timeout} returns to its endpoint \
             (session affinity)."
        ));
    }
    sentences.push(source_address(report));
    sentences
}

fn policy(report: &Report, kind: FrontendKind) -> String {
    let field = policy_field(kind);
    match report.policy {
        Some(TrafficPolicy::Local) => {
            format!("{field} is Local: only endpoints on this node serve it.")
        }
        _ if report.short_circuit => format!(
            "{field} is Local, but what local pods and the node itself send may go to any node."
        ),
        _ => format!("{field} is Cluster: endpoints on any node serve it."),
    }
}

fn policy_field(kind: FrontendKind) -> &'static str {
    match kind {
        FrontendKind::ClusterIp => "internalTrafficPolicy",
        _ => "externalTrafficPolicy",
    }
}

fn picked(report: &Report) -> String {
    let endpoints = report.endpoints.iter().enumerate();
    let shown = endpoints.take(SHOWN_ENDPOINTS);
    let shown: Vec<_> = shown
        .map(|(index, endpoint)| match report.weights.get(index) {
            None => endpoint.to_string(),
            Some(weight) => format!("{endpoint} (weight {weight})"),
        })
        .collect();
    let shown = shown.join(", ");
    let how = match report.algorithm {
        None | Some(Algorithm::Random) => "at random",
        Some(Algorithm::Maglev) => "by Maglev",
        Some(Algorithm::LeastConnections) => "by least connections, of two at random",
        Some(Algorithm::LeastLatency) => "by least latency, of two at random",
    };
    let bound = report.hash_balance_factor.map_or(String::new(), |percent| {
        format!(", past those that have {percent} % of the mean of open connections")
    });
    let how = format!("{how}{bound}");
    match report.endpoints.len() {
        1 => format!("The only such endpoint is {shown}."),
        n if n > SHOWN_ENDPOINTS => {
            let more = n - SHOWN_ENDPOINTS;
            format!("One of {n} is picked {how}: {shown} and {more} more.")
        }
        n => format!("One of {n} is picked {how}: {shown}."),
    }
}

fn source_address(report: &Report) -> String {
    let exceptions = report.source_nat_exceptions.iter();
    let exceptions: Vec<_> = exceptions.map(ToString::to_string).collect();
    let exceptions = exceptions.join(" or ");
    if !report.source_nat {
        return match exceptions.is_empty() {
            true => "The source address is kept.".to_owned(),
            false => format!(
                "The source address is kept, unless {exceptions} is picked, which is the client itself: \
                 then it becomes this node's."
            ),
        };
    }
    let becomes = match report.node_address {
        Some(node) if node == report.from => {
            return "The source address is this node's already.".to_owned();
        }
        Some(node) => format!(
            "The source address becomes this node's, {node}, or that on a tunnel to the endpoint"
        ),
        None => {
            return "The source address has to become this node's, but none is known: as it is, the \
                packet would be dropped (no-node-address)."
                .to_owned();
        }
    };
    match exceptions.is_empty() {
        true => format!("{becomes}."),
        false => {
            format!("{becomes}; it is kept if {exceptions} is picked, which is this node itself.")
        }
    }
}
