//! Asks the packet pipeline about a first packet, and records what the decision is based on.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use lb_common::{
    abi::{self, FrontendKind, RejectAnswer, config_flag, plan_flag},
    addr::{Ip4, Ip6},
    flow::{
        party::PartyRule,
        place::LevelSeats,
        seats::{Full, Start},
    },
    parse::{Tuple, tcp_flag},
    pipeline,
    select::{Policy, Range},
    service::{self, Origin},
    tables::Services,
    verdict::Reason,
};
use lb_datapath::memory::{Family, Hook};
use lb_objects::{Algorithm, Protocol};
use serde::{Deserialize, Serialize};

use super::limits::{InUse, Limit};
use crate::{
    map_writer::NumberedSchema,
    memory::{ProgrammedTables, tuple},
    plan::ServicePortName,
};

/// The first packet of a connection.
#[derive(Clone, Copy, Debug)]
pub struct FirstPacket {
    /// An address of the destination's family.
    pub source: IpAddr,
    pub destination: SocketAddr,
    pub protocol: Protocol,
    /// Device on which it arrives; 0 means no particular one.
    pub ifindex: u32,
}

/// What happens to a packet, and why.
pub struct Decision<'a> {
    pub packet: FirstPacket,
    pub origin: Origin,
    pub verdict: Verdict,
    pub reason: Reason,
    /// The frontend that the packet is addressed to; `None` if it is not one of a Service.
    pub frontend: Option<Frontend<'a>>,
    /// A service port with the packet's destination as its ClusterIP, at another port.
    pub other_port: Option<&'a ServicePortName>,
    /// The service port that would have this address, did not the node itself answer there.
    pub left_to_node: Option<&'a ServicePortName>,
    /// The endpoints among which one is chosen, sorted by text; empty unless the packet is
    /// forwarded.
    pub candidates: Vec<Candidate>,
    /// The flow schema that takes it, if there are any.
    pub schema: Option<NumberedSchema>,
    /// Whose of the schema's flows it belongs to, if it tells them apart by whose pods they come from.
    pub tenant: Option<String>,
    /// How many connections of the schema its flow, in the sense of API Priority and Fairness, may
    /// have, and what else belongs to that; `None` if there is no such limit.
    pub part: Option<PartyRule>,
    /// How the client is told if a limit is reached.
    pub answer: RejectAnswer,
    /// The limits of connections that this one counts against.
    pub limits: Vec<Limit>,
    /// This node's address of the packet's family, if known.
    pub node: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// To one of the candidates.
    Forward,
    /// The connection has to wait for a seat.
    Wait,
    /// The client is told.
    Reject,
    Drop,
    /// Left to the kernel, untouched.
    Pass,
}

/// One address of a Service, with what its plan says.
#[derive(Clone, Copy)]
pub struct Frontend<'a> {
    pub service: &'a ServicePortName,
    pub kind: FrontendKind,
    /// The policy in force for this packet.
    pub policy: Policy,
    pub plan: &'a abi::Plan,
    pub algorithm: Algorithm,
    /// The sources that its load balancer IPs accept; empty means all.
    pub source_ranges: &'a [IpNet],
}

/// An endpoint that may serve the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub address: SocketAddr,
    /// Its weight; 0 if the Service's endpoints all have the same.
    pub weight: u32,
    /// Whether the client's address would be replaced on the way there.
    pub source_nat: bool,
}

impl<'a> Decision<'a> {
    /// `in_use` has been written to the tables.
    pub(super) fn new(tables: &'a ProgrammedTables, packet: FirstPacket, in_use: &InUse) -> Self {
        match packet.source {
            IpAddr::V4(_) => Self::in_family::<Ip4>(tables, packet, in_use),
            IpAddr::V6(_) => Self::in_family::<Ip6>(tables, packet, in_use),
        }
    }

    fn in_family<A: Family>(
        tables: &'a ProgrammedTables,
        packet: FirstPacket,
        in_use: &InUse,
    ) -> Self {
        let hook = tables.tc();
        // Any port will do: it decides which endpoint of the set is chosen, not which set.
        let source = SocketAddr::new(packet.source, 0);
        let tuple = tuple::<A>(source, packet.destination, packet.protocol);
        let origin = service::origin(&hook, &tuple, packet.ifindex);
        // What else is asked for there never becomes a packet on a device.
        let is_socket = packet.destination.ip().is_loopback() && origin == Origin::Node;
        let mut decision = Self {
            packet,
            origin,
            verdict: Verdict::Pass,
            reason: Reason::OtherProtocol,
            frontend: None,
            other_port: None,
            left_to_node: tables.left_to_node(packet.destination, packet.protocol),
            candidates: Vec::new(),
            schema: None,
            tenant: None,
            part: None,
            answer: RejectAnswer::Reset,
            limits: Vec::new(),
            node: Some(IpAddr::from(tables.config.node::<A>().to_mapped()))
                .filter(|node| !node.is_unspecified()),
        };
        // The pipeline passes it before it looks for a Service.
        let passes_sctp = tables.config.flags & config_flag::SCTP == 0;
        if passes_sctp && packet.protocol == Protocol::Sctp {
            if let Some(unknown) = service::unknown(&hook, &tuple, tcp_flag::SYN) {
                decision.note_unknown(tables, unknown);
            }
            return decision;
        }

        decision.frontend = frontend(tables, &tuple, packet.ifindex, is_socket);
        let decided = match is_socket {
            true => service::decide_for_socket(&hook, &tuple),
            false => service::decide(&hook, &tuple, packet.ifindex),
        };
        (decision.verdict, decision.reason) = match decided {
            None => match service::unknown(&hook, &tuple, tcp_flag::SYN) {
                Some(unknown) if tuple.source.is_source() => {
                    decision.note_unknown(tables, unknown);
                    (decision.verdict, decision.reason)
                }
                Some(_) => (Verdict::Pass, Reason::MartianSource),
                None => (Verdict::Pass, Reason::NotService),
            },
            Some(_) if !is_socket && !tuple.source.is_source() => {
                (Verdict::Pass, Reason::MartianSource)
            }
            _ if service::is_left_to_another(&hook, &tuple, tcp_flag::SYN) => {
                (Verdict::Pass, Reason::NotService)
            }
            Some(service::Decision::Forward(_) | service::Decision::Reject(..))
                if decision.is_own_association() =>
            {
                (Verdict::Pass, Reason::NotService)
            }
            Some(service::Decision::Reject(_, reason)) => (Verdict::Reject, reason),
            Some(service::Decision::Drop(_, reason)) => (Verdict::Drop, reason),
            // Its endpoint is its destination before it has a source, and no limit counts it.
            Some(service::Decision::Forward(route)) if is_socket => {
                decision.candidates = candidates(&hook, &route, &tuple);
                for candidate in &mut decision.candidates {
                    candidate.source_nat = false;
                }
                (Verdict::Forward, Reason::SocketTranslated)
            }
            Some(service::Decision::Forward(route)) => {
                (decision.schema, decision.tenant) = schema(tables, &tuple, packet.ifindex);
                let schema = decision.schema.as_ref();
                if let Some(name) = tables.service_name(route.plan.service) {
                    let service = name.service.to_string();
                    decision.limits = in_use.limits(tables, route.plan, &service, schema);
                }
                let element = schema.map(|schema| tables.flow_schema(schema.number));
                let seats = element.map_or_else(LevelSeats::default, |schema| schema.seats);
                let rule = element.map(|schema| schema.rule);
                decision.part = rule.filter(|rule| rule.limit().is_some());
                let answers = element.map_or(0, |schema| schema.answers);
                decision.answer = RejectAnswer::of(answers, Reason::ConcurrencyLimit);
                let asked = pipeline::asks(
                    &tables.config,
                    route.plan,
                    seats,
                    Start::of(tuple.protocol, true),
                );
                match pipeline::in_the_way::<A, _>(&hook, asked) {
                    Some(Full::Queue) => (Verdict::Wait, Reason::Parked),
                    Some(_) => match decision.answer {
                        RejectAnswer::Drop => (Verdict::Drop, Reason::ConcurrencyLimit),
                        _ => (Verdict::Reject, Reason::ConcurrencyLimit),
                    },
                    None => {
                        decision.candidates = candidates(&hook, &route, &tuple);
                        (Verdict::Forward, Reason::Opened)
                    }
                }
            }
        };
        decision
    }

    /// Only Services have the packet's destination, and it is to none of their ports.
    fn note_unknown(&mut self, tables: &'a ProgrammedTables, reason: Reason) {
        self.reason = reason;
        self.verdict = match reason {
            Reason::UnknownPort => Verdict::Reject,
            _ => Verdict::Drop,
        };
        self.other_port = tables.with_cluster_ip(self.packet.destination.ip());
    }

    /// Whether it is of the node's own SCTP: sockets of that are not translated.
    pub fn is_own_association(&self) -> bool {
        self.packet.protocol == Protocol::Sctp && self.origin == Origin::Node
    }

    /// Whether the client's address is replaced on the way to most endpoints. To the client itself it
    /// always is, and to this node never: these count only if there is no other endpoint.
    pub fn source_nat(&self) -> bool {
        let mut candidates = self.candidates.iter();
        let is_ordinary = |c: &&Candidate| c.source_nat && c.address.ip() != self.packet.source;
        match candidates.clone().any(|c| is_ordinary(&c)) {
            true => true,
            false => !self.candidates.is_empty() && candidates.all(|c| c.source_nat),
        }
    }
}

impl Frontend<'_> {
    /// The endpoints among which one is chosen.
    pub fn set(&self) -> Range {
        self.plan.set(self.policy)
    }

    /// Whether these are terminating because none is ready.
    pub fn terminating(&self) -> bool {
        let ready: u32 = self.plan.counts[..4].iter().sum();
        self.set().first >= self.plan.first + ready
    }

    /// Whether topology hints have narrowed these down.
    pub fn hinted(&self) -> bool {
        self.policy == Policy::Cluster && self.plan.has(plan_flag::HINTED) && !self.terminating()
    }
}

fn frontend<'a, A: Family>(
    tables: &'a ProgrammedTables,
    tuple: &Tuple<A>,
    ifindex: u32,
    is_socket: bool,
) -> Option<Frontend<'a>> {
    let hook = tables.tc();
    let found = hook.frontend(&service::key(tuple, is_socket))?;
    let plan = tables.plan(found.service)?;
    let kind = FrontendKind::from_u8(found.kind);
    Some(Frontend {
        service: tables.service_name(found.service)?,
        kind,
        policy: service::treatment(&hook, tuple, ifindex, plan, kind).0,
        plan,
        algorithm: tables.algorithm(found.service)?,
        source_ranges: tables.source_ranges(found.service),
    })
}

/// The flow schema that takes a connection, and whose of its flows it is.
fn schema<A: Family>(
    tables: &ProgrammedTables,
    tuple: &Tuple<A>,
    ifindex: u32,
) -> (Option<NumberedSchema>, Option<String>) {
    if tables.config.flags & config_flag::ADMISSION == 0 {
        return (None, None);
    }
    let hook = tables.tc();
    let frontend = service::addressed(&hook, tuple);
    let number = pipeline::schema_of(&hook, tuple, ifindex, frontend);
    let known = tables.numbered().known();
    let (schema, tenant) = known.schema(number).unzip();
    (schema.cloned(), tenant.flatten().map(str::to_owned))
}

fn candidates<A: Family>(
    hook: &Hook<'_, true>,
    route: &service::Route<'_>,
    tuple: &Tuple<A>,
) -> Vec<Candidate> {
    let Range { first, count } = route.plan.set(route.policy);
    let endpoints = (first..first + count).filter_map(|index| hook.tables().endpoint(index));
    let mut candidates: Vec<_> = endpoints
        .map(|endpoint| Candidate {
            address: SocketAddr::new(endpoint.address.into(), endpoint.port),
            weight: hook.tables().weight_of(endpoint.id),
            source_nat: route.source_nat(tuple, endpoint),
        })
        .collect();
    candidates.sort_by_cached_key(|candidate| candidate.address.to_string());
    candidates
}
