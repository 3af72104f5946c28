//! A frame in a buffer of its own.

use std::cell::UnsafeCell;

use lb_common::{
    addr::{Address, Family},
    checksum::Difference,
    flow::queue::KEPT,
    frame::{Frame, change_checksum_in_place},
    packet::Packet,
    parse::{ETHERNET, Network},
};

/// A frame for the pipeline to read and rewrite. All its bytes can be accessed directly.
///
/// With `MAY_BE_PARTIAL` checksums may be incomplete, for a device to complete them, as on virtual
/// devices. With `L3` it begins with the IP header, until it leaves by a device that has another.
pub struct MemoryFrame<const MAY_BE_PARTIAL: bool = false, const L3: bool = false> {
    bytes: UnsafeCell<Vec<u8>>,
    ifindex: u32,
    sum: Difference,
    token: Option<u16>,
}

impl<const MAY_BE_PARTIAL: bool, const L3: bool> MemoryFrame<MAY_BE_PARTIAL, L3> {
    /// A frame that arrived on this device.
    pub fn new(bytes: Vec<u8>, ifindex: u32) -> Self {
        Self {
            bytes: bytes.into(),
            ifindex,
            sum: Difference::default(),
            token: None,
        }
    }

    /// The same frame with the token that it brings from the host's stack.
    #[must_use]
    pub fn with_token(self, token: Option<u16>) -> Self {
        Self { token, ..self }
    }

    /// The token that it has ([`Frame::give_token`]).
    pub fn token(&self) -> Option<u16> {
        self.token
    }

    /// By how much the sum of the packet's bytes has changed since it arrived, as a kernel that holds
    /// this sum would count ([`Frame::change_sum`]).
    pub fn sum_change(&self) -> Difference {
        self.sum
    }

    /// The frame as it is now.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes.into_inner()
    }
}

impl<const MAY_BE_PARTIAL: bool, const L3: bool> Frame for MemoryFrame<MAY_BE_PARTIAL, L3> {
    const LINK_HEADER: usize = if L3 { 0 } else { ETHERNET };
    const MAY_BE_PARTIAL: bool = MAY_BE_PARTIAL;

    fn packet(&self) -> Packet {
        // SAFETY: the cell makes the bytes writable, the frame is no thread's but this one's, and
        // whoever holds a view asks for a new one after `reshape`, the only other access.
        unsafe {
            let bytes = (*self.bytes.get()).as_mut_ptr_range();
            Packet::new(bytes.start as usize, bytes.end as usize)
        }
    }

    fn ifindex(&self) -> u32 {
        self.ifindex
    }

    fn is_for_host(&self) -> Option<bool> {
        None
    }

    fn wire_length(&self, network: &Network) -> u32 {
        network.length
    }

    fn change_checksum<A: Address>(
        &mut self,
        offset: usize,
        pseudo: Difference,
        covered: Difference,
        udp: bool,
    ) -> Option<()> {
        if A::FAMILY == Family::V4 {
            // What the checksum of the IP header makes up for is no change of the addresses.
            self.change_sum(Difference::between(pseudo.to_u32().into(), 0, 1));
        }
        change_checksum_in_place(self.packet(), offset, pseudo.and(covered), udp)
    }

    fn change_sum(&mut self, change: Difference) {
        self.sum = self.sum.and(change);
    }

    fn give_token(&mut self, token: u16) {
        self.token = Some(token);
    }

    fn take_token(&mut self) -> Option<u16> {
        self.token.take()
    }

    fn reshape(&mut self, front: usize, length: usize) -> Option<()> {
        let bytes = self.bytes.get_mut();
        bytes.splice(..0, std::iter::repeat_n(0, front));
        bytes.resize(length, 0);
        Some(())
    }

    fn copy_to(&self, bytes: &mut [u8; KEPT]) -> Option<u32> {
        // SAFETY: as in `packet`; nothing is changed meanwhile.
        let packet = unsafe { &*self.bytes.get() };
        let kept = packet.len().min(KEPT);
        bytes[..kept].copy_from_slice(&packet[..kept]);
        u32::try_from(packet.len()).ok()
    }

    fn add_ethernet(&mut self) -> Option<()> {
        self.bytes.get_mut().splice(..0, [0; ETHERNET]);
        Some(())
    }
}
