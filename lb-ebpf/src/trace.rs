//! Logs what was decided about the packets that somebody traces, a line for each step, through
//! aya-log. `node_lb::trace` reads the lines.
//!
//! Each line is written by a function that the verifier looks at by itself: one costs it thousands
//! of instructions, and has the stack to itself.

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_log_ebpf::info;
use lb_common::{
    addr::{Ip4, Ip6},
    parse::Tuple,
    pipeline,
    trace::{Headers, Place, Trail},
    verdict::{Hook, Verdict},
    work::Work,
};

use crate::{family::FamilyMaps, kernel::Kernel, maps::TRACE};

/// Logs a packet at the end of its way through a hook, if it is to be.
#[inline(always)]
pub fn packet<A: FamilyMaps>(work: &mut Work<A>, hook: Hook, ifindex: u32, verdict: Verdict) {
    work.end_trail(hook, ifindex, verdict);
    A::trace(&mut work.trail);
}

/// Notes that a socket asks for a destination.
#[inline(always)]
pub fn socket<A: FamilyMaps>(tuple: &Tuple<A>) {
    if let Some(work) = A::work(Hook::Socket) {
        // SAFETY: the element is this CPU's, and programs for sockets use it for nothing else. One
        // may run in the middle of another's way through here: then lines of the two are mixed.
        unsafe { (*work).trail.start_of_socket(tuple) };
    }
}

/// Logs what was decided about it, if it is to be. (Not all at once, with the whole of the decision
/// at hand: what variants of an enum leave undefined may not be copied, and the stack is short.)
#[inline(always)]
pub fn socket_end<A: FamilyMaps>(verdict: Verdict, endpoint: Option<(A, u16)>) {
    if let Some(work) = A::work(Hook::Socket) {
        // SAFETY: the element is this CPU's, and programs for sockets use it for nothing else.
        let trail = unsafe { &mut (*work).trail };
        trail.end_of_socket(verdict, endpoint);
        A::trace(trail);
    }
}

/// [`FamilyMaps::trace`]: the packet's number if it matches the filter, then its lines.
macro_rules! family {
    ($family:ty, $trace:ident, $resolve:ident, $take:ident, $lines:ident, $address:ident) => {
        impl Lines for $family {
            #[inline(always)]
            fn address(id: u32, place: Place, address: &Self, port: u16) {
                $address(id, place as u32, address, port.into());
            }
        }

        /// Logs a packet if it is to be.
        #[inline(always)]
        pub fn $trace(trail: &mut Trail<$family>) {
            $resolve(trail);
            let id = $take(trail);
            if id != 0 {
                $lines(trail, id as u32);
            }
        }

        /// [`pipeline::note_connection`] as a function that the verifier looks at once.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $resolve(trail: *mut Trail<$family>) -> u64 {
            // SAFETY: null or a trail; the verifier makes sure.
            let trail = unsafe { trail.as_mut() };
            if let (Some(trail), Some(kernel)) = (trail, Kernel::<_, true, false>::new((), 0)) {
                pipeline::note_connection(&kernel, trail);
            }
            0
        }

        /// [`take`], likewise.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $take(trail: *mut Trail<$family>) -> u64 {
            // SAFETY: null or a trail; the verifier makes sure.
            let taken = unsafe { trail.as_mut() }.and_then(take);
            taken.map_or(0, u64::from)
        }

        /// [`lines`], likewise.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $lines(trail: *const Trail<$family>, id: u32) -> u64 {
            // SAFETY: null or a trail; the verifier makes sure.
            unsafe { trail.as_ref() }.map_or(0, |trail| lines(trail, id))
        }

        /// [`Lines::address`], likewise.
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $address(id: u32, place: u32, address: *const $family, port: u32) -> u64 {
            // SAFETY: null or an address; the verifier makes sure.
            if let Some(address) = unsafe { address.as_ref() } {
                info!(
                    &(),
                    "{} address {} {:i} {}", id, place, address.octets, port
                );
            }
            0
        }
    };
}

family!(
    Ip4,
    trace4,
    trace_resolve4,
    trace_take4,
    trace_lines4,
    trace_address4
);
family!(
    Ip6,
    trace6,
    trace_resolve6,
    trace_take6,
    trace_lines6,
    trace_address6
);

/// The number of a packet that matches the filter, while there is time and room for more.
#[inline(always)]
fn take<A: FamilyMaps>(trail: &mut Trail<A>) -> Option<u32> {
    let trace = TRACE.get_ptr_mut(0)?;
    // SAFETY: no arguments.
    let now = unsafe { bpf_ktime_get_ns() };
    // SAFETY: an element of a map, which the agent writes before programs are attached; later it
    // replaces single words.
    let (until, limit, filter) = unsafe { ((*trace).until, (*trace).limit, &(*trace).filter) };
    if now >= until {
        return None;
    }
    trail.at = now;
    // SAFETY: counters in a map, only ever added to.
    unsafe {
        lb_common::add(&raw mut (*trace).seen, 1);
        let is_over = (&raw const (*trace).taken).read_volatile() >= limit;
        if is_over || !filter.matches(trail) {
            return None;
        }
        let taken = lb_common::fetch_add(&raw mut (*trace).taken, 1);
        (taken < limit).then_some(taken.wrapping_add(1))
    }
}

/// Logs the steps of a packet. Always 0: functions that the verifier looks at by themselves return
/// a number.
#[inline(always)]
fn lines<A: Lines>(trail: &Trail<A>, id: u32) -> u64 {
    let Some(trace) = TRACE.get_ptr_mut(0) else {
        return 0;
    };
    let mut count = 3;
    trace_hook(id, trail.hook, trail.ifindex, trail.at);
    if trail.headers != Headers::None {
        count += 3;
        let tuple = &trail.tuple;
        trace_parse(id, tuple.protocol.into(), trail.segment_flags);
        A::address(id, Place::Source, &tuple.source, tuple.source_port);
        A::address(
            id,
            Place::Destination,
            &tuple.destination,
            tuple.destination_port,
        );
    }
    if trail.hook != Hook::Socket as u32 {
        count += 1;
        trace_flow(id, trail.flow as u32, trail.flags);
    }
    if trail.service != 0 {
        count += 1;
        trace_service(id, trail.service);
    }
    if trail.schema != 0 {
        count += 1;
        trace_schema(id, trail.schema);
    }
    if trail.has_endpoint() {
        count += 1;
        let connection = &trail.connection;
        A::address(
            id,
            Place::Endpoint,
            &connection.endpoint,
            connection.endpoint_port,
        );
    }
    if trail.is_rewritten() {
        count += 2;
        let rewrite = &trail.rewrite;
        A::address(id, Place::NewSource, &rewrite.source, rewrite.source_port);
        A::address(
            id,
            Place::NewDestination,
            &rewrite.destination,
            rewrite.destination_port,
        );
    }
    trace_way(id, trail.action, trail.leaves_by);
    trace_reason(id, trail.reason);
    // SAFETY: a counter in a map, only ever added to.
    unsafe { lb_common::add(&raw mut (*trace).lines, count) };
    0
}

/// The lines that have an address in them.
pub trait Lines: FamilyMaps {
    /// An address and port of the packet, and which of its addresses that is.
    fn address(id: u32, place: Place, address: &Self, port: u16);
}

/// Which hook, of which device (0 for sockets), and when.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn trace_hook(id: u32, hook: u32, ifindex: u32, now: u64) -> u64 {
    info!(&(), "{} hook {} {} {}", id, hook, ifindex, now);
    0
}

/// What kind of packet it is: protocol and TCP flags.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn trace_parse(id: u32, protocol: u32, flags: u32) -> u64 {
    info!(&(), "{} parse {} {}", id, protocol, flags);
    0
}

/// Whether it belongs to a flow, and that direction's flags.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn trace_flow(id: u32, known: u32, flags: u32) -> u64 {
    info!(&(), "{} flow {} {}", id, known, flags);
    0
}

/// Which service it is to.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn trace_service(id: u32, service: u32) -> u64 {
    info!(&(), "{} service {}", id, service);
    0
}

/// Which flow schema takes the connection that it asks for.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn trace_schema(id: u32, schema: u32) -> u64 {
    info!(&(), "{} schema {}", id, schema);
    0
}

/// Where it goes from here.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn trace_way(id: u32, action: u32, ifindex: u32) -> u64 {
    info!(&(), "{} way {} {}", id, action, ifindex);
    0
}

/// Why; the last line of a packet.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn trace_reason(id: u32, reason: u32) -> u64 {
    info!(&(), "{} reason {}", id, reason);
    0
}
