//! Packets to Services that the kernel would drop: they open nothing, and pass to the kernel.

use crate::{
    abi::device_flag,
    addr::{Address, Family},
    frame::Frame,
    tables::{NextHop, Tables},
    verdict::Reason,
    work::Work,
};

/// Why the kernel would drop a packet that is about to open a flow, if it would.
#[inline(always)]
pub(super) fn left_to_kernel<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &F,
    work: &mut Work<A>,
) -> Option<Reason> {
    if let Some(reason) = astray(tables, frame, work) {
        return Some(reason);
    }
    is_martian(tables, work, frame.ifindex()).then_some(Reason::MartianSource)
}

/// Why a frame is not addressed to this host, if it is not: it is for a group of hosts (IEEE 802,
/// the individual/group bit), or for another one. The kernel forwards no such packet; otherwise
/// every node on the link would.
#[inline(always)]
fn astray<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &F,
    work: &mut Work<A>,
) -> Option<Reason> {
    if F::LINK_HEADER != 0 && frame.packet().load::<u8>(0)? & 1 != 0 {
        return Some(Reason::LinkMulticast);
    }
    let is_for_host = match frame.is_for_host() {
        Some(true) => true,
        Some(false) => tables.device(frame.ifindex()).flags & device_flag::PORT != 0,
        None => {
            work.device = tables.device(frame.ifindex());
            let own = work.device.address;
            let address = frame.packet().load::<u32>(ADDRESS_END)?;
            own == 0 || own == address
        }
    };
    (!is_for_host).then_some(Reason::OtherHost)
}

/// Where in a frame the last four octets of the destination's address are.
const ADDRESS_END: usize = 2;

/// Whether the kernel would drop a packet because of its source: no host sends from there, it is
/// the node's own, or the way back leads elsewhere (RFC 3704; Linux's `rp_filter`). Not inlined,
/// because the stack is small.
#[inline(never)]
fn is_martian<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>, ifindex: u32) -> bool {
    if !work.tuple.source.is_source() {
        return true;
    }
    // There are no further checks for IPv6.
    if A::FAMILY == Family::V6 {
        return false;
    }
    if T::ANY_DEVICE {
        // Others have been looked up already.
        work.device = tables.device(ifindex);
    }
    let flags = work.device.flags;
    flags & device_flag::NO_OWN_SOURCES != 0 && tables.is_local(work.tuple.source.to_mapped())
        || flags & device_flag::WAY_BACK != 0 && !leads_back(tables, work, ifindex)
}

/// Whether there is a way back to a packet's source, and it leads where it must.
#[inline(always)]
fn leads_back<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>, ifindex: u32) -> bool {
    let device = tables.way_back(ifindex);
    let Work { tuple, hop, .. } = work;
    match tables.next_hop(tuple.protocol, &tuple.destination, &tuple.source, hop) {
        NextHop::None => false,
        NextHop::Known | NextHop::Unresolved => device == 0 || hop.ifindex == device,
    }
}
