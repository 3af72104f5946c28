//! Rewriting packets: addresses, ports, checksums, time to live; and ICMP errors about such
//! packets.

use crate::{
    addr::{Address, Family},
    checksum::Difference,
    flow::{Flow, flow_flag},
    frame::{Frame, change_checksum_in_place},
    packet::Packet,
    parse::{Fragment, Network, SCTP, Tuple, UDP, checksum_offset},
};

/// Gives a packet of a flow the flow's new addresses and ports. `whole` is false for later
/// fragments, which have neither ports nor checksum.
#[inline(always)]
pub fn translate<A: Address, F: Frame>(
    frame: &mut F,
    network: &Network,
    flow: &Flow<A>,
    whole: bool,
) -> Option<()> {
    let to = &flow.rewrite;
    let to = Ends {
        source: &to.source,
        destination: &to.destination,
        ports: (to.source_port, to.destination_port),
    };
    replace(frame, network, Ends::of(flow), to, whole)
}

/// The half of [`translate`] that gives a packet its new destination.
#[inline(always)]
pub fn translate_destination<A: Address, F: Frame>(
    frame: &mut F,
    network: &Network,
    flow: &Flow<A>,
    whole: bool,
) -> Option<()> {
    let from = Ends::of(flow);
    let to = Ends {
        destination: &flow.rewrite.destination,
        ports: (flow.source_port, flow.rewrite.destination_port),
        ..from
    };
    replace(frame, network, from, to, whole)
}

/// The other half of [`translate`]: gives a packet its new source, whatever source it has. `own` is
/// what the packet says.
#[inline(always)]
pub fn translate_source<A: Address, F: Frame>(
    frame: &mut F,
    network: &Network,
    own: &Tuple<A>,
    flow: &Flow<A>,
    whole: bool,
) -> Option<()> {
    let from = Ends {
        source: &own.source,
        destination: &own.destination,
        ports: (own.source_port, own.destination_port),
    };
    let to = Ends {
        source: &flow.rewrite.source,
        ports: (flow.rewrite.source_port, own.destination_port),
        ..from
    };
    replace(frame, network, from, to, whole)
}

/// Addresses and ports of a packet.
#[derive(Clone, Copy)]
struct Ends<'a, A> {
    source: &'a A,
    destination: &'a A,
    ports: (u16, u16),
}

impl<'a, A> Ends<'a, A> {
    /// Of the packets of a flow, as they arrive.
    #[inline(always)]
    fn of(flow: &'a Flow<A>) -> Self {
        Self {
            source: &flow.source,
            destination: &flow.destination,
            ports: (flow.source_port, flow.destination_port),
        }
    }
}

#[inline(always)]
fn replace<A: Address, F: Frame>(
    frame: &mut F,
    network: &Network,
    from: Ends<'_, A>,
    to: Ends<'_, A>,
    whole: bool,
) -> Option<()> {
    let addresses = addresses(from.source, from.destination, to.source, to.destination);
    let is_sctp = network.protocol == SCTP;
    if whole && !is_sctp {
        frame.change_checksum::<A>(
            network.payload + checksum_offset(network.protocol),
            addresses,
            ports(from.ports, to.ports),
            network.protocol == UDP,
        )?;
        store_ports(frame.packet(), network.payload, to.ports.0, to.ports.1)?;
    } else if A::FAMILY == Family::V6 {
        frame.change_sum(addresses);
    }
    if whole && is_sctp {
        let (source, destination) = to.ports;
        let ports = u32::from(source) << 16 | u32::from(destination);
        change_ports(frame, network, ports)?;
    }
    store_addresses(
        frame.packet(),
        network.offset,
        addresses,
        to.source,
        to.destination,
    )
}

/// Gives an SCTP packet other ports, `(source << 16 | destination)`, and its checksum for them.
///
/// A checksum of zero stays: a device is to compute it. A packet that is only the first fragment of one
/// cannot get other ports, because its checksum depends on the length of the whole.
#[inline(never)]
fn change_ports<F: Frame>(frame: &mut F, network: &Network, ports: u32) -> Option<()> {
    let at = network.payload;
    let packet = frame.packet();
    let ports = ports.to_be();
    let old = packet.load::<u32>(at)?;
    if old == ports {
        return Some(());
    }
    if network.fragment != Fragment::Whole {
        return None;
    }
    let at_checksum = at + checksum_offset(SCTP);
    let checksum = packet.load::<u32>(at_checksum)?;
    packet.store(at, ports)?;
    let mut change = Difference::between(old.into(), ports.into(), 1);
    if checksum != 0 {
        let length = network.length.wrapping_sub((at - network.offset) as u32);
        let new = F::changed_crc(checksum, old, ports, length);
        packet.store(at_checksum, new)?;
        change = change.and(Difference::between(checksum.into(), new.into(), 1));
    }
    frame.change_sum(change);
    Some(())
}

/// Translates an ICMP error about a packet of the flow's opposite direction: the quoted packet
/// becomes what the receiver of the error sent, the error goes where the flow's packets go.
///
/// `own` has the error's own source and destination, `quoted` is the offset of the quoted packet's
/// ports. The quoted packet's own checksum is kept valid where it was quoted at all, but for SCTP, where
/// it covers more than is quoted and nobody looks at it.
#[inline(never)]
pub fn translate_error<A: Address, F: Frame>(
    frame: &mut F,
    network: &Network,
    own: &Tuple<A>,
    quoted: usize,
    flow: &Flow<A>,
) -> Option<()> {
    let to = &flow.rewrite;
    let source = if own.source == flow.source {
        &to.source
    } else {
        &own.source
    };
    let outer = addresses(&own.source, &own.destination, source, &to.destination);
    let inner = addresses(&flow.destination, &flow.source, &to.destination, &to.source);
    let from = (flow.destination_port, flow.source_port);
    let ports = ports(from, (to.destination_port, to.source_port));

    let packet = frame.packet();
    let checksum = change_quoted_checksum(packet, quoted, flow.protocol(), inner.and(ports));
    store_ports(packet, quoted, to.destination_port, to.source_port)?;
    store_addresses(
        packet,
        network.payload + 8,
        inner,
        &to.destination,
        &to.source,
    )?;
    // IPv4: the quoted header's own checksum makes up for its addresses, and ICMP has no pseudo
    // header.
    let (pseudo, covered) = match A::FAMILY {
        Family::V4 => (Difference::default(), ports.and(checksum)),
        Family::V6 => (outer, ports.and(inner).and(checksum)),
    };
    frame.change_checksum::<A>(network.payload + 2, pseudo, covered, false)?;
    store_addresses(
        frame.packet(),
        network.offset,
        outer,
        source,
        &to.destination,
    )
}

/// Updates the checksum of a quoted packet with ports at an offset. Returns the change of the
/// checksum's own bytes; none if it was not quoted.
#[inline(always)]
fn change_quoted_checksum(
    packet: Packet,
    ports: usize,
    protocol: u8,
    change: Difference,
) -> Difference {
    let offset = ports + checksum_offset(protocol);
    let Some(old) = packet.load::<u16>(offset).filter(|_| protocol != SCTP) else {
        return Difference::default();
    };
    let changed = change_checksum_in_place(packet, offset, change, protocol == UDP);
    match changed.and_then(|()| packet.load::<u16>(offset)) {
        Some(new) => Difference::field(old, new),
        None => Difference::default(),
    }
}

/// Takes one off the time to live, which must be at least two.
#[inline(always)]
pub fn decrement_ttl<A: Address, F: Frame>(frame: &mut F, network: &Network) -> Option<()> {
    let packet = frame.packet();
    let ttl = network.ttl.wrapping_sub(1);
    match A::FAMILY {
        Family::V4 => {
            packet.store(network.offset + 8, ttl)?;
            let [old, new] =
                [network.ttl, ttl].map(|ttl| u16::from_ne_bytes([ttl, network.protocol]));
            let checksum = packet.load::<u16>(network.offset + 10)?;
            packet.store(
                network.offset + 10,
                Difference::field(old, new).apply(checksum),
            )
        }
        Family::V6 => {
            packet.store(network.offset + 7, ttl)?;
            let [old, new] = [network.ttl, ttl].map(|ttl| u16::from_ne_bytes([0, ttl]));
            frame.change_sum(Difference::field(old, new));
            Some(())
        }
    }
}

/// Whether the checksum is as a local sender leaves it for a device to complete: the pseudo header's sum
/// only, or zero for SCTP. One complete checksum in 65,536 looks the same.
#[inline(always)]
pub fn looks_partial<A: Address, F: Frame>(frame: &F, network: &Network, tuple: &Tuple<A>) -> bool {
    if network.protocol == SCTP {
        let checksum = frame.packet().load(network.payload + checksum_offset(SCTP));
        return checksum == Some(0_u32);
    }
    is_pseudo_sum(frame, network, tuple)
}

#[inline(never)]
fn is_pseudo_sum<A: Address, F: Frame>(frame: &F, network: &Network, tuple: &Tuple<A>) -> bool {
    let payload = network
        .length
        .wrapping_sub((network.payload - network.offset) as u32);
    let sum = tuple.source.sum()
        + tuple.destination.sum()
        + u64::from(u16::from(network.protocol).to_be())
        + u64::from((payload as u16).to_be());
    let offset = network.payload + checksum_offset(network.protocol);
    frame.packet().load::<u16>(offset) == Some(crate::checksum::fold(sum))
}

/// The flag of a flow for a packet's protocol.
#[inline(always)]
pub fn protocol_flag(protocol: u8) -> u32 {
    match protocol {
        UDP => flow_flag::UDP,
        SCTP => flow_flag::SCTP,
        _ => 0,
    }
}

#[inline(always)]
fn addresses<A: Address>(source: &A, destination: &A, to_source: &A, to: &A) -> Difference {
    let words = match A::FAMILY {
        Family::V4 => 2,
        Family::V6 => 8,
    };
    Difference::between(
        source.sum() + destination.sum(),
        to_source.sum() + to.sum(),
        words,
    )
}

/// The change of a source and a destination port.
#[inline(always)]
fn ports(from: (u16, u16), to: (u16, u16)) -> Difference {
    Difference::field(from.0.to_be(), to.0.to_be())
        .and(Difference::field(from.1.to_be(), to.1.to_be()))
}

#[inline(always)]
fn store_ports(packet: Packet, offset: usize, source: u16, destination: u16) -> Option<()> {
    packet.store(
        offset,
        (u32::from(source) << 16 | u32::from(destination)).to_be(),
    )
}

#[inline(always)]
fn store_addresses<A: Address>(
    packet: Packet,
    offset: usize,
    change: Difference,
    source: &A,
    destination: &A,
) -> Option<()> {
    packet.store(offset + A::OFFSETS.0, *source)?;
    packet.store(offset + A::OFFSETS.1, *destination)?;
    if A::FAMILY == Family::V4 {
        let checksum = packet.load::<u16>(offset + 10)?;
        packet.store(offset + 10, change.apply(checksum))?;
    }
    Some(())
}
