//! The data plane again, from its rules and with nothing of its code: what has to become of a packet.

use std::{collections::HashMap, net::IpAddr};

use lb_common::{
    abi::{FrontendKind, endpoint_flag, plan_flag},
    flow::flow_flag,
    verdict::Reason,
};
use lb_tests::packet::{Mac, Packet, tcp};

use super::{
    limits::{TIME_EXCEEDED, TOO_BIG},
    refusals::{PORT_UNREACHABLE, answer},
    scene::{
        EXTERNAL, EXTERNAL_MAC, NARROW, NARROW_MAC, NARROW_MTU, NARROW_PEER_MAC, PEER_MAC, POD,
        POD_MAC, POD_SIDE_MAC, ROUTER_MAC, Scene,
    },
    service::{Class, EndpointSpec, ServiceSpec, TCP},
    world::{At, Expected, Kept, SNAT_PORT},
};

pub type Address = (IpAddr, u16);

/// Protocol, source and destination of a flow's packets.
pub type Tuple = (u8, Address, Address);

/// A node's services and flows.
pub struct Model {
    pub scene: Scene,
    pub services: Vec<ServiceSpec>,
    /// Whether service traffic goes past the host's stack where it can.
    pub bypass: bool,
    /// Number of ports for source NAT.
    pub ports: u16,
    pub flows: HashMap<Tuple, Flow>,
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Source and destination that its packets get.
    pub to: (Address, Address),
    reply: bool,
    /// Whether packets go past the host's stack.
    forward: bool,
    /// The other direction.
    peer: Tuple,
    /// Whether the connection has still to be proved; said by the client's direction.
    half: bool,
    picked_up: bool,
    side: Side,
}

/// What a TCP segment says of its connection.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub sequence: u32,
    pub acknowledged: u32,
    pub flags: u8,
    /// Bytes of data.
    pub length: u32,
}

impl Segment {
    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn next(&self) -> u32 {
        let ends = u32::from(self.has(tcp::SYN)) + u32::from(self.has(tcp::FIN));
        self.sequence.wrapping_add(self.length + ends)
    }
}

/// What a side of a connection has said.
#[derive(Clone, Copy, Debug, Default)]
pub struct Side {
    seen: bool,
    pub next: u32,
    pub acknowledged: u32,
    /// Of the endpoint: the number of its first byte.
    first: u32,
    fin: bool,
    fin_acknowledged: bool,
    rst: bool,
}

impl Side {
    fn note(&mut self, segment: &Segment) {
        let later = segment.next().wrapping_sub(self.next) as i32 > 0;
        if !self.fin || later {
            self.next = segment.next();
        }
        self.acknowledged = segment.acknowledged;
        self.seen = true;
    }

    /// Whether a number lies in the window that this side offers, which is none while it is silent.
    fn takes(&self, sequence: u32) -> bool {
        let window = if self.seen { u32::from(WINDOW) } else { 0 };
        sequence.wrapping_sub(self.acknowledged) <= window + 1
    }
}

/// The window that all segments offer.
const WINDOW: u16 = 0xfaf0;
/// How far numbers of segments that follow each other may lie apart.
const REACH: u32 = 1 << 23;

fn near(one: u32, other: u32) -> bool {
    one.abs_diff(other).min(one.abs_diff(other).wrapping_neg()) < REACH
}

/// Where a packet leaves.
enum Hop {
    By {
        device: &'static str,
        macs: (Mac, Mac),
        mtu: usize,
    },
    NeighbourUnknown,
    Nowhere,
}

impl Model {
    /// What has to become of a TCP or UDP packet. `chosen` tells what the kernel chose for a new
    /// connection, the source and destination that its packets get.
    ///
    /// # Errors
    ///
    /// If it should not have chosen that.
    pub fn handle(
        &mut self,
        at: At,
        device: &str,
        packet: &Packet,
        segment: &Segment,
        tuple: Tuple,
        chosen: impl FnOnce() -> Option<(Address, Address)>,
    ) -> Result<Expected, String> {
        let flags = segment.flags;
        if at == At::TcEgress {
            return Ok(self.leave(packet, segment, tuple));
        }
        if opens(tuple, flags)
            && let Err(Refusal::Pass(reason)) = self.route(tuple, flags)
        {
            self.make_way(tuple);
            return Ok(Expected::passes(packet, reason));
        }
        if self.reopens(tuple, flags) {
            self.remove(tuple);
        }
        let opens = !self.flows.contains_key(&tuple);
        if opens {
            let route = match self.route(tuple, flags) {
                Ok(route) => route,
                Err(Refusal::Pass(reason)) => return Ok(Expected::passes(packet, reason)),
                Err(Refusal::Drop(reason)) => return Ok(Expected::drops(reason)),
                Err(Refusal::Reject) => {
                    let answer = answer(packet, tuple.2.0, PORT_UNREACHABLE, 0);
                    return Ok(Expected::transmits(&answer, Reason::NoEndpoints));
                }
            };
            let chosen = chosen().ok_or("no flow was recorded")?;
            self.open(tuple, segment, &route, chosen)?;
        } else {
            self.note(tuple, segment);
        }
        let flow = self.flows[&tuple];
        let reason = match (opens, flow.reply) {
            (true, _) => Reason::Opened,
            (false, true) => Reason::ToClient,
            (false, false) => Reason::ToEndpoint,
        };
        let translated = packet.clone().source(flow.to.0).destination(flow.to.1);
        let expected = self.send(at, device, packet, &flow, translated, reason, true);
        Ok(if opens {
            expected.and_opens()
        } else {
            expected
        })
    }

    /// What has to become of an ICMP error that quotes the answer to a packet of `tuple`, and that
    /// would be `translated` if it is a flow's.
    pub fn handle_error(
        &self,
        at: At,
        device: &str,
        error: &Packet,
        flow: &Flow,
        translated: Packet,
    ) -> Expected {
        match at {
            At::TcEgress if flow.reply => Expected::passes(&translated, Reason::IcmpError),
            At::TcEgress => Expected::passes(error, Reason::NotService),
            _ => self.send(
                at,
                device,
                error,
                flow,
                translated,
                Reason::IcmpError,
                false,
            ),
        }
    }

    fn leave(&mut self, packet: &Packet, segment: &Segment, tuple: Tuple) -> Expected {
        self.note(tuple, segment);
        match self.flows.get(&tuple) {
            Some(flow) if flow.reply => {
                let translated = packet.clone().source(flow.to.0).destination(flow.to.1);
                Expected::passes(&translated, Reason::ToClient)
            }
            Some(_) => Expected::passes(packet, Reason::NotService),
            // Whatever else is to be done, it is done where packets come in.
            None => match self.route(tuple, 0) {
                Err(Refusal::Drop(reason)) => Expected::drops(reason),
                _ => Expected::passes(packet, Reason::NotService),
            },
        }
    }

    /// A packet of a flow goes on from where it came in.
    #[expect(
        clippy::too_many_arguments,
        reason = "a packet and all that is known of it"
    )]
    fn send(
        &self,
        at: At,
        device: &str,
        packet: &Packet,
        flow: &Flow,
        translated: Packet,
        reason: Reason,
        answers: bool,
    ) -> Expected {
        if !flow.forward {
            return match flow.reply {
                true => Expected::passes(packet, Reason::ReplyToStack),
                false => Expected::passes(&translated, reason),
            };
        }
        let refused = |kinds, word, reason| match answers {
            true => Expected::transmits(&answer(packet, self.scene.node, kinds, word), reason),
            false => Expected::drops(reason),
        };
        if packet.time_to_live() <= 1 {
            return refused(TIME_EXCEEDED, 0, Reason::TimeExceeded);
        }
        let (out, macs, mtu) = match self.hop(flow.to.1.0) {
            Hop::By { device, macs, mtu } if !at.is_xdp() || device != POD => (device, macs, mtu),
            _ if at.is_xdp() => return Expected::passes(packet, Reason::LaterHook),
            Hop::NeighbourUnknown => return Expected::redirects(&translated.hop(), reason),
            _ => return Expected::drops(Reason::NoRoute),
        };
        if packet.ip_bytes().len() > mtu {
            return refused(TOO_BIG, mtu as u32, Reason::TooBig);
        }
        let sent = translated.hop().macs(macs.0, macs.1);
        match out == device {
            true => Expected::transmits(&sent, reason),
            false => Expected::redirects(&sent, reason),
        }
    }

    fn hop(&self, to: IpAddr) -> Hop {
        let scene = &self.scene;
        let by = |device, macs, mtu| Hop::By { device, macs, mtu };
        match to {
            _ if to == scene.local => by(POD, (POD_MAC, POD_SIDE_MAC), 1500),
            _ if to == scene.remote => by(EXTERNAL, (PEER_MAC, EXTERNAL_MAC), 1500),
            _ if to == scene.narrow => by(NARROW, (NARROW_PEER_MAC, NARROW_MAC), NARROW_MTU.into()),
            _ if to == scene.unresolved => Hop::NeighbourUnknown,
            // To itself the node forwards nothing.
            _ if to == scene.unroutable || to == scene.node => Hop::Nowhere,
            _ => by(EXTERNAL, (ROUTER_MAC, EXTERNAL_MAC), 1500),
        }
    }

    /// A SYN of the client on a connection that is closed, or never began with one.
    fn reopens(&self, tuple: Tuple, flags: u8) -> bool {
        let Some(flow) = self.flows.get(&tuple) else {
            return false;
        };
        let unreplied = flow.half && !self.flows[&flow.peer].side.seen;
        opens(tuple, flags) && !flow.reply && (self.is_closed(flow) || unreplied && flow.picked_up)
    }

    fn is_closed(&self, flow: &Flow) -> bool {
        let (one, other) = (flow.side, self.flows[&flow.peer].side);
        one.rst || other.rst || one.fin_acknowledged && other.fin_acknowledged
    }

    /// A closed flow does not translate the answers of a connection past its Service.
    fn make_way(&mut self, tuple: Tuple) {
        let answers = (tuple.0, tuple.2, tuple.1);
        if self
            .flows
            .get(&answers)
            .is_some_and(|flow| self.is_closed(flow))
        {
            self.remove(answers);
        }
    }

    fn remove(&mut self, tuple: Tuple) {
        if let Some(flow) = self.flows.remove(&tuple) {
            self.flows.remove(&flow.peer);
        }
    }

    /// What each side of a flow has said, of its own and of the other side.
    pub fn sides(&self, tuple: &Tuple) -> Option<(Side, Side)> {
        let flow = self.flows.get(tuple)?;
        Some((flow.side, self.flows[&flow.peer].side))
    }

    /// A packet's flow in both directions, or what would be its flow.
    pub fn both_ways(&self, tuple: Tuple) -> impl Iterator<Item = Tuple> + use<> {
        let peer = self.flows.get(&tuple).map(|flow| flow.peer);
        [tuple].into_iter().chain(peer)
    }

    /// What has to be kept of one direction of a flow.
    pub fn kept(&self, tuple: &Tuple) -> Option<Kept> {
        let flow = self.flows.get(tuple)?;
        let side = &flow.side;
        let flags = [
            (side.seen, flow_flag::SEEN),
            (side.fin, flow_flag::FIN),
            (side.fin_acknowledged, flow_flag::FIN_ACKED),
            (side.rst, flow_flag::RST),
        ];
        let shown = flags.into_iter().filter(|(shown, _)| *shown);
        Some(Kept {
            to: flow.to,
            half: flow.half,
            shown: shown.fold(0, |flags, (_, flag)| flags | flag),
            next: side.next,
            acknowledged: side.acknowledged,
        })
    }

    /// What a segment of a flow shows.
    fn note(&mut self, tuple: Tuple, segment: &Segment) {
        let Some(flow) = self.flows.get(&tuple).copied().filter(|_| tuple.0 == TCP) else {
            return;
        };
        let client = if flow.reply { flow.peer } else { tuple };
        let half = self.flows[&client].half;
        let (mut own, mut other) = (flow.side, self.flows[&flow.peer].side);
        let proved = hear(&flow, half, &mut own, &mut other, segment);
        self.flows.get_mut(&tuple).expect("found").side = own;
        self.flows.get_mut(&flow.peer).expect("its peer").side = other;
        self.flows.get_mut(&client).expect("one of the two").half = half && !proved;
    }
}

/// What a segment changes of what both sides have said; whether it proves their connection.
fn hear(flow: &Flow, half: bool, own: &mut Side, other: &mut Side, segment: &Segment) -> bool {
    if segment.has(tcp::RST) {
        own.rst |= if !other.seen {
            segment.sequence == own.next
        } else if !own.seen && !flow.picked_up {
            segment.has(tcp::ACK) && segment.acknowledged == other.next
        } else {
            other.takes(segment.sequence)
        };
        return false;
    }
    if segment.has(tcp::SYN) {
        let counts = match flow.reply {
            true => {
                let early = other.next.wrapping_sub(segment.acknowledged);
                segment.has(tcp::ACK) && early < 1 << 14
            }
            false => !segment.has(tcp::ACK) && !other.seen,
        };
        if half && counts && !flow.picked_up {
            own.next = segment.next();
            own.acknowledged = segment.acknowledged;
            own.first = segment.sequence.wrapping_add(1);
            own.seen = true;
        }
        return false;
    }
    let answers = other.seen
        && near(other.acknowledged, segment.sequence)
        && near(other.next, segment.acknowledged);
    let shakes_hands = half && !flow.reply && other.seen;
    let goes_on = own.seen
        && !shakes_hands
        && near(own.next, segment.next())
        && near(own.acknowledged, segment.acknowledged);
    let ends = segment.has(tcp::FIN) && !own.fin;
    if !(answers || goes_on) || ends && !other.takes(segment.sequence) {
        return false;
    }
    own.note(segment);
    other.rst = false;
    other.fin_acknowledged |= other.fin && segment.acknowledged == other.next;
    let past_first = segment.acknowledged.wrapping_sub(other.first);
    let proved = half
        && match flow.reply {
            true => flow.picked_up,
            false => {
                let exact = past_first <= other.next.wrapping_sub(other.first);
                other.seen && (flow.picked_up || exact)
            }
        };
    own.fin |= ends && (proved || !half || flow.reply);
    proved
}

fn opens(tuple: Tuple, flags: u8) -> bool {
    tuple.0 == TCP && flags & (tcp::SYN | tcp::ACK | tcp::RST) == tcp::SYN
}

/// Endpoints that a new connection may go to.
struct Route {
    endpoints: Vec<EndpointSpec>,
    masquerade: bool,
}

enum Refusal {
    Pass(Reason),
    Drop(Reason),
    Reject,
}

/// New connections.
impl Model {
    fn route(&self, tuple: Tuple, flags: u8) -> Result<Route, Refusal> {
        let (protocol, source, destination) = tuple;
        let frontend = self.services.iter().find_map(|service| {
            let mut frontends = service.frontends.iter();
            let found = frontends.find(|(_, address, port)| (*address, *port) == destination)?;
            (service.protocol == protocol).then_some((service, found.0))
        });
        let Some((service, kind)) = frontend else {
            return Err(Refusal::Pass(Reason::NotService));
        };
        let ranges = &service.source_ranges;
        if kind == FrontendKind::LoadBalancerIp
            && !ranges.is_empty()
            && !ranges.iter().any(|range| range.0 == source.0)
        {
            return Err(Refusal::Drop(Reason::SourceRange));
        }
        if service.endpoints.is_empty() {
            return Err(Refusal::Reject);
        }
        let from_pod = source.0 == self.scene.local;
        let from_node = source.0 == self.scene.node;
        let external_local = service.flags & plan_flag::EXTERNAL_LOCAL != 0;
        let local = match kind {
            FrontendKind::ClusterIp => service.flags & plan_flag::INTERNAL_LOCAL != 0,
            _ => external_local && !from_pod && !from_node,
        };
        let of = |ready: bool| {
            let endpoints = service.endpoints.iter().copied();
            let terminating = [Class::LocalTerminating, Class::RemoteTerminating];
            let wanted = endpoints.filter(|e| terminating.contains(&e.class) != ready);
            wanted
                .filter(|e| !local || e.class.is_local())
                .collect::<Vec<_>>()
        };
        let endpoints = match of(true) {
            ready if ready.is_empty() => of(false),
            ready => ready,
        };
        if endpoints.is_empty() {
            return Err(Refusal::Drop(Reason::NoLocalEndpoints));
        }
        if protocol == TCP && flags & tcp::RST != 0 {
            return Err(Refusal::Pass(Reason::StrayReset));
        }
        let masquerade = match kind {
            FrontendKind::ClusterIp => !from_pod,
            _ if external_local => from_node,
            _ => true,
        };
        Ok(Route {
            endpoints,
            masquerade,
        })
    }

    fn open(
        &mut self,
        tuple: Tuple,
        segment: &Segment,
        route: &Route,
        chosen: (Address, Address),
    ) -> Result<(), String> {
        let (protocol, client, frontend) = tuple;
        let (source, destination) = chosen;
        let mut endpoints = route.endpoints.iter();
        let endpoint = endpoints
            .find(|endpoint| (endpoint.address, endpoint.port) == destination)
            .ok_or_else(|| format!("{destination:?} is none of {:?}", route.endpoints))?;
        let host = endpoint.flags & endpoint_flag::HOST != 0;
        let masquerade = !host && (route.masquerade || client.0 == endpoint.address);
        let wanted = if masquerade {
            self.scene.node
        } else {
            client.0
        };
        if source.0 != wanted {
            return Err(format!("the source became {source:?}, not {wanted}"));
        }
        let answers = (protocol, destination, source);
        let taken = (protocol, destination, client);
        let syn = opens(tuple, segment.flags);
        let taken = self
            .flows
            .get(&taken)
            .is_some_and(|flow| !(syn && self.is_closed(flow)));
        if let Some(flow) = self.flows.get(&answers)
            && syn
            && self.is_closed(flow)
        {
            self.remove(answers);
        }
        if self.flows.contains_key(&answers) {
            return Err(format!("{answers:?} is another connection's"));
        }
        let ports = SNAT_PORT..SNAT_PORT + self.ports;
        let may = match masquerade || taken {
            true => ports.contains(&source.1),
            false => source.1 == client.1,
        };
        if !may {
            return Err(format!("port {} is not to be used", source.1));
        }
        let forward = !host && (masquerade || self.bypass);
        let flow = |to, reply, peer| Flow {
            to,
            reply,
            forward,
            peer,
            half: !reply,
            picked_up: protocol == TCP && !syn,
            side: Side::default(),
        };
        let mut there = flow(chosen, false, answers);
        there.side.note(segment);
        self.flows.insert(tuple, there);
        self.flows
            .insert(answers, flow((frontend, client), true, tuple));
        Ok(())
    }
}
