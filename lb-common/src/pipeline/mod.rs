//! A packet's way through node-lb: parse → flow → (service → select → record) → rewrite → forward.
//!
//! The same source runs in the kernel, in tests and behind `explain`. The first packet of a
//! connection pays for the service lookup, the choice of an endpoint and two flow records; every
//! later one finds its record and has all it needs.

mod fragments;
mod icmp;
mod open;
mod record;
mod send;

pub use self::open::{Refusal, open_index};

use self::{
    fragments::{fragment_flow, remember_fragment},
    icmp::icmp_error,
    open::{open, refuse, unopened},
    send::{leave, send},
};
use crate::{
    abi::FragmentKey,
    addr::Address,
    answer::Message,
    flow::{
        table::{self, Record, Refused},
        tcp,
    },
    frame::Frame,
    parse::{self, ETHERNET, Fragment, Network, TCP, Tuple, UDP},
    rewrite,
    tables::Tables,
    verdict::{Reason, Verdict},
};

/// Room to work on a packet, kept off the stack, which the kernel limits to 512 bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Work<A> {
    /// What identifies the packet.
    pub tuple: Tuple<A>,
    /// What identifies another packet: one quoted, or the answers to come.
    pub other: Tuple<A>,
    /// Who an answer comes from, and what it says.
    pub answerer: A,
    pub message: Message,
    pub fragment: FragmentKey,
    /// For [`Network::settled`].
    pub memory: u64,
    /// The device of [`Way::Device`].
    pub ifindex: u32,
    /// Why a record could not be claimed.
    pub refused: Refused,
    /// Why no flow was opened.
    pub refusal: Refusal,
    pub reason: Reason,
}

/// Decides about a packet that arrives on a device, and rewrites it.
#[inline(always)]
pub fn ingress<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    work: &mut Work<A>,
) -> Verdict {
    let Some(network) = network(frame, work) else {
        return Verdict::pass(Reason::Malformed);
    };
    match Kind::of::<A>(&network) {
        Kind::Ports => {}
        Kind::Icmp => return icmp_error::<A, T, F, true>(tables, frame, &network, work),
        Kind::Other => return Verdict::pass(Reason::OtherProtocol),
        Kind::LaterFragment => {
            let Some(record) = fragment_flow(tables, work, &network) else {
                return Verdict::pass(Reason::UnknownFragment);
            };
            return send(
                tables,
                frame,
                &network,
                work,
                record,
                Reason::FollowedFragment,
            );
        }
    }
    let Some(tcp_flags) = ports(frame, work, &network) else {
        return Verdict::pass(Reason::Malformed);
    };
    work.reason = Reason::ToEndpoint;
    // A connection that seems new is not searched for first: see `insert`.
    let known = match tcp::opens(tcp_flags) {
        true => None,
        false => table::find(tables, &work.tuple),
    };
    let record = match known {
        Some(record) => record,
        None => match open(tables, work, frame.ifindex(), tcp_flags) {
            Some(record) => record,
            None => return refuse(tables, frame, &network, work),
        },
    };
    let reason = work.reason;
    if F::MAY_BE_PARTIAL && rewrite::looks_partial(frame, &network, &work.tuple) {
        return Verdict::pass(Reason::PartialChecksum);
    }
    touch(tables, record, tcp_flags);
    if network.fragment == Fragment::First {
        remember_fragment(tables, work, &network, record);
    }
    send(tables, frame, &network, work, record, reason)
}

/// Translates an answer that leaves the host's stack, and drops what the node's own sockets must not
/// reach. Everything else goes on its way.
#[inline(always)]
pub fn egress<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    work: &mut Work<A>,
) -> Verdict {
    let Some(network) = network(frame, work) else {
        return Verdict::pass(Reason::Malformed);
    };
    match Kind::of::<A>(&network) {
        Kind::Ports => {}
        Kind::Icmp => return icmp_error::<A, T, F, false>(tables, frame, &network, work),
        Kind::Other => return Verdict::pass(Reason::OtherProtocol),
        Kind::LaterFragment => {
            let Some(record) = fragment_flow(tables, work, &network) else {
                return Verdict::pass(Reason::UnknownFragment);
            };
            return leave(frame, &network, record, Reason::FollowedFragment);
        }
    }
    let Some(tcp_flags) = ports(frame, work, &network) else {
        return Verdict::pass(Reason::Malformed);
    };
    let Some(record) = table::find(tables, &work.tuple) else {
        return match unopened(tables, work) {
            Some(reason) => Verdict::drop(reason),
            None => Verdict::pass(Reason::NotService),
        };
    };
    touch(tables, record, tcp_flags);
    if network.fragment == Fragment::First {
        remember_fragment(tables, work, &network, record);
    }
    leave(frame, &network, record, Reason::ToClient)
}

/// What a packet is to node-lb.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// TCP or UDP, with ports.
    Ports,
    /// Part of an IP packet without its transport header.
    LaterFragment,
    Icmp,
    Other,
}

impl Kind {
    #[inline(always)]
    fn of<A: Address>(network: &Network) -> Self {
        if network.fragment == Fragment::Later {
            Self::LaterFragment
        } else if network.protocol == TCP || network.protocol == UDP {
            Self::Ports
        } else if network.protocol == A::ICMP {
            Self::Icmp
        } else {
            Self::Other
        }
    }
}

/// Reads the network header; the addresses go to [`Work::tuple`].
#[inline(always)]
fn network<A: Address, F: Frame>(frame: &F, work: &mut Work<A>) -> Option<Network> {
    let packet = frame.packet();
    let (source, destination) = parse::addresses(packet, ETHERNET)?;
    let network = parse::network::<A>(packet, ETHERNET)?.settled(&mut work.memory);
    work.tuple.source = source;
    work.tuple.destination = destination;
    work.tuple.protocol = network.protocol;
    Some(network)
}

/// Reads the ports into [`Work::tuple`], and the TCP flags.
#[inline(always)]
fn ports<A: Address, F: Frame>(frame: &F, work: &mut Work<A>, network: &Network) -> Option<u8> {
    let packet = frame.packet();
    let transport = parse::transport(packet, network.payload, network.protocol, false)?;
    work.tuple.source_port = transport.source_port;
    work.tuple.destination_port = transport.destination_port;
    Some(transport.flags)
}

/// Notes what a packet shows of its connection. Writes only what changes.
#[inline(always)]
fn touch<A: Address, T: Tables<A>>(tables: &T, record: Record<A>, tcp_flags: u8) {
    // SAFETY: live records stay valid; these fields may be written by several CPUs at once and any
    // of the values will do.
    unsafe {
        let flow = record.as_ptr();
        let seen = (*flow).seen | tcp::bits(tcp_flags);
        if (*flow).seen != seen {
            (*flow).seen = seen;
        }
        let now = tables.ticks();
        if (*flow).last_seen != now {
            (*flow).last_seen = now;
        }
    }
}
