//! The data plane once more, written from its rules and without its code but Maglev's hash and
//! tables: what must happen to a packet.

mod opening;
mod tcp;

use std::{collections::HashMap, net::IpAddr};

use lb_common::{flow::flow_flag, verdict::Reason};
use lb_packet::{Mac, Packet};

pub use self::tcp::{Segment, Side};
use self::{opening::Refusal, tcp::opens};
use super::{
    expected::{At, Expected, Kept, PORT_UNREACHABLE, TIME_EXCEEDED, TOO_BIG, answer, refusal},
    scene::{
        EXTERNAL, EXTERNAL_MAC, NARROW, NARROW_MAC, NARROW_MTU, NARROW_PEER_MAC, PEER_MAC, POD,
        POD_MAC, POD_SIDE_MAC, ROUTER_MAC, Scene,
    },
    sent::{FragmentsOf, Sent},
    service::{ServiceSpec, TCP},
};

/// Address and port.
pub type Address = (IpAddr, u16);

/// Protocol, source and destination of a flow's packets.
pub type Tuple = (u8, Address, Address);

/// A node's services and flows.
pub struct Model {
    pub scene: Scene,
    pub services: Vec<ServiceSpec>,
    /// Whether service traffic bypasses the host's stack where possible.
    pub bypass: bool,
    /// Number of ports for source NAT.
    pub ports: u16,
    /// How many connections the node lets in; 0 means no limit.
    pub limit: usize,
    pub flows: HashMap<Tuple, Flow>,
    /// The flows of packets that are sent in fragments, and whether the stack is to fragment them
    /// anew.
    fragments: HashMap<FragmentsOf, (Tuple, bool)>,
    /// The endpoints that clients have used, by service with session affinity.
    visited: HashMap<(usize, IpAddr), Vec<Address>>,
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// The source and destination that its packets are given.
    pub to: (Address, Address),
    reply: bool,
    /// Whether packets bypass the host's stack.
    forward: bool,
    /// The other direction.
    peer: Tuple,
    /// Whether the connection has still to prove itself. The client's direction says so.
    half: bool,
    picked_up: bool,
    /// Whether the connection counts against the limit. The endpoint's direction says so.
    seated: bool,
    side: Side,
}

/// The way by which a packet leaves.
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
    /// A node without flows.
    pub fn new(scene: Scene, services: Vec<ServiceSpec>, bypass: bool, ports: u16) -> Self {
        Self {
            scene,
            services,
            bypass,
            ports,
            limit: 0,
            flows: HashMap::new(),
            fragments: HashMap::new(),
            visited: HashMap::new(),
        }
    }

    /// What must happen to a TCP or UDP packet, or to the first fragment of one. For a new
    /// connection, `chosen` returns what was chosen: the source and destination that its packets
    /// are given.
    ///
    /// # Errors
    ///
    /// If that choice is not allowed.
    pub fn handle(
        &mut self,
        at: At,
        device: &str,
        sent: &Sent,
        segment: &Segment,
        tuple: Tuple,
        chosen: impl FnOnce() -> Option<(Address, Address)>,
    ) -> Result<Expected, String> {
        let flags = segment.flags;
        if at == At::TcEgress {
            return Ok(self.leave(sent, segment, tuple));
        }
        let packet = &sent.packet();
        if opens(tuple, flags)
            && let Err(Refusal::Pass(reason)) = self.route(tuple, flags)
        {
            self.make_way(tuple);
            return Ok(Expected::passes(packet, reason));
        }
        let reopens = self.reopens(tuple, flags);
        if reopens {
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
            let is_refused = self.is_full() && (tuple.0 != TCP || tcp::opens(tuple, flags));
            let chosen = match chosen() {
                // With the flow that it replaces, another one may have gone, too.
                Some(chosen) if !is_refused || reopens => chosen,
                None if is_refused => {
                    let answer = refusal(packet, tuple.2, tuple.1, segment.next());
                    return Ok(Expected::transmits(&answer, Reason::ConcurrencyLimit));
                }
                None => return Err("no flow was recorded".to_owned()),
                Some(_) => return Err("a flow was recorded above the limit".to_owned()),
            };
            self.open(tuple, segment, &route, chosen)?;
        } else {
            self.note(tuple, segment);
        }
        self.note_fragments(sent, tuple);
        let flow = self.flows[&tuple];
        let reason = match (opens, flow.reply) {
            (true, _) => Reason::Opened,
            (false, true) => Reason::ToClient,
            (false, false) => Reason::ToEndpoint,
        };
        let expected = match self.is_for_stack(at, packet, &flow) {
            true => {
                let of = sent.begins().and_then(|of| self.fragments.get_mut(&of));
                of.into_iter().for_each(|(_, for_stack)| *for_stack = true);
                to_stack(at, sent, &flow, tuple, reason)
            }
            false => {
                let translated = sent.translated(flow.to);
                self.send(at, device, packet, &flow, translated, reason, true)
            }
        };
        Ok(if opens {
            expected.and_opens()
        } else {
            expected
        })
    }

    /// What must happen to an ICMP error that quotes the answer to a packet of `tuple`. If the
    /// answer belongs to a flow, `translated` is the result of translation.
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

    /// Records an ICMP error: a segment did not reach the side that answers by `tuple`. It counts
    /// if the segment is the SYN, and has not been answered.
    pub fn note_unreachable(&mut self, tuple: &Tuple, segment: &Segment) {
        let Some(flow) = self.flows.get(tuple).filter(|flow| flow.reply) else {
            return;
        };
        let client = self.flows[&flow.peer];
        let is_unanswered = client.half && !flow.side.seen && !flow.picked_up;
        if is_unanswered && segment.sequence == client.side.next.wrapping_sub(1) {
            self.flows.get_mut(tuple).expect("it is there").side.rst = true;
            self.follow(*tuple);
        }
    }

    /// What must happen to a later fragment, identified by `of`: the same as to the first one.
    pub fn handle_fragment(&self, at: At, device: &str, sent: &Sent, of: FragmentsOf) -> Expected {
        let packet = &sent.packet();
        let Some((tuple, for_stack)) = self.fragments.get(&of) else {
            return Expected::passes(packet, Reason::UnknownFragment);
        };
        let flow = self.flows[tuple];
        let follows = *for_stack && flow.forward && packet.time_to_live() > 1;
        let translated = sent.translated(flow.to);
        let reason = Reason::FollowedFragment;
        match at {
            At::TcEgress if flow.reply => Expected::passes(&translated, reason),
            At::TcEgress => Expected::passes(packet, Reason::NotService),
            _ if follows || self.is_for_stack(at, packet, &flow) => {
                to_stack(at, sent, &flow, *tuple, reason)
            }
            // No ICMP error about a later fragment (RFC 1122, 3.2.2).
            _ => self.send(at, device, packet, &flow, translated, reason, false),
        }
    }

    fn note_fragments(&mut self, sent: &Sent, tuple: Tuple) {
        if let Some(fragments) = sent.begins() {
            self.fragments.insert(fragments, (tuple, false));
        }
    }

    fn leave(&mut self, sent: &Sent, segment: &Segment, tuple: Tuple) -> Expected {
        let packet = &sent.packet();
        self.note(tuple, segment);
        if self.flows.contains_key(&tuple) {
            self.note_fragments(sent, tuple);
        }
        match self.flows.get(&tuple) {
            Some(flow) if flow.reply => {
                Expected::passes(&sent.translated(flow.to), Reason::ToClient)
            }
            Some(_) => Expected::passes(packet, Reason::NotService),
            // Everything else is done where packets arrive.
            None => match self.route(tuple, 0) {
                Err(Refusal::Drop(reason)) => Expected::drops(reason),
                _ => Expected::passes(packet, Reason::NotService),
            },
        }
    }

    /// A packet of a flow goes on from where it arrived.
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

    /// Whether a packet of a flow is too big for its way, and may be fragmented.
    fn is_for_stack(&self, at: At, packet: &Packet, flow: &Flow) -> bool {
        match self.hop(flow.to.1.0) {
            Hop::By { device, .. } if at.is_xdp() && device == POD => false,
            Hop::By { mtu, .. } => {
                flow.forward
                    && packet.time_to_live() > 1
                    && packet.may_be_fragmented_by_routers()
                    && packet.ip_bytes().len() > mtu
            }
            _ => false,
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
            // The node forwards nothing to itself.
            _ if to == scene.unroutable || to == scene.node => Hop::Nowhere,
            _ => by(EXTERNAL, (ROUTER_MAC, EXTERNAL_MAC), 1500),
        }
    }

    /// Whether this is the client's SYN on a connection that is closed, or that did not start with
    /// a SYN.
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

    /// A closed flow must not translate the answers of a connection that bypasses its Service.
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
            self.fragments
                .retain(|_, (of, _)| *of != tuple && *of != flow.peer);
        }
    }

    /// What each side of a flow has said about itself and about the other side.
    pub fn sides(&self, tuple: &Tuple) -> Option<(Side, Side)> {
        let flow = self.flows.get(tuple)?;
        Some((flow.side, self.flows[&flow.peer].side))
    }

    /// Both directions of a packet's flow, or of the flow that it would have.
    pub fn both_ways(&self, tuple: Tuple) -> impl Iterator<Item = Tuple> + use<> {
        let peer = self.flows.get(&tuple).map(|flow| flow.peer);
        [tuple].into_iter().chain(peer)
    }

    /// What must be kept of one direction of a flow.
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

    /// Records what a segment shows of its flow.
    fn note(&mut self, tuple: Tuple, segment: &Segment) {
        let Some(flow) = self.flows.get(&tuple).copied().filter(|_| tuple.0 == TCP) else {
            return;
        };
        let client = if flow.reply { flow.peer } else { tuple };
        let half = self.flows[&client].half;
        let (mut own, mut other) = (flow.side, self.flows[&flow.peer].side);
        let proved = tcp::hear(&flow, half, &mut own, &mut other, segment);
        self.flows.get_mut(&tuple).expect("found").side = own;
        self.flows.get_mut(&flow.peer).expect("its peer").side = other;
        self.flows.get_mut(&client).expect("one of the two").half = half && !proved;
        self.follow(tuple);
    }

    /// Has a connection that is over give its seat back. One that goes on takes it again as soon as
    /// its endpoint says something. A client's reset alone does not count.
    fn follow(&mut self, tuple: Tuple) {
        let flow = self.flows[&tuple];
        let reply = if flow.reply { tuple } else { flow.peer };
        let (answers, client) = (self.flows[&reply], self.flows[&self.flows[&reply].peer]);
        let (one, other) = (client.side, answers.side);
        let over = other.rst || one.fin_acknowledged && other.fin_acknowledged;
        let seated = match self.is_closed(&flow) {
            true => answers.seated && !over,
            false => answers.seated || flow.reply && self.limit != 0,
        };
        self.flows.get_mut(&reply).expect("it is there").seated = seated;
    }

    /// Removes flows that are closed and gone. A connection that is refused at the limit may have
    /// ended them before, to take their place.
    pub fn remove_closed(&mut self, is_gone: impl Fn(&Tuple) -> bool) {
        let flows = self.flows.iter();
        let closed = flows.filter(|(tuple, flow)| self.is_closed(flow) && is_gone(tuple));
        let closed: Vec<Tuple> = closed.map(|(tuple, _)| *tuple).collect();
        for tuple in closed {
            self.remove(tuple);
        }
    }

    /// Connections that count against the limit.
    pub fn seats(&self) -> usize {
        self.flows.values().filter(|flow| flow.seated).count()
    }

    fn is_full(&self) -> bool {
        self.limit != 0 && self.seats() >= self.limit
    }
}

/// A packet goes through the stack with its new destination. Only TC can say that the rest is still to
/// be done.
fn to_stack(at: At, sent: &Sent, flow: &Flow, tuple: Tuple, reason: Reason) -> Expected {
    match at.is_xdp() {
        true => Expected::passes(&sent.packet(), Reason::LaterHook),
        false => Expected::passes(&sent.translated((tuple.1, flow.to.1)), reason),
    }
}
