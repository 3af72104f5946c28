//! One conversation, held with both twins at once: whatever comes out of one must come out of the
//! other.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    ops::{AddAssign, Range},
    thread,
    time::Duration,
};

use anyhow::Result;
use fastrand::Rng;
use lb_packet::{Header, Read, SCTP, TCP, UDP, icmp, icmp_number, tcp_flag};
use lb_tests::Family;

use super::{
    difference::Difference,
    ground::{self, NEIGHBOUR, Twin, Twins},
    known,
    message::{Body, Message},
    opening::{Opening, TRIES},
    scene::Scene,
    script::{End, Step, steps},
    seen::{Fields, Names, RELAYED, describe, is_too_big},
    wires::{Sent, Wire},
};

/// Ports of clients.
const PORTS: Range<u16> = 10_000..60_000;

/// What has come of conversations.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub conversations: usize,
    /// Packets sent to each twin.
    pub packets: usize,
    /// Conversations that reached the same endpoint at both twins.
    pub served: usize,
    /// Those that could not be compared, since the twins stick to different endpoints.
    pub apart: usize,
}

/// Conversations of a scene.
pub struct Talks<'a> {
    twins: &'a Twins,
    scene: &'a Scene,
    rng: &'a mut Rng,
    /// The next port of clients.
    port: u16,
    /// What kube-proxy has done with packets, by their openings.
    known: BTreeMap<String, BTreeSet<Vec<Fields>>>,
    pub tally: Tally,
}

/// One twin's part of a conversation.
struct Side<'a> {
    twin: &'a Twin,
    client: SocketAddr,
    front: SocketAddr,
    client_wire: Wire,
    endpoint: SocketAddr,
    endpoint_wire: Wire,
    /// Whom the endpoint sees.
    seen_as: SocketAddr,
    /// The latest packets that have come to the client and to the endpoint.
    arrived: [Option<Vec<u8>>; 2],
}

impl<'a> Talks<'a> {
    pub fn new(twins: &'a Twins, scene: &'a Scene, rng: &'a mut Rng) -> Self {
        let port = rng.u16(PORTS);
        Self {
            twins,
            scene,
            rng,
            port,
            known: BTreeMap::new(),
            tally: Tally::default(),
        }
    }

    /// Holds a conversation; what differs ends it.
    pub fn hold(&mut self) -> Result<Option<Difference>> {
        let opening = Opening::random(self.scene, self.rng);
        self.tally.conversations += 1;
        let difference = self.compare(&opening)?;
        if difference
            .as_ref()
            .is_none_or(|found| known::rule(found).is_some())
        {
            return Ok(difference);
        }
        // Something may have been under way, there were too many answers in this second, or an older
        // connection had the client's port. What is a rule repeats itself.
        thread::sleep(Duration::from_millis(1100));
        self.port = self.rng.u16(PORTS);
        self.compare(&opening)
    }

    fn compare(&mut self, opening: &Opening) -> Result<Option<Difference>> {
        let twins = self.twins;
        let ours = self.open(&twins.kube_proxy, opening)?;
        self.note(opening, &ours);
        let mut elsewhere: Vec<Outcome> = Vec::new();
        for _ in 0..opening.tries() {
            let theirs = self.open(&twins.node_lb, opening)?;
            if theirs.seen == ours.seen {
                let wrong = self.never_seen(opening, &elsewhere)?;
                return match wrong {
                    Some(difference) => Ok(Some(difference)),
                    None => self.go_on(opening, ours, theirs),
                };
            }
            if !elsewhere.iter().any(|known| known.seen == theirs.seen) {
                elsewhere.push(theirs);
            }
        }
        let served = |outcome: &Outcome| {
            let is_too_big = matches!(&outcome.seen[..], [one] if is_too_big(one));
            is_too_big || self.endpoint_of(outcome, opening).is_some()
        };
        let all_served = served(&ours) && elsewhere.iter().all(served);
        if opening.to.is_sticky && (all_served || opening.to.may_be_node) {
            self.tally.apart += 1;
            return Ok(None);
        }
        let theirs = elsewhere.first().expect("there has been a try");
        Ok(self.difference(opening, None, "opening", &ours, theirs))
    }

    /// Sees whether kube-proxy does all that node-lb has done as well.
    fn never_seen(&mut self, opening: &Opening, found: &[Outcome]) -> Result<Option<Difference>> {
        for theirs in found {
            let mut tries = 0;
            while !opening.to.is_sticky && !self.is_known(opening, theirs) {
                let ours = self.open(&self.twins.kube_proxy, opening)?;
                self.note(opening, &ours);
                tries += 1;
                if tries == TRIES {
                    return Ok(self.difference(opening, None, "opening", &ours, theirs));
                }
            }
        }
        Ok(None)
    }

    fn note(&mut self, opening: &Opening, outcome: &Outcome) {
        let known = self.known.entry(opening.key()).or_default();
        known.insert(outcome.seen.clone());
    }

    fn is_known(&self, opening: &Opening, outcome: &Outcome) -> bool {
        let known = self.known.get(&opening.key());
        known.is_some_and(|known| known.contains(&outcome.seen))
    }

    /// Goes on where both twins have sent the client to the same endpoint.
    fn go_on(
        &mut self,
        opening: &Opening,
        ours: Outcome,
        theirs: Outcome,
    ) -> Result<Option<Difference>> {
        let (twins, front) = (self.twins, opening.to.address);
        // What follows fits the usual beginnings.
        let is_usual = opening.message.shape.fragments.is_none()
            && !matches!(opening.message.body, Body::Tcp { flags, .. } if flags != tcp_flag::SYN);
        let Some(endpoint) = self.endpoint_of(&ours, opening).filter(|_| is_usual) else {
            return Ok(None);
        };
        self.tally.served += 1;
        let side = |twin, opened: &Outcome| {
            let sent = opened
                .sent
                .iter()
                .find(|sent| Read::packet(&sent.packet).to() == endpoint);
            let sent = sent.expect("the endpoint has been found by it");
            Side {
                twin,
                client: opened.client,
                front,
                client_wire: opening.wire,
                endpoint,
                endpoint_wire: sent.wire,
                seen_as: Read::packet(&sent.packet).from(),
                arrived: [None, Some(sent.packet.clone())],
            }
        };
        let mut sides = [
            side(&twins.kube_proxy, &ours),
            side(&twins.node_lb, &theirs),
        ];
        for (name, step) in steps(opening.kind, self.rng, endpoint.is_ipv4()) {
            self.tally.packets += 1;
            let [ours, theirs] = sides.each_mut().map(|side| {
                let sent = side.take(&step)?;
                anyhow::Ok(self.outcome(opening, side.client, sent))
            });
            let message = match step {
                Step::Send(_, message) => Some(message),
                Step::Error { .. } => None,
            };
            let differs = self.difference(opening, message, &name, &ours?, &theirs?);
            if differs.is_some() {
                return Ok(differs);
            }
        }
        Ok(None)
    }

    fn difference(
        &self,
        opening: &Opening,
        message: Option<Message>,
        step: &str,
        ours: &Outcome,
        theirs: &Outcome,
    ) -> Option<Difference> {
        (ours.seen != theirs.seen).then(|| Difference {
            opening: opening.clone(),
            step: step.to_owned(),
            message,
            objects: self.scene.objects.get(&opening.to.service).cloned(),
            kube_proxy: ours.seen.clone(),
            node_lb: theirs.seen.clone(),
        })
    }

    fn outcome(&self, opening: &Opening, client: SocketAddr, sent: Vec<Sent>) -> Outcome {
        let front = opening.to.address;
        let names = Names {
            client,
            fixed: &|end| {
                let is_pods = self.scene.endpoints.contains(&end) && !ground::is_nodes(end.ip());
                end == front || is_pods
            },
        };
        let seen = describe(&sent, &names);
        Outcome { client, sent, seen }
    }

    /// The endpoint that a client's first packet has been sent to.
    fn endpoint_of(&self, opened: &Outcome, opening: &Opening) -> Option<SocketAddr> {
        let mut packets = opened.sent.iter().map(|sent| Read::packet(&sent.packet));
        packets.find_map(|packet| {
            let is_it =
                packet.protocol == opening.to.protocol && packet.bytes.len() > packet.transport + 4;
            (is_it && self.scene.endpoints.contains(&packet.to())).then(|| packet.to())
        })
    }

    /// Sends the first packet from a new port.
    fn open(&mut self, twin: &Twin, opening: &Opening) -> Result<Outcome> {
        self.port = match PORTS.contains(&(self.port + 1)) {
            true => self.port + 1,
            false => PORTS.start,
        };
        let client = SocketAddr::new(opening.source(self.rng), self.port);
        self.tally.packets += 1;
        let packets = opening.message.packets(client, opening.to.address);
        let sent = twin.wires.exchange(opening.wire, &packets)?;
        Ok(self.outcome(opening, client, sent))
    }
}

/// What a twin has made of a packet.
struct Outcome {
    client: SocketAddr,
    sent: Vec<Sent>,
    /// The same in the terms that both twins have in common.
    seen: Vec<Fields>,
}

impl Side<'_> {
    /// Does a step, and returns what comes of it.
    fn take(&mut self, step: &Step) -> Result<Vec<Sent>> {
        let (wire, packets) = match step {
            Step::Send(End::Client, message) => {
                (self.client_wire, message.packets(self.client, self.front))
            }
            Step::Send(End::Endpoint, message) => (
                self.endpoint_wire,
                message.packets(self.endpoint, self.seen_as),
            ),
            Step::Error {
                at,
                by_router,
                kind,
                word,
                quote,
            } => {
                let (wire, itself) = match at {
                    End::Client => (self.client_wire, self.client.ip()),
                    End::Endpoint => (self.endpoint_wire, self.endpoint.ip()),
                };
                let Some(about) = &self.arrived[*at as usize] else {
                    return Ok(Vec::new());
                };
                let about = Read::packet(about);
                let by = match *by_router && wire == Wire::Out {
                    true => NEIGHBOUR.of(Family::of(itself)),
                    false => itself,
                };
                let quoted = about.bytes.len().min(about.transport + quote);
                let number = icmp_number(by);
                let message = icmp(by, about.source, *kind, *word, &about.bytes[..quoted]);
                let header = Header {
                    ttl: RELAYED,
                    ..Header::new(by, about.source)
                };
                (wire, vec![header.packet(number, &message)])
            }
        };
        let sent = self.twin.wires.exchange(wire, &packets)?;
        for one in &sent {
            let packet = Read::packet(&one.packet);
            if !matches!(packet.protocol, TCP | UDP | SCTP) || packet.fragment.is_some() {
                continue;
            }
            if packet.to() == self.client {
                self.arrived[0] = Some(one.packet.clone());
            } else if packet.to() == self.endpoint {
                self.arrived[1] = Some(one.packet.clone());
            }
        }
        Ok(sent)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.conversations += other.conversations;
        self.packets += other.packets;
        self.served += other.served;
        self.apart += other.apart;
    }
}
