//! Packets as they are sent: whole, or in fragments.

use std::net::IpAddr;

use lb_packet::Packet;

use super::model::Address;

/// A packet, or a fragment of one.
#[derive(Clone, Debug)]
pub struct Sent {
    whole: Packet,
    part: Option<Part>,
}

/// Which fragment of a packet.
#[derive(Clone, Copy, Debug)]
struct Part {
    id: u32,
    /// Bytes of each fragment but the last.
    size: usize,
    index: usize,
}

/// What a packet's fragments share: addresses, identification and protocol.
pub type FragmentsOf = (IpAddr, IpAddr, u32, u8);

impl Sent {
    /// A packet in one piece.
    pub fn whole(packet: Packet) -> Self {
        Self {
            whole: packet,
            part: None,
        }
    }

    /// A packet's fragments of `size` bytes. If there would be only one, the packet itself.
    pub fn fragments(packet: &Packet, id: u32, size: usize) -> Vec<Self> {
        let count = packet.clone().fragments(id, size).len();
        if count < 2 {
            return vec![Self::whole(packet.clone())];
        }
        let part = |index| Self {
            whole: packet.clone(),
            part: Some(Part { id, size, index }),
        };
        (0..count).map(part).collect()
    }

    /// The packet that is sent.
    pub fn packet(&self) -> Packet {
        self.part_of(&self.whole)
    }

    /// The same with this source and destination.
    pub fn translated(&self, (source, destination): (Address, Address)) -> Packet {
        let whole = self.whole.clone().source(source);
        self.part_of(&whole.destination(destination))
    }

    /// The key of later fragments, if this is the first one.
    pub fn begins(&self) -> Option<FragmentsOf> {
        let part = self.part.filter(|part| part.index == 0)?;
        Some(self.of(part))
    }

    /// The key of this packet's fragments, if this is a later one.
    pub fn continues(&self) -> Option<FragmentsOf> {
        let part = self.part.filter(|part| part.index != 0)?;
        Some(self.of(part))
    }

    fn of(&self, part: Part) -> FragmentsOf {
        let whole = &self.whole;
        let (source, destination) = (whole.source_address(), whole.destination_address());
        (source, destination, part.id, whole.protocol())
    }

    fn part_of(&self, whole: &Packet) -> Packet {
        match self.part {
            None => whole.clone(),
            Some(part) => {
                let mut parts = whole.clone().fragments(part.id, part.size);
                parts.swap_remove(part.index)
            }
        }
    }
}
