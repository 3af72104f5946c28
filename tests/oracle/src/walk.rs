//! Random nodes and packets.

use std::{collections::BTreeMap, net::IpAddr};

use lb_common::{
    abi::{FrontendKind, endpoint_flag, plan_flag},
    verdict::Reason,
};
use lb_packet::{Packet, tcp_flag};

use super::{
    choices::Choices,
    expected::{At, Kept, Outcome, assert_expected},
    model::{Address, Flow, Model, Segment, Tuple},
    scene::{EXTERNAL, EXTERNAL_MAC, POD, ROUTER_MAC, Scene},
    sent::{FragmentsOf, Sent},
    service::{Class, EndpointSpec, ServiceSpec, TCP, UDP},
};

/// Services of a node.
const SERVICES: u16 = 8;
/// Ports for source NAT.
const PORTS: u16 = 1000;
/// A timeout that no test reaches, in seconds.
const AFFINITY: u32 = 10_800;

/// The data plane that is compared with the model: a node with the model's services and settings.
pub trait Subject {
    /// Handles a frame that arrives on a device, or leaves by it.
    fn run(&mut self, at: At, device: &str, frame: &[u8]) -> Outcome;
    /// One direction of a live flow, as it is kept.
    fn kept(&self, protocol: u8, from: Address, to: Address) -> Option<Kept>;
    /// Connections that count against the node's limit.
    fn seats(&self) -> i32;
}

/// A random node without flows.
pub fn node(choices: &mut Choices<'_>) -> Model {
    let scene = *choices.of(&Scene::both());
    let bypass = choices.once_in(2);
    let services = (0..SERVICES).map(|number| service(choices, scene, number));
    let mut model = Model::new(scene, services.collect(), bypass, PORTS);
    if choices.once_in(3) {
        model.limit = 1 + choices.below(16);
    }
    model
}

/// Sends so many random packets, or fewer if choices end, and compares the result of each. Returns
/// the counts of reasons.
///
/// # Panics
///
/// If the result of a packet is not what the model says. The message contains `name`.
pub fn walk(
    subject: &mut impl Subject,
    model: &mut Model,
    choices: &mut Choices<'_>,
    packets: usize,
    name: &str,
) -> BTreeMap<Reason, usize> {
    let mut reasons = BTreeMap::new();
    let mut walk = Walk {
        subject,
        model,
        choices,
        later: Vec::new(),
    };
    for number in 0..packets {
        if walk.choices.is_over() {
            break;
        }
        let reason = walk.step(&format!("packet {number} of {name}"));
        *reasons.entry(reason).or_default() += 1;
    }
    reasons
}

struct Walk<'w, 'c, S> {
    subject: &'w mut S,
    model: &'w mut Model,
    choices: &'w mut Choices<'c>,
    /// Fragments that are still to be sent, or sent again.
    later: Vec<(Sent, FragmentsOf)>,
}

impl<S: Subject> Walk<'_, '_, S> {
    /// Sends one random packet.
    fn step(&mut self, name: &str) -> Reason {
        let at = *self.choices.of(&[At::Xdp, At::TcIngress, At::TcEgress]);
        let device = *self.choices.of(&[EXTERNAL, EXTERNAL, POD]);
        if !self.later.is_empty() && self.choices.once_in(4) {
            return self.fragment(at, device, name);
        }
        match flow(self.choices, self.model) {
            Some((tuple, flow)) if self.choices.once_in(6) => {
                self.error(at, device, tuple, &flow, name)
            }
            Some((tuple, _)) if self.choices.once_in(2) => self.packet(at, device, tuple, name),
            _ => {
                let tuple = tuple(self.choices, self.model);
                self.packet(at, device, tuple, name)
            }
        }
    }

    /// A packet with ports, or the first of its fragments.
    fn packet(&mut self, at: At, device: &str, tuple: Tuple, name: &str) -> Reason {
        let flags = *self.choices.of(&[
            tcp_flag::SYN,
            tcp_flag::SYN,
            tcp_flag::SYN | tcp_flag::ACK,
            tcp_flag::ACK,
            tcp_flag::PSH | tcp_flag::ACK,
            tcp_flag::FIN | tcp_flag::ACK,
            tcp_flag::RST,
            tcp_flag::RST | tcp_flag::ACK,
        ]);
        let mut segment = segment(self.choices, self.model, &tuple, flags);
        let packet = packet(self.choices, &tuple, &segment);
        let sent = match self.choices.once_in(6) {
            true => self.first_fragment(&packet, &mut segment),
            false => Sent::whole(packet),
        };
        let (protocol, from, to) = tuple;
        let found = self.subject.run(at, device, &sent.packet().bytes());
        let chosen = || self.subject.kept(protocol, from, to).map(|flow| flow.to);
        let expected = self
            .model
            .handle(at, device, &sent, &segment, tuple, chosen);
        let expected = expected.unwrap_or_else(|error| panic!("{name}: {error}: {found:?}"));
        assert_expected(name, at, &found, &expected);
        if found.counted[0].1 == Reason::ConcurrencyLimit {
            let subject = &*self.subject;
            self.model.remove_closed(|(protocol, from, to)| {
                subject.kept(*protocol, *from, *to).is_none()
            });
        }
        self.assert_kept(tuple, name, &format!("{segment:?} of {tuple:?}"));
        self.assert_seats(name);
        found.counted[0].1
    }

    /// Asserts that what is kept of both directions of a TCP flow is right.
    #[track_caller]
    fn assert_kept(&self, tuple: Tuple, name: &str, what: &str) {
        for tuple in self.model.both_ways(tuple).filter(|tuple| tuple.0 == TCP) {
            let (protocol, from, to) = tuple;
            assert_eq!(
                self.subject.kept(protocol, from, to),
                self.model.kept(&tuple),
                "{name}: what is kept of {from:?} to {to:?} after {what}"
            );
        }
    }

    /// Asserts that as many connections count against the limit as in the model.
    #[track_caller]
    fn assert_seats(&self, name: &str) {
        let wanted = self.model.seats() as i32;
        assert_eq!(self.subject.seats(), wanted, "{name}: seats");
    }

    /// The first fragment of a packet. The others come later, in any order, or never.
    fn first_fragment(&mut self, packet: &Packet, segment: &mut Segment) -> Sent {
        const TCP_HEADER: usize = 20;
        let size = *self.choices.of(&[24, 64, 1400]);
        let id = 0x4000 + self.choices.below(4) as u32;
        let mut fragments = Sent::fragments(packet, id, size);
        let first = fragments.remove(0);
        if !fragments.is_empty() {
            // The length of the first fragment's part: the node does not wait for the rest of a
            // segment.
            segment.length = (size - TCP_HEADER) as u32;
        }
        let later = fragments.into_iter();
        self.later
            .extend(later.filter_map(|sent| sent.continues().map(|of| (sent, of))));
        first
    }

    /// A later fragment of a packet, perhaps for the second time.
    fn fragment(&mut self, at: At, device: &str, name: &str) -> Reason {
        let index = self.choices.below(self.later.len());
        let (sent, of) = match self.choices.once_in(4) {
            true => self.later[index].clone(),
            false => self.later.swap_remove(index),
        };
        let found = self.subject.run(at, device, &sent.packet().bytes());
        let expected = self.model.handle_fragment(at, device, &sent, of);
        assert_expected(name, at, &found, &expected);
        found.counted[0].1
    }

    /// An ICMP error about an answer that the sender of packets of `tuple` has received.
    fn error(&mut self, at: At, device: &str, tuple: Tuple, flow: &Flow, name: &str) -> Reason {
        let choices = &mut *self.choices;
        let nothing = segment(choices, self.model, &tuple, 0);
        let (protocol, from, to) = tuple;
        let about = packet(choices, &(protocol, to, from), &nothing);
        let translated = about.clone().source(flow.to.1).destination(flow.to.0);
        let length = *choices.of(&[8, 20, 64]);
        let (kind, word) = match self.model.scene.node.is_ipv4() {
            true => *choices.of(&[((3, 3), 0), ((3, 4), 1280), ((11, 0), 0)]),
            false => *choices.of(&[((1, 4), 0), ((2, 0), 1280), ((3, 0), 0)]),
        };
        let sender = *choices.of(&[from.0, self.model.scene.load_balancer]);
        let error = Packet::icmp(sender, to.0, kind, word, about.quote(length));
        let error = error.macs(EXTERNAL_MAC, ROUTER_MAC).ttl(ttl(choices));
        let quote = translated.quote(length);
        let source = match sender == from.0 {
            true => flow.to.0.0,
            false => sender,
        };
        let translated = error.clone().payload(&quote).addresses(source, flow.to.1.0);
        let found = self.subject.run(at, device, &error.bytes());
        if protocol == TCP && matches!(kind, (3, 3) | (1, 4)) {
            self.model.note_unreachable(&tuple, &nothing);
        }
        let expected = self
            .model
            .handle_error(at, device, &error, flow, translated);
        assert_expected(name, at, &found, &expected);
        self.assert_kept(tuple, name, &format!("an ICMP error about {nothing:?}"));
        self.assert_seats(name);
        found.counted[0].1
    }
}

/// A packet of a flow, or of what would be one.
fn packet(choices: &mut Choices<'_>, tuple: &Tuple, segment: &Segment) -> Packet {
    let (protocol, from, to) = *tuple;
    let packet = match protocol {
        UDP => Packet::udp(from, to),
        _ => Packet::tcp(from, to, segment.flags).numbers(segment.sequence, segment.acknowledged),
    };
    let first = choices.below(1 << 8);
    let payload: Vec<u8> = (0..segment.length)
        .map(|n| n.wrapping_mul(0x9d).wrapping_add(first as u32) as u8)
        .collect();
    let packet = packet
        .macs(EXTERNAL_MAC, ROUTER_MAC)
        .ttl(ttl(choices))
        .traffic_class(choices.below(1 << 8) as u8)
        .payload(&payload);
    match from.0.is_ipv4() {
        true => {
            let packet = packet.options(&vec![1; choices.below(4) * 4]);
            let packet = match choices.once_in(3) {
                true => packet.may_be_fragmented(),
                false => packet,
            };
            match choices.once_in(4) {
                true => packet.without_checksum(),
                false => packet,
            }
        }
        false if choices.once_in(4) => packet.extension(0, 8).extension(60, 16),
        false => packet,
    }
}

fn ttl(choices: &mut Choices<'_>) -> u8 {
    *choices.of(&[64, 64, 64, 255, 2, 1, 0])
}

fn service(choices: &mut Choices<'_>, scene: Scene, number: u16) -> ServiceSpec {
    let port = 30_000 + number;
    let mut spec = ServiceSpec::new(if number.is_multiple_of(2) { TCP } else { UDP })
        .cluster_ip(scene.cluster_ip, port)
        .node_port(scene.node, port)
        .load_balancer(scene.load_balancer, port)
        .frontend(FrontendKind::ExternalIp, scene.external_ip, port);
    for flag in [plan_flag::INTERNAL_LOCAL, plan_flag::EXTERNAL_LOCAL] {
        if choices.once_in(3) {
            spec.flags |= flag;
        }
    }
    if choices.once_in(3) {
        for address in [scene.client, scene.local] {
            let prefix = if address.is_ipv4() { 32 } else { 128 };
            spec = spec.source_range(address, prefix);
        }
    }
    if choices.once_in(3) {
        spec.affinity_seconds = AFFINITY;
    }
    spec.maglev = choices.once_in(3);
    let hints = choices.once_in(3);
    for number in 0..choices.below(6) as u16 {
        let class = class(choices, hints);
        spec.endpoints
            .push(endpoint(choices, scene, class, 8080 + number));
    }
    // Hints are ignored if none of them names this node.
    let mut classes = spec.endpoints.iter().map(|endpoint| endpoint.class);
    if classes.any(Class::is_hinted) {
        spec.flags |= plan_flag::HINTED;
    }
    spec
}

fn class(choices: &mut Choices<'_>, hints: bool) -> Class {
    let class = *choices.of(&Class::ALL);
    match class {
        Class::LocalHinted if !hints => Class::LocalReady,
        Class::RemoteHinted if !hints => Class::RemoteReady,
        class => class,
    }
}

/// An endpoint anywhere. No other one has its port.
fn endpoint(choices: &mut Choices<'_>, scene: Scene, class: Class, port: u16) -> EndpointSpec {
    let address = match class.is_local() {
        true => *choices.of(&[scene.local, scene.node]),
        false => *choices.of(&[
            scene.remote,
            scene.narrow,
            scene.unresolved,
            scene.unroutable,
        ]),
    };
    let flag = |holds, flag| if holds { flag } else { 0 };
    EndpointSpec {
        class,
        address,
        port,
        flags: flag(address == scene.node, endpoint_flag::HOST)
            | flag(class.is_local(), endpoint_flag::LOCAL)
            | flag(scene.pods().contains(&address), endpoint_flag::IN_CLUSTER),
    }
}

/// A segment that its flow's sender could have sent, or one that is slightly or very wrong.
fn segment(choices: &mut Choices<'_>, model: &Model, tuple: &Tuple, flags: u8) -> Segment {
    let length = match choices.once_in(5) {
        true => 1330 + choices.below(50),
        false => choices.below(64),
    };
    let (own, other) = model.sides(tuple).unwrap_or_default();
    let mut number = |right: [u32; 2]| match choices.below(16) {
        0 => choices.number() as u32,
        1 => right[0].wrapping_add(choices.number() as u32 % 0x2_0000),
        2 | 3 => right[1],
        _ => right[0],
    };
    Segment {
        sequence: number([own.next, other.acknowledged]),
        acknowledged: number([other.next, own.acknowledged]),
        flags,
        length: length as u32,
    }
}

/// A flow of the model, if it has any.
fn flow(choices: &mut Choices<'_>, model: &Model) -> Option<(Tuple, Flow)> {
    if model.flows.is_empty() {
        return None;
    }
    let flows = model.flows.iter();
    let mut flows: Vec<_> = flows.map(|(tuple, flow)| (*tuple, *flow)).collect();
    flows.sort_by_key(|(tuple, _)| *tuple);
    Some(*choices.of(&flows))
}

/// A packet from somewhere to a frontend, or to something else.
fn tuple(choices: &mut Choices<'_>, model: &Model) -> Tuple {
    let scene = model.scene;
    let from: IpAddr = *choices.of(&[
        scene.client,
        scene.client,
        scene.local,
        scene.remote,
        scene.node,
    ]);
    let service = choices.of(&model.services);
    let (_, address, port) = *choices.of(&service.frontends);
    let port = port + u16::from(choices.once_in(8)) * 100;
    let source = (from, 40_000 + choices.below(4) as u16);
    (service.protocol, source, (address, port))
}
