//! One conversation, held with both twins at once: whatever comes out of one must come out of the
//! other.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::SocketAddr,
    ops::AddAssign,
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
    message::{Body, Kind, Message},
    opening::{Opening, TRIES},
    scene::Scene,
    script::{End, Step, steps},
    seen::{Fields, Names, RELAYED, describe, is_too_big},
    wires::{Sent, Wire},
};

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
        let port = rng.u16(10_000..40_000);
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
        // Something may have been under way, or there were too many answers in this second. What is a
        // rule repeats itself.
        thread::sleep(Duration::from_millis(1100));
        self.compare(&opening)
    }

    fn compare(&mut self, opening: &Opening) -> Result<Option<Difference>> {
        let twins = self.twins;
        let ours = self.open(&twins.kube_proxy, opening)?;
        let wanted = self.describe(opening, &ours);
        self.note(opening, &wanted);
        let mut elsewhere: Vec<(Opened, Vec<Fields>)> = Vec::new();
        for _ in 0..opening.tries() {
            let theirs = self.open(&twins.node_lb, opening)?;
            let found = self.describe(opening, &theirs);
            if found == wanted {
                let wrong = self.never_seen(opening, &elsewhere)?;
                return match wrong {
                    Some(difference) => Ok(Some(difference)),
                    None => self.go_on(opening, ours, theirs),
                };
            }
            if !elsewhere.iter().any(|(_, known)| *known == found) {
                elsewhere.push((theirs, found));
            }
        }
        let served = |opened: &Opened, seen: &[Fields]| {
            self.endpoint_of(opened, opening).is_some() || seen.iter().all(is_too_big)
        };
        let mut others = elsewhere.iter();
        let all_served =
            served(&ours, &wanted) && others.all(|(theirs, seen)| served(theirs, seen));
        if opening.to.is_sticky && (all_served || opening.to.may_be_node) {
            self.tally.apart += 1;
            return Ok(None);
        }
        let (theirs, _) = elsewhere.first().expect("there has been a try");
        Ok(self.difference(opening, None, "opening", &ours, theirs))
    }

    /// Sees whether kube-proxy does all that node-lb has done as well.
    fn never_seen(
        &mut self,
        opening: &Opening,
        found: &[(Opened, Vec<Fields>)],
    ) -> Result<Option<Difference>> {
        for (theirs, outcome) in found {
            let mut tries = 0;
            while !opening.to.is_sticky && !self.is_known(opening, outcome) {
                let ours = self.open(&self.twins.kube_proxy, opening)?;
                let wanted = self.describe(opening, &ours);
                self.note(opening, &wanted);
                tries += 1;
                if tries == TRIES {
                    return Ok(self.difference(opening, None, "opening", &ours, theirs));
                }
            }
        }
        Ok(None)
    }

    fn note(&mut self, opening: &Opening, outcome: &[Fields]) {
        let known = self.known.entry(opening.key()).or_default();
        known.insert(outcome.to_vec());
    }

    fn is_known(&self, opening: &Opening, outcome: &[Fields]) -> bool {
        let known = self.known.get(&opening.key());
        known.is_some_and(|known| known.contains(outcome))
    }

    /// Goes on where both twins have sent the client to the same endpoint.
    fn go_on(
        &mut self,
        opening: &Opening,
        ours: Opened,
        theirs: Opened,
    ) -> Result<Option<Difference>> {
        let (twins, front) = (self.twins, opening.to.address);
        // What follows fits the usual beginnings.
        let is_usual = opening.message.shape.fragments.is_none()
            && !matches!(opening.message.body, Body::Tcp { flags, .. } if flags != tcp_flag::SYN);
        let Some(endpoint) = self.endpoint_of(&ours, opening).filter(|_| is_usual) else {
            return Ok(None);
        };
        self.tally.served += 1;
        let side = |twin, opened: &Opened| {
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
            let mut found = Vec::new();
            for side in &mut sides {
                found.push(side.take(&step)?);
            }
            let [ours, theirs] = [0, 1].map(|index| Opened {
                client: sides[index].client,
                sent: mem::take(&mut found[index]),
            });
            let message = match step {
                Step::Send(_, message) => Some(message),
                Step::Error { .. } => None,
            };
            let differs = self.difference(opening, message, &name, &ours, &theirs);
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
        ours: &Opened,
        theirs: &Opened,
    ) -> Option<Difference> {
        let [kube_proxy, node_lb] = [ours, theirs].map(|opened| self.describe(opening, opened));
        (kube_proxy != node_lb).then(|| Difference {
            opening: opening.clone(),
            step: step.to_owned(),
            message,
            objects: self.scene.objects.get(&opening.to.service).cloned(),
            kube_proxy,
            node_lb,
        })
    }

    /// What has come out, in the terms that both twins have in common.
    fn describe(&self, opening: &Opening, opened: &Opened) -> Vec<Fields> {
        let front = opening.to.address;
        let names = Names {
            client: opened.client,
            fixed: &|end| {
                let is_pods = self.scene.endpoints.contains(&end) && !ground::is_nodes(end.ip());
                end == front || is_pods
            },
        };
        describe(&opened.sent, &names)
    }

    /// The endpoint that a client's first packet has been sent to.
    fn endpoint_of(&self, opened: &Opened, opening: &Opening) -> Option<SocketAddr> {
        if !matches!(opening.kind, Kind::Tcp | Kind::Udp | Kind::Sctp) {
            return None;
        }
        let mut packets = opened.sent.iter().map(|sent| Read::packet(&sent.packet));
        packets.find_map(|packet| {
            let is_it =
                packet.protocol == opening.to.protocol && packet.bytes.len() > packet.transport + 4;
            (is_it && self.scene.endpoints.contains(&packet.to())).then(|| packet.to())
        })
    }

    /// Sends the first packet from a new port.
    fn open(&mut self, twin: &Twin, opening: &Opening) -> Result<Opened> {
        self.port = if self.port >= 60_000 {
            10_000
        } else {
            self.port + 1
        };
        let client = SocketAddr::new(opening.source(self.rng), self.port);
        self.tally.packets += 1;
        let packets = opening.message.packets(client, opening.to.address);
        let sent = twin.wires.exchange(opening.wire, &packets)?;
        Ok(Opened { client, sent })
    }
}

/// What a twin has made of a client's packet.
struct Opened {
    client: SocketAddr,
    sent: Vec<Sent>,
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
            if !matches!(packet.protocol, TCP | UDP | SCTP) || packet.fragmented {
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
