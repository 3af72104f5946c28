//! The data plane again, from its rules and with nothing of its code: what has to become of a packet.

use std::{collections::HashMap, net::IpAddr};

use lb_common::{
    abi::{FrontendKind, endpoint_flag, plan_flag},
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
    world::{At, Expected, SNAT_PORT},
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
    seen: Seen,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    fin: bool,
    rst: bool,
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
        flags: u8,
        tuple: Tuple,
        chosen: impl FnOnce() -> Option<(Address, Address)>,
    ) -> Result<Expected, String> {
        if at == At::TcEgress {
            return Ok(self.leave(packet, flags, tuple));
        }
        if opens(tuple, flags)
            && let Err(Refusal::Pass(reason)) = self.route(tuple, flags)
        {
            self.make_way(tuple);
            return Ok(Expected::passes(packet, reason));
        }
        if self.reopens(tuple, flags) {
            let flow = self.flows.remove(&tuple).ok_or("no flow")?;
            self.flows.remove(&flow.peer);
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
            self.open(tuple, &route, chosen)?;
        }
        self.note(tuple, flags);
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

    fn leave(&mut self, packet: &Packet, flags: u8, tuple: Tuple) -> Expected {
        self.note(tuple, flags);
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

    /// A SYN of the client on a connection that is closing.
    fn reopens(&self, tuple: Tuple, flags: u8) -> bool {
        let Some(flow) = self.flows.get(&tuple) else {
            return false;
        };
        let peer = self.flows[&flow.peer].seen;
        opens(tuple, flags)
            && !flow.reply
            && (flow.seen.fin || flow.seen.rst || peer.fin || peer.rst)
    }

    /// A closed flow does not translate the answers of a connection past its Service.
    fn make_way(&mut self, tuple: Tuple) {
        let answers = (tuple.0, tuple.2, tuple.1);
        let Some(flow) = self.flows.get(&answers) else {
            return;
        };
        let (seen, peer) = (flow.seen, flow.peer);
        let other = self.flows[&peer].seen;
        if seen.rst || other.rst || seen.fin && other.fin {
            self.flows.remove(&answers);
            self.flows.remove(&peer);
        }
    }

    fn note(&mut self, tuple: Tuple, flags: u8) {
        if tuple.0 == TCP
            && let Some(flow) = self.flows.get_mut(&tuple)
        {
            flow.seen.fin |= flags & tcp::FIN != 0;
            flow.seen.rst |= flags & tcp::RST != 0;
        }
    }
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
        if self.flows.contains_key(&answers) {
            return Err(format!("{answers:?} is another connection's"));
        }
        let ports = SNAT_PORT..SNAT_PORT + self.ports;
        let taken = self.flows.contains_key(&(protocol, destination, client));
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
            seen: Seen::default(),
        };
        self.flows.insert(tuple, flow(chosen, false, answers));
        self.flows
            .insert(answers, flow((frontend, client), true, tuple));
        Ok(())
    }
}
