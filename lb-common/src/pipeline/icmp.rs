//! ICMP errors about packets of flows.

use core::num::NonZeroUsize;

use super::{
    is_translated, note,
    send::{Way, go, route},
    track::track_unreachable,
};
use crate::{
    addr::Address,
    flow::{flow_flag, table},
    frame::Frame,
    parse::{self, Fragment, Network, SCTP, Tuple},
    rewrite,
    tables::Tables,
    trace::Known,
    verdict::{Reason, Verdict},
    work::Work,
};

/// Handles an ICMP error about a packet of a flow. Other ICMP is not handled.
#[inline(never)]
pub(super) fn icmp_error<A: Address, T: Tables<A>, F: Frame, const INGRESS: bool>(
    tables: &T,
    frame: &mut F,
    network: &Network,
    work: &mut Work<A>,
) -> Verdict {
    let packet = frame.packet();
    match packet.load::<u8>(network.payload) {
        Some(icmp_type) if parse::is_icmp_error::<A>(icmp_type) => {}
        _ => return Verdict::pass(Reason::OtherProtocol),
    }
    let Some(quoted) = quoted(tables, frame, network.payload + 8, work) else {
        return Verdict::pass(Reason::OtherProtocol);
    };
    let Some(record) = table::find_rarely(tables, &work.other) else {
        return Verdict::pass(Reason::NotService);
    };
    note::flow(tables, work, record, Known::Found);
    if parse::is_unreachable::<A>(packet, network.payload) {
        // The number of a SYN, or the tag that an INIT asks for.
        let number = match work.other.protocol {
            SCTP => packet.load::<u32>(quoted.get() + 16).map(u32::from_be),
            _ => packet
                .load::<u32>(quoted.get() + 4)
                .map(|sequence| u32::from_be(sequence).wrapping_add(1)),
        };
        if let Some(next) = number {
            track_unreachable(tables, record, next);
        }
    }
    // SAFETY: live records stay valid until every program that can see them ends.
    let flow = unsafe { record.as_ref() };
    let way = match INGRESS {
        true => route(tables, frame, network, work, record),
        false if flow.has(flow_flag::WITHHELD) => Way::Withheld,
        false if flow.has(flow_flag::REPLY) => Way::Stack,
        false => return Verdict::pass(Reason::NotService),
    };
    if let Some(stop) = way.stop() {
        return stop;
    }
    // No ICMP error about an ICMP error (RFC 1122, 3.2.2).
    if matches!(
        way,
        Way::TimeExceeded | Way::TooBig | Way::Halfway | Way::Gone | Way::NoSeat | Way::Expired
    ) {
        return Verdict::drop(way.reason());
    }
    match rewrite::translate_error(frame, network, &work.tuple, quoted.get(), flow) {
        Some(()) => {
            let way = way.settled(&mut work.memory);
            go(tables, frame, network, work, record, way, Reason::IcmpError)
        }
        None => Verdict::drop(Reason::NotWritable),
    }
}

/// Reads the packet that an ICMP error quotes: the offset of its transport header. What identifies
/// the packets that it is an answer to goes to [`Work::other`].
#[inline(never)]
fn quoted<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &F,
    at: usize,
    work: &mut Work<A>,
) -> Option<NonZeroUsize> {
    let packet = frame.packet();
    let (source, destination) = parse::addresses::<A>(packet, at)?;
    let network = parse::network::<A>(packet, at)?.settled(&mut work.memory);
    if !is_translated(tables.config(), network.protocol) || network.fragment == Fragment::Later {
        return None;
    }
    let ports = parse::ports(packet, network.payload)?;
    work.other = Tuple {
        source: destination,
        destination: source,
        source_port: ports.destination,
        destination_port: ports.source,
        protocol: network.protocol,
        pad: [0; 3],
    };
    NonZeroUsize::new(network.payload)
}
