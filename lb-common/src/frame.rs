//! A packet at a hook, and what hooks do differently.

use crate::{
    addr::Address,
    checksum::Difference,
    crc32c,
    flow::{Ethernet, queue::KEPT},
    packet::Packet,
    parse::{ETHERNET, Network},
};

/// A packet with the header of its link that can be changed in place.
pub trait Frame {
    /// Length of the link's header in bytes: that of Ethernet, or 0 on devices that have none
    /// (WireGuard, IPIP, tun).
    const LINK_HEADER: usize = ETHERNET;
    /// Whether checksums may be left for a device to complete without the hook being able to tell.
    const MAY_BE_PARTIAL: bool;

    /// The bytes that can be accessed directly. Ask again after each change below.
    fn packet(&self) -> Packet;
    /// Index of the device that the frame came by, or leaves by at egress.
    fn ifindex(&self) -> u32;
    /// Whether the kernel takes the frame for this host's by its link-layer address. `None` if the
    /// hook does not know.
    fn is_for_host(&self) -> Option<bool>;
    /// Whether the packet may be refused or dropped where it leaves: not what a bridge passes on,
    /// nor what the agent sends to the API server.
    #[inline(always)]
    fn may_be_kept_back(&self) -> bool {
        true
    }
    /// Length of the largest IP packet that this one becomes on the wire, in bytes: less than the
    /// packet's own only where a device segments later.
    fn wire_length(&self, network: &Network) -> u32;
    /// Updates the TCP, UDP or ICMP checksum at an offset. `pseudo` is the change of the pseudo
    /// header, `covered` that of other bytes; `udp` says that zero means no checksum.
    fn change_checksum<A: Address>(
        &mut self,
        offset: usize,
        pseudo: Difference,
        covered: Difference,
        udp: bool,
    ) -> Option<()>;
    /// Says how the sum of the packet's bytes changes where no checksum in it makes up for that. The
    /// kernel may hold this sum, as a device or a tunnel computed it (CHECKSUM_COMPLETE).
    #[inline(always)]
    fn change_sum(&mut self, _change: Difference) {}
    /// [`crc32c::changed`], which in the kernel is a function that the verifier looks at by itself, and
    /// only once.
    #[inline(always)]
    fn changed_crc(checksum: u32, old: u32, new: u32, length: u32) -> u32 {
        crc32c::changed(checksum, old, new, length)
    }
    /// [`crc32c::of`] these words, likewise.
    #[inline(always)]
    fn crc_of(words: [u32; 4]) -> u32 {
        crc32c::of(words)
    }
    /// Adds `front` bytes in front of the frame and cuts or extends it to `length` bytes in all.
    fn reshape(&mut self, front: usize, length: usize) -> Option<()>;
    /// Adds room for an Ethernet header. Only for frames without a link header.
    #[inline(always)]
    fn add_ethernet(&mut self) -> Option<()> {
        None
    }

    /// Gives the packet a token, which it and its fragments keep while they cross the host's stack. Only
    /// where [`Tables::ANY_DEVICE`](crate::tables::Tables::ANY_DEVICE) is set.
    #[inline(always)]
    fn give_token(&mut self, _token: u16) {}
    /// Takes the token that a packet brings from the host's stack.
    #[inline(always)]
    fn take_token(&mut self) -> Option<u16> {
        None
    }

    /// Copies the first bytes of the packet. Returns the packet's length with its link header, or `None`
    /// if its bytes cannot be read.
    fn copy_to(&self, bytes: &mut [u8; KEPT]) -> Option<u32>;

    /// Gives the frame the Ethernet header that it leaves with. `ethertype` is in host order. For
    /// devices that take packets without a header, the kernel removes it.
    #[inline(always)]
    fn set_ethernet(&mut self, addresses: Ethernet, ethertype: u16) -> Option<()> {
        if Self::LINK_HEADER == 0 {
            self.add_ethernet()?;
            self.packet().store(12, ethertype.to_be())?;
        }
        self.packet().store(0, addresses)
    }
}

/// Updates a complete checksum in place: [`Frame::change_checksum`] for hooks that see bytes only.
#[inline(always)]
pub fn change_checksum_in_place(
    packet: Packet,
    offset: usize,
    change: Difference,
    udp: bool,
) -> Option<()> {
    let checksum = packet.load::<u16>(offset)?;
    if udp && checksum == 0 {
        return Some(());
    }
    let changed = change.apply(checksum);
    // RFC 768: a computed zero is sent as all ones.
    packet.store(offset, if udp && changed == 0 { 0xffff } else { changed })
}
