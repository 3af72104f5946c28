//! A packet's way through node-lb: parse → flow → (service → select → record) → rewrite → forward.
//!
//! The same source runs in the kernel, in tests and behind `explain`. The first packet of a
//! connection pays for the service lookup, the choice of an endpoint and two flow records; every
//! later one finds its record and has all it needs.

mod admit;
mod answer;
mod association;
mod classify;
mod failing;
mod fragments;
mod gone;
mod half_open;
mod halfway;
mod icmp;
mod martian;
mod note;
mod open;
mod park;
mod record;
mod resize;
mod room;
mod send;
mod socket;
mod track;
mod turn;
mod unknown;

pub use self::{
    admit::{asks, in_the_way, take_seats},
    classify::schema_of,
    failing::{LIMIT as FAILING, elsewhere, is_avoided},
    half_open::{RINGS, WITHOUT_RING},
    note::connection as note_connection,
    open::open_index,
    record::{bypasses, finish_index},
    resize::{Copied, copy_slot},
    room::with_room,
    socket::{seat_socket, unseat_socket},
    turn::{let_in, turn_away},
};

use self::{
    fragments::{fragment_flow, remember_fragment},
    icmp::icmp_error,
    open::{leave_unopened, open, refuse},
    resize::copied_index,
    send::{leave, send},
    track::track,
    unknown::{is_unknown, keep_back},
};
use crate::{
    abi::{Config, config_flag},
    addr::{Address, Family},
    flow::{table, tcp},
    frame::Frame,
    parse::{self, Fragment, Network, SCTP, Segment, TCP, UDP},
    rewrite,
    tables::Tables,
    trace::{Headers, Known},
    verdict::{Reason, Verdict},
    work::Work,
};

/// Decides about a packet that arrives on a device, and rewrites it.
#[inline(always)]
pub fn ingress<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    work: &mut Work<A>,
) -> Verdict {
    note::start(tables, work);
    let Some(network) = network(frame, work) else {
        return Verdict::pass(Reason::Malformed);
    };
    note::headers(tables, work, Headers::Addresses);
    match Kind::of::<A>(tables.config(), &network) {
        Kind::Ports => {}
        Kind::Icmp => return icmp_error::<A, T, F, true>(tables, frame, &network, work),
        Kind::Other => return Verdict::pass(Reason::OtherProtocol),
        Kind::LaterFragment => {
            let Some(record) = fragment_flow(tables, work, &network) else {
                return Verdict::pass(Reason::UnknownFragment);
            };
            note::flow(tables, work, record, Known::Found);
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
    if transport(frame, work, &network).is_none() {
        return Verdict::pass(Reason::Malformed);
    }
    note::headers(tables, work, Headers::Ports);
    work.reason = Reason::ToEndpoint;
    // A connection that seems new is not searched for first: see `insert`.
    let known = match tcp::opens(work.segment.flags) {
        true => None,
        false => table::find(tables, &work.tuple),
    };
    let record = match known {
        Some(record) => record,
        None => match open(tables, frame, work) {
            Some(record) => record,
            None => return refuse(tables, frame, &network, work),
        },
    };
    let reason = work.reason;
    note::flow(
        tables,
        work,
        record,
        match reason {
            Reason::Opened => Known::Opened,
            _ => Known::Found,
        },
    );
    if F::MAY_BE_PARTIAL && rewrite::looks_partial(frame, &network, &work.tuple) {
        return Verdict::pass(Reason::PartialChecksum);
    }
    if reason != Reason::Opened {
        track(tables, record, work);
    }
    if network.fragment == Fragment::First {
        remember_fragment(tables, work, &network, record);
    }
    send(tables, frame, &network, work, record, reason)
}

/// Translates an answer that leaves the host's stack, and refuses or drops what the node's own
/// sockets must not reach, or nobody. Everything else goes on its way.
#[inline(always)]
pub fn egress<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    work: &mut Work<A>,
) -> Verdict {
    note::start(tables, work);
    let Some(network) = network(frame, work) else {
        return Verdict::pass(Reason::Malformed);
    };
    note::headers(tables, work, Headers::Addresses);
    if A::FAMILY == Family::V4
        && let Some(token) = frame.take_token()
        && halfway::leave(tables, frame, &network, work, token)
    {
        return match work.reason {
            Reason::NotWritable => Verdict::drop(Reason::NotWritable),
            reason => Verdict::pass(reason),
        };
    }
    match Kind::of::<A>(tables.config(), &network) {
        Kind::Ports => {}
        Kind::Icmp if !parse::is_icmp_query::<A>(frame.packet(), network.payload) => {
            return icmp_error::<A, T, F, false>(tables, frame, &network, work);
        }
        Kind::Icmp | Kind::Other if is_unknown(tables, work) => {
            return keep_back(tables, frame, &network, work);
        }
        Kind::Icmp | Kind::Other => return Verdict::pass(Reason::OtherProtocol),
        Kind::LaterFragment => {
            let Some(record) = fragment_flow(tables, work, &network) else {
                // Nobody takes it: its first fragment has been refused, or has yet to come.
                return match is_unknown(tables, work) && frame.may_be_kept_back() {
                    true => Verdict::drop(Reason::UnknownFragment),
                    false => Verdict::pass(Reason::UnknownFragment),
                };
            };
            note::flow(tables, work, record, Known::Found);
            return leave(frame, &network, record, Reason::FollowedFragment);
        }
    }
    if transport(frame, work, &network).is_none() {
        return Verdict::pass(Reason::Malformed);
    }
    note::headers(tables, work, Headers::Ports);
    let record = match table::find(tables, &work.tuple) {
        Some(record) => record,
        None => {
            let index = copied_index(tables, work);
            let copy = u32::try_from(index).ok();
            match copy.and_then(|index| tables.slot(index)) {
                Some(record) => record,
                None => return leave_unopened(tables, frame, &network, work, index),
            }
        }
    };
    note::flow(tables, work, record, Known::Found);
    track(tables, record, work);
    if network.fragment == Fragment::First {
        remember_fragment(tables, work, &network, record);
    }
    leave(frame, &network, record, Reason::ToClient)
}

/// The kind of a packet, as node-lb distinguishes them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Of a protocol that is translated, with ports.
    Ports,
    /// Part of an IP packet without its transport header.
    LaterFragment,
    Icmp,
    Other,
}

impl Kind {
    #[inline(always)]
    fn of<A: Address>(config: &Config, network: &Network) -> Self {
        if network.fragment == Fragment::Later {
            Self::LaterFragment
        } else if is_translated(config, network.protocol) {
            Self::Ports
        } else if network.protocol == A::ICMP {
            Self::Icmp
        } else {
            Self::Other
        }
    }
}

/// Whether packets of a protocol are translated: TCP and UDP, and SCTP unless that is switched off.
#[inline(always)]
fn is_translated(config: &Config, protocol: u8) -> bool {
    match protocol {
        TCP | UDP => true,
        SCTP => config.flags & config_flag::SCTP != 0,
        _ => false,
    }
}

/// Reads the network header; the addresses go to [`Work::tuple`].
#[inline(always)]
fn network<A: Address, F: Frame>(frame: &F, work: &mut Work<A>) -> Option<Network> {
    let packet = frame.packet();
    let (source, destination) = parse::addresses(packet, F::LINK_HEADER)?;
    let network = parse::network::<A>(packet, F::LINK_HEADER)?.settled(&mut work.memory);
    work.tuple.source = source;
    work.tuple.destination = destination;
    work.tuple.protocol = network.protocol;
    Some(network)
}

/// Reads the ports into [`Work::tuple`], and what the packet says of its connection into
/// [`Work::segment`].
#[inline(always)]
fn transport<A: Address, F: Frame>(frame: &F, work: &mut Work<A>, network: &Network) -> Option<()> {
    let packet = frame.packet();
    let ports = parse::ports(packet, network.payload)?;
    work.tuple.source_port = ports.source;
    work.tuple.destination_port = ports.destination;
    match network.protocol {
        TCP => parse::segment(packet, network, &mut work.segment),
        SCTP => parse::association(packet, network, &mut work.segment),
        _ => {
            work.segment = Segment::default();
            Some(())
        }
    }
}
