//! How conversations begin.

use std::net::IpAddr;

use fastrand::Rng;
use lb_packet::{SCTP, TCP, UDP, tcp_flag};
use lb_tests::Family;

use super::{
    ground::{self, LOCAL_PODS, NEIGHBOUR, remote_pod},
    message::{Body, Kind, Message, NUMBERS, Shape},
    scene::{Scene, Target, choose},
    wires::Wire,
};

/// Openings until a proxy has chosen each of a few endpoints.
pub const TRIES: u16 = 60;

/// How a conversation begins.
#[derive(Clone, Debug)]
pub struct Opening {
    pub wire: Wire,
    pub from: IpAddr,
    /// The number of a client outside.
    pub client: Option<u8>,
    pub to: Target,
    pub kind: Kind,
    pub message: Message,
}

impl Opening {
    /// One to an address of a scene, or near one.
    pub fn random(scene: &Scene, rng: &mut Rng) -> Self {
        let mut to = choose(rng, &scene.targets).clone();
        let mut kind = Kind::of(to.protocol);
        match rng.u8(0..24) {
            // A port that it does not have, and a protocol.
            0 => to.address.set_port(rng.u16(9000..9003)),
            1 => to.protocol = *choose(rng, &[TCP, UDP, SCTP]),
            // An address without a Service.
            2 if !ground::is_nodes(to.address.ip()) => {
                to.address.set_ip(ip_after(to.address.ip(), 7));
            }
            3 => kind = Kind::Echo,
            4 => kind = Kind::Other,
            _ => {}
        }
        if !matches!(kind, Kind::Echo | Kind::Other) {
            kind = Kind::of(to.protocol);
        }
        let family = Family::of(to.address.ip());
        let client = rng.u8(1..=250);
        let who = rng.u8(0..10);
        let (wire, from) = match who {
            0..4 => (Wire::Out, ground::client(client)),
            4..5 => (Wire::Out, remote_pod(rng.u8(20..30))),
            5..6 => (Wire::Out, NEIGHBOUR),
            _ => *choose(rng, &LOCAL_PODS),
        };
        let mut message = Message::first(kind);
        message.shape = Shape::random(rng);
        match &mut message.body {
            Body::Udp { data, has_checksum } => {
                data.resize(
                    *choose(rng, &[1, 8, 8, 100, 1200, 1330, 1372, 1400, 1472]),
                    b'u',
                );
                if family == Family::V4 && rng.u8(..) < 20 {
                    *has_checksum = false;
                }
                if rng.u8(..) < 20 {
                    data.resize(rng.usize(100..3000), b'f');
                    message.shape.fragments = Some(*choose(rng, &[64, 512, 1024]));
                }
            }
            Body::Tcp {
                flags,
                acknowledged,
                data,
                ..
            } if rng.u8(..) < 25 => {
                use tcp_flag::{ACK, FIN, RST, SYN};
                *flags = *choose(
                    rng,
                    &[ACK, RST, RST | ACK, FIN | ACK, SYN | ACK, SYN | FIN, 0],
                );
                *acknowledged = NUMBERS[1];
                data.resize(rng.usize(0..20), b't');
            }
            _ => {}
        }
        Self {
            wire,
            from: from.of(family),
            client: (who < 4).then_some(client),
            to,
            kind,
            message,
        }
    }

    /// Where a packet comes from: if the Service sticks to endpoints, from another client outside, that
    /// source ranges treat alike.
    pub fn source(&self, rng: &mut Rng) -> IpAddr {
        match self.client.filter(|_| self.to.is_sticky) {
            None => self.from,
            Some(number) => {
                let others = if number < 128 { 1..128 } else { 128..251 };
                ground::client(rng.u8(others)).of(Family::of(self.from))
            }
        }
    }

    /// How often node-lb is asked until it must have done what kube-proxy did.
    pub fn tries(&self) -> u16 {
        if self.to.endpoints < 2 { 2 } else { TRIES }
    }

    /// The same for all that are alike.
    pub fn key(&self) -> String {
        format!("{self:?}")
    }
}

fn ip_after(address: IpAddr, step: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mut octets = address.octets();
            octets[3] = octets[3].wrapping_add(step);
            octets.into()
        }
        IpAddr::V6(address) => {
            let mut octets = address.octets();
            octets[15] = octets[15].wrapping_add(step);
            octets.into()
        }
    }
}
