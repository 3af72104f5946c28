//! The steps of the work on a packet. Each is a separate function for the verifier. This module
//! also has the code that calls them.

use lb_common::{
    abi::{Frontend, FrontendKey, Plan, SocketSeats},
    addr::{Ip4, Ip6},
    crc32c,
    flow::{
        Flow, claim, end, linger, load, party,
        place::Place,
        queue, resize,
        seats::{self, Asked},
        slots::Purpose,
        table,
    },
    parse::{Segment, Tuple},
    pipeline::{self, Copied, RINGS},
    select::{self, Policy, Range},
    service,
    trace::Trail,
    verdict::Hook,
    work::Work,
};

use crate::{
    family::FamilyMaps,
    kernel::Kernel,
    maps::{
        FLOWS4, FLOWS6, FRONTENDS4, FRONTENDS6, HALF_OPEN_CURSORS, HALF_OPEN4, HALF_OPEN6,
        OTHER_FLOWS4, OTHER_FLOWS6, OTHER_MASK4, OTHER_MASK6, SEATED_SOCKETS, TURN_WORK4,
        TURN_WORK6, WORK4, WORK6,
    },
    trace::{trace4, trace6},
};

/// [`FamilyMaps::open_index`] for IPv4.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn open_index4(work: *mut Work<Ip4>, ifindex: u32) -> u64 {
    open_index(work, ifindex)
}

/// [`FamilyMaps::open_index`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn open_index6(work: *mut Work<Ip6>, ifindex: u32) -> u64 {
    open_index(work, ifindex)
}

#[inline(always)]
fn open_index<A: FamilyMaps>(work: *mut Work<A>, ifindex: u32) -> u64 {
    // SAFETY: null or this CPU's; the verifier makes sure.
    let work = unsafe { work.as_mut() };
    match (work, Kernel::<_, true, false>::new((), ifindex)) {
        (Some(work), Some(kernel)) => pipeline::open_index(&kernel, work, ifindex),
        _ => u64::MAX,
    }
}

/// [`FamilyMaps::finish_index`] for IPv4.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn finish_index4(work: *mut Work<Ip4>) -> u64 {
    finish_index(work)
}

/// [`FamilyMaps::finish_index`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn finish_index6(work: *mut Work<Ip6>) -> u64 {
    finish_index(work)
}

#[inline(always)]
fn finish_index<A: FamilyMaps>(work: *mut Work<A>) -> u64 {
    match (
        // SAFETY: null or this CPU's; the verifier makes sure.
        unsafe { work.as_mut() },
        Kernel::<_, true, false>::new((), 0),
    ) {
        (Some(work), Some(kernel)) => pipeline::finish_index(&kernel, work),
        _ => u64::MAX,
    }
}

/// [`FamilyMaps::find_index`] for IPv4. Exported, which is what makes it a function of its own for
/// the verifier.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn find_index4(tuple: *const Tuple<Ip4>) -> u64 {
    find_index(tuple)
}

/// [`FamilyMaps::find_index`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn find_index6(tuple: *const Tuple<Ip6>) -> u64 {
    find_index(tuple)
}

/// [`FamilyMaps::claim_index`] for IPv4.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn claim_index4(tuple: *const Tuple<Ip4>, hash: u64) -> u64 {
    claim_index(tuple, hash)
}

/// [`FamilyMaps::has_rival`] for IPv4.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn has_rival4(tuple: *const Tuple<Ip4>, hash: u64, outcome: u64) -> u64 {
    has_rival(tuple, hash, outcome)
}

/// [`FamilyMaps::gives_way`] for IPv4.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn gives_way4(segment: *const Segment, index: u32, purpose: u32) -> u64 {
    gives_way::<Ip4>(segment, index, purpose)
}

/// [`FamilyMaps::claim_index`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn claim_index6(tuple: *const Tuple<Ip6>, hash: u64) -> u64 {
    claim_index(tuple, hash)
}

/// [`FamilyMaps::has_rival`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn has_rival6(tuple: *const Tuple<Ip6>, hash: u64, outcome: u64) -> u64 {
    has_rival(tuple, hash, outcome)
}

/// [`FamilyMaps::gives_way`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn gives_way6(segment: *const Segment, index: u32, purpose: u32) -> u64 {
    gives_way::<Ip6>(segment, index, purpose)
}

/// [`FamilyMaps::join_party`] for IPv4.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn join_party4(forward: u32, ports: u32, most: u32) -> u64 {
    join_party::<Ip4>(forward, ports, most)
}

/// [`FamilyMaps::leave_party`] for IPv4.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn leave_party4(forward: u32, ports: u32) -> u64 {
    leave_party::<Ip4>(forward, ports)
}

/// [`FamilyMaps::join_party`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn join_party6(forward: u32, ports: u32, most: u32) -> u64 {
    join_party::<Ip6>(forward, ports, most)
}

/// [`FamilyMaps::leave_party`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn leave_party6(forward: u32, ports: u32) -> u64 {
    leave_party::<Ip6>(forward, ports)
}

/// [`FamilyMaps::leave_endpoint`] for IPv4.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn leave_endpoint4(forward: u32, ports: u32) -> u64 {
    leave_endpoint::<Ip4>(forward, ports)
}

/// [`FamilyMaps::leave_endpoint`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn leave_endpoint6(forward: u32, ports: u32) -> u64 {
    leave_endpoint::<Ip6>(forward, ports)
}

/// [`FamilyMaps::approach`] for IPv4.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn approach4(hash: u64, other: u64) -> u64 {
    approach::<Ip4>(hash, other)
}

/// [`FamilyMaps::approach`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn approach6(hash: u64, other: u64) -> u64 {
    approach::<Ip6>(hash, other)
}

/// [`FamilyMaps::leave_ended`] for IPv4.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn leave_ended4(index: u32) -> u64 {
    leave_ended::<Ip4>(index)
}

/// [`FamilyMaps::leave_ended`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn leave_ended6(index: u32) -> u64 {
    leave_ended::<Ip6>(index)
}

/// [`lb_common::pipeline::take_seats`] by the number of what a flow [asks](Asked) for. The same for both
/// families.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn take_seats(asked: u32, schema: u32) -> u32 {
    let kernel = Kernel::<_, true, false>::new((), 0);
    kernel.map_or(0, |kernel| {
        pipeline::take_seats::<Ip4, _>(&kernel, Asked::from_number(asked), schema)
    })
}

/// [`lb_common::pipeline::in_the_way`]: the number of a [`Full`](seats::Full), or 0. The same for both
/// families.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn in_the_way(asked: u32) -> u32 {
    let kernel = Kernel::<_, true, false>::new((), 0);
    let full = kernel
        .and_then(|kernel| pipeline::in_the_way::<Ip4, _>(&kernel, Asked::from_number(asked)));
    full.map_or(0, |full| full as u32)
}

/// [`lb_common::pipeline::is_avoided`]. The same for both families.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn is_avoided(endpoint: u32, limit: u32) -> u64 {
    let kernel = Kernel::<_, true, false>::new((), 0);
    kernel.map_or(0, |kernel| {
        pipeline::is_avoided::<Ip4, _>(&kernel, endpoint, limit).into()
    })
}

/// [`lb_common::pipeline::elsewhere`] in the set that begins at `first`. The same for both families.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn elsewhere(first: u32, count: u32, index: u32, left: u32) -> u32 {
    let kernel = Kernel::<_, true, false>::new((), 0);
    kernel.map_or(index, |kernel| {
        pipeline::elsewhere::<Ip4, _>(&kernel, Range { first, count }, index, left)
    })
}

/// [`lb_common::select::less_loaded`]. The same for both families.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn less_loaded(one: u32, other: u32, by_latency: u32) -> u32 {
    let kernel = Kernel::<_, true, false>::new((), 0);
    kernel.map_or(one, |kernel| {
        select::less_loaded::<Ip4, _>(&kernel, one, other, by_latency != 0)
    })
}

/// [`lb_common::flow::seats::enter_party`]. The same for both families.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn enter_party(party: u64, most: u32) -> u64 {
    let kernel = Kernel::<_, true, false>::new((), 0);
    kernel.map_or(party::NO_ROOM, |kernel| {
        seats::enter_party::<Ip4, _>(&kernel, party, most)
    })
}

/// [`FamilyMaps::seat_socket`] for IPv4.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn seat_socket4(
    tuple: *const Tuple<Ip4>,
    endpoint: u32,
    held: *mut SocketSeats,
    cookie: u64,
) -> u64 {
    seat_socket(tuple, endpoint, held, cookie)
}

/// [`FamilyMaps::seat_socket`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn seat_socket6(
    tuple: *const Tuple<Ip6>,
    endpoint: u32,
    held: *mut SocketSeats,
    cookie: u64,
) -> u64 {
    seat_socket(tuple, endpoint, held, cookie)
}

/// [`pipeline::unseat_socket`] of the socket with this cookie. The same for both families. Always 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn unseat_socket(held: *mut SocketSeats, cookie: u64) -> u64 {
    // SAFETY: null or the socket's; the verifier makes sure.
    let held = unsafe { held.as_mut() };
    if let (Some(held), Some(kernel)) = (held, Kernel::<_, true, false>::new((), 0)) {
        pipeline::unseat_socket::<Ip4, _>(&kernel, held);
        let _ = SEATED_SOCKETS.remove(cookie);
    }
    0
}

/// [`lb_common::flow::load::enter_endpoint`]. The same for both families.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn enter_endpoint(endpoint: u32, most: u32) -> u64 {
    let kernel = Kernel::<_, true, false>::new((), 0);
    kernel.map_or(1, |kernel| {
        load::enter_endpoint::<Ip4, _>(&kernel, endpoint, most).into()
    })
}

/// [`lb_common::select::balanced`] of the set that begins at `first`. The same for both families.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn balanced(first: u32, count: u32, index: u32, factor: u32) -> u32 {
    let kernel = Kernel::<_, true, false>::new((), 0);
    kernel.map_or(index, |kernel| {
        select::balanced::<Ip4, _>(&kernel, Range { first, count }, index, factor)
    })
}

/// [`lb_common::pipeline::with_room`] of the set that begins at `first`. The same for both families.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn with_room(first: u32, count: u32, index: u32, most: u32) -> u32 {
    let kernel = Kernel::<_, true, false>::new((), 0);
    kernel.map_or(index, |kernel| {
        pipeline::with_room::<Ip4, _>(&kernel, Range { first, count }, index, most)
    })
}

/// [`lb_common::flow::linger::linger`] of the seats of a place: the number of one. The same for both families.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn linger(place: u32, schema: u32) -> u32 {
    let kernel = Kernel::<_, true, false>::new((), 0);
    kernel.map_or(place, |kernel| {
        linger::linger::<Ip4, _>(&kernel, Place::from_u32(place), schema).number()
    })
}

/// [`lb_common::flow::linger::collect`] at a level. The same for both families.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn collect(level: u32) -> u64 {
    let kernel = Kernel::<_, true, false>::new((), 0);
    kernel.map_or(0, |kernel| linger::collect::<Ip4, _>(&kernel, level).into())
}

/// [`lb_common::flow::queue::charge`]. Always 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn charge(place: u32, party: u64, ports: u32, is_over: u32) -> u64 {
    if let Some(kernel) = Kernel::<_, true, false>::new((), 0) {
        queue::charge::<Ip4, _>(&kernel, Place::from_u32(place), party, ports, is_over != 0);
    }
    0
}

/// [`lb_common::flow::queue::shortest`] of a level.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn shortest_queue(level: u32, party: u64) -> u32 {
    let kernel = Kernel::<_, true, false>::new((), 0);
    kernel.map_or(queue::ALL_FULL, |kernel| {
        queue::shortest::<Ip4, _>(&kernel, level, party)
    })
}

/// [`crc32c::changed`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn changed_crc(checksum: u32, old: u32, new: u32, length: u32) -> u32 {
    crc32c::changed(checksum, old, new, length)
}

/// [`crc32c::of`] four words.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn crc_of(first: u32, second: u32, third: u32, fourth: u32) -> u32 {
    crc32c::of([first, second, third, fourth])
}

/// [`FamilyMaps::sticky_index`] for IPv4.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sticky_index4(tuple: *const Tuple<Ip4>, plan: *const Plan, policy: u32) -> u64 {
    sticky_index(tuple, plan, policy)
}

/// [`FamilyMaps::sticky_index`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn sticky_index6(tuple: *const Tuple<Ip6>, plan: *const Plan, policy: u32) -> u64 {
    sticky_index(tuple, plan, policy)
}

/// [`FamilyMaps::unknown_index`] for IPv4.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn unknown_index4(tuple: *const Tuple<Ip4>) -> u64 {
    unknown_index(tuple)
}

/// [`FamilyMaps::unknown_index`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn unknown_index6(tuple: *const Tuple<Ip6>) -> u64 {
    unknown_index(tuple)
}

/// [`FamilyMaps::find_other_index`] for IPv4.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn find_other_index4(tuple: *const Tuple<Ip4>) -> u64 {
    find_other_index(tuple)
}

/// [`FamilyMaps::copy_index`] for IPv4.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn copy_index4(tuple: *const Tuple<Ip4>) -> u64 {
    copy_index(tuple)
}

/// [`FamilyMaps::end_other`] for IPv4.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn end_other4(index: u32) -> u64 {
    end_other::<Ip4>(index)
}

/// [`FamilyMaps::copy_slot`] for IPv4.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn copy_slot4(index: u32) -> u64 {
    copy_slot::<Ip4>(index)
}

/// [`FamilyMaps::find_other_index`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn find_other_index6(tuple: *const Tuple<Ip6>) -> u64 {
    find_other_index(tuple)
}

/// [`FamilyMaps::copy_index`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn copy_index6(tuple: *const Tuple<Ip6>) -> u64 {
    copy_index(tuple)
}

/// [`FamilyMaps::end_other`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn end_other6(index: u32) -> u64 {
    end_other::<Ip6>(index)
}

/// [`FamilyMaps::copy_slot`] for IPv6.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn copy_slot6(index: u32) -> u64 {
    copy_slot::<Ip6>(index)
}

#[inline(always)]
fn find_index<A: FamilyMaps>(tuple: *const Tuple<A>) -> u64 {
    match (
        // SAFETY: null or a tuple; the verifier makes sure.
        unsafe { tuple.as_ref() },
        Kernel::<_, true, false>::new((), 0),
    ) {
        (Some(tuple), Some(kernel)) => table::find_index(&kernel, tuple),
        _ => u64::MAX,
    }
}

#[inline(always)]
fn sticky_index<A: FamilyMaps>(tuple: *const Tuple<A>, plan: *const Plan, policy: u32) -> u64 {
    // SAFETY: null or what they are said to be; the verifier makes sure.
    let (tuple, plan) = unsafe { (tuple.as_ref(), plan.as_ref()) };
    match (tuple, plan, Kernel::<_, true, false>::new((), 0)) {
        (Some(tuple), Some(plan), Some(kernel)) => {
            select::sticky_index(&kernel, plan, Policy::from_u32(policy), tuple)
        }
        _ => u64::MAX,
    }
}

#[inline(always)]
fn seat_socket<A: FamilyMaps>(
    tuple: *const Tuple<A>,
    endpoint: u32,
    held: *mut SocketSeats,
    cookie: u64,
) -> u64 {
    // SAFETY: null or what they are said to be; the verifier makes sure.
    let (tuple, held) = unsafe { (tuple.as_ref(), held.as_mut()) };
    match (tuple, held, Kernel::<_, true, false>::new((), 0)) {
        (Some(tuple), Some(held), Some(kernel)) => {
            let refused = pipeline::seat_socket(&kernel, tuple, endpoint, held);
            if held.endpoint != 0 {
                copy_seats(cookie, held);
            }
            refused.map_or(u64::MAX, |reason| reason as u64)
        }
        _ => u64::MAX,
    }
}

/// Keeps a copy of what a socket holds. By value and out of line: Linux 6.1 takes a map's value from the stack, and
/// has room for it here.
#[inline(never)]
fn copy_seats(cookie: u64, held: &SocketSeats) {
    // If there is no room, whoever lists them sees that the map is full.
    let _ = SEATED_SOCKETS.insert(cookie, *held, 0);
}

#[inline(always)]
fn unknown_index<A: FamilyMaps>(tuple: *const Tuple<A>) -> u64 {
    match (
        // SAFETY: null or a tuple; the verifier makes sure.
        unsafe { tuple.as_ref() },
        Kernel::<_, true, false>::new((), 0),
    ) {
        (Some(tuple), Some(kernel)) => service::unknown_index(&kernel, tuple),
        _ => 0,
    }
}

#[inline(always)]
fn join_party<A: FamilyMaps>(forward: u32, ports: u32, most: u32) -> u64 {
    let kernel = Kernel::<_, true, false>::new((), 0);
    kernel.map_or(party::NO_ROOM, |kernel| {
        seats::join_party::<A, _>(&kernel, forward, ports, most)
    })
}

#[inline(always)]
fn leave_party<A: FamilyMaps>(forward: u32, ports: u32) -> u64 {
    let kernel = Kernel::<_, true, false>::new((), 0);
    kernel.map_or(0, |kernel| {
        seats::leave_party::<A, _>(&kernel, forward, ports)
    })
}

/// Always 0.
#[inline(always)]
fn leave_endpoint<A: FamilyMaps>(forward: u32, ports: u32) -> u64 {
    if let Some(kernel) = Kernel::<_, true, false>::new((), 0) {
        seats::leave_endpoint::<A, _>(&kernel, forward, ports);
    }
    0
}

/// Always 0.
#[inline(always)]
fn approach<A: FamilyMaps>(hash: u64, other: u64) -> u64 {
    if let Some(kernel) = Kernel::<_, true, false>::new((), 0) {
        table::approach::<A, _>(&kernel, [hash, other]);
    }
    0
}

/// Always 0.
#[inline(always)]
fn leave_ended<A: FamilyMaps>(index: u32) -> u64 {
    if let Some(kernel) = Kernel::<_, true, false>::new((), 0) {
        seats::leave_ended::<A, _>(&kernel, index);
    }
    0
}

#[inline(always)]
fn find_other_index<A: FamilyMaps>(tuple: *const Tuple<A>) -> u64 {
    match (
        // SAFETY: null or a tuple; the verifier makes sure.
        unsafe { tuple.as_ref() },
        Kernel::<_, true, false>::new((), 0),
    ) {
        (Some(tuple), Some(kernel)) => table::find_other_index(&kernel, tuple),
        _ => u64::MAX,
    }
}

#[inline(always)]
fn copy_index<A: FamilyMaps>(tuple: *const Tuple<A>) -> u64 {
    match (
        // SAFETY: null or a tuple; the verifier makes sure.
        unsafe { tuple.as_ref() },
        Kernel::<_, true, false>::new((), 0),
    ) {
        (Some(tuple), Some(kernel)) => resize::copy_index(&kernel, tuple),
        _ => u64::MAX,
    }
}

/// Always 0: functions that the verifier looks at by themselves return a number.
#[inline(always)]
fn end_other<A: FamilyMaps>(index: u32) -> u64 {
    if let Some(kernel) = Kernel::<_, true, false>::new((), 0) {
        resize::end_other::<A, _>(&kernel, index);
    }
    0
}

#[inline(always)]
fn copy_slot<A: FamilyMaps>(index: u32) -> u64 {
    let copied = match Kernel::<_, true, false>::new((), 0) {
        Some(kernel) => pipeline::copy_slot::<A, _>(&kernel, index),
        None => Copied::Nothing,
    };
    copied as u64
}

#[inline(always)]
fn claim_index<A: FamilyMaps>(tuple: *const Tuple<A>, hash: u64) -> u64 {
    match (
        // SAFETY: null or a tuple; the verifier makes sure.
        unsafe { tuple.as_ref() },
        Kernel::<_, true, false>::new((), 0),
    ) {
        (Some(tuple), Some(kernel)) => claim::claim_index(&kernel, tuple, hash),
        _ => 0,
    }
}

#[inline(always)]
fn has_rival<A: FamilyMaps>(tuple: *const Tuple<A>, hash: u64, outcome: u64) -> u64 {
    match (
        // SAFETY: null or a tuple; the verifier makes sure.
        unsafe { tuple.as_ref() },
        Kernel::<_, true, false>::new((), 0),
    ) {
        (Some(tuple), Some(kernel)) => claim::has_rival(&kernel, tuple, hash, outcome).into(),
        _ => 1,
    }
}

#[inline(always)]
fn gives_way<A: FamilyMaps>(segment: *const Segment, index: u32, purpose: u32) -> u64 {
    match (
        // SAFETY: null or a segment; the verifier makes sure.
        unsafe { segment.as_ref() },
        Kernel::<_, true, false>::new((), 0),
    ) {
        (Some(segment), Some(kernel)) => {
            let purpose = Purpose::from_u32(purpose);
            end::gives_way::<A, _>(&kernel, index, segment, purpose).into()
        }
        _ => 0,
    }
}

impl FamilyMaps for Ip4 {
    #[inline(always)]
    fn work(hook: Hook) -> Option<*mut Work<Self>> {
        WORK4.get_ptr_mut(hook as u32)
    }

    #[inline(always)]
    fn turn_work() -> Option<*mut Work<Self>> {
        TURN_WORK4.get_ptr_mut(0)
    }

    #[inline(always)]
    fn frontend(key: &FrontendKey<Self>) -> Option<Frontend> {
        // SAFETY: eight bytes, replaced as a whole.
        unsafe { FRONTENDS4.get(key) }.copied()
    }

    #[inline(always)]
    fn flow(index: u32) -> Option<*mut Flow<Self>> {
        FLOWS4.get_ptr_mut(index)
    }

    #[inline(always)]
    fn open_index(work: &mut Work<Self>, ifindex: u32) -> u64 {
        open_index4(work, ifindex)
    }

    #[inline(always)]
    fn finish_index(work: &mut Work<Self>) -> u64 {
        finish_index4(work)
    }

    #[inline(always)]
    fn find_index(tuple: &Tuple<Self>) -> u64 {
        find_index4(tuple)
    }

    #[inline(always)]
    fn claim_index(tuple: &Tuple<Self>, hash: u64) -> u64 {
        claim_index4(tuple, hash)
    }

    #[inline(always)]
    fn has_rival(tuple: &Tuple<Self>, hash: u64, outcome: u64) -> bool {
        has_rival4(tuple, hash, outcome) != 0
    }

    #[inline(always)]
    fn gives_way(index: u32, segment: &Segment, purpose: Purpose) -> bool {
        gives_way4(segment, index, purpose as u32) != 0
    }

    #[inline(always)]
    fn sticky_index(plan: &Plan, policy: Policy, tuple: &Tuple<Self>) -> u64 {
        sticky_index4(tuple, plan, policy as u32)
    }

    #[inline(always)]
    fn unknown_index(tuple: &Tuple<Self>) -> u64 {
        unknown_index4(tuple)
    }

    #[inline(always)]
    fn seat_socket(tuple: &Tuple<Self>, endpoint: u32, held: *mut SocketSeats, cookie: u64) -> u64 {
        seat_socket4(tuple, endpoint, held, cookie)
    }

    #[inline(always)]
    fn other_flow(index: u32) -> Option<*mut Flow<Self>> {
        OTHER_FLOWS4.get_ptr_mut(index)
    }

    #[inline(always)]
    fn other_mask() -> u32 {
        OTHER_MASK4.load()
    }

    #[inline(always)]
    fn find_other_index(tuple: &Tuple<Self>) -> u64 {
        find_other_index4(tuple)
    }

    #[inline(always)]
    fn copy_index(tuple: &Tuple<Self>) -> u64 {
        copy_index4(tuple)
    }

    #[inline(always)]
    fn end_other(index: u32) {
        end_other4(index);
    }

    #[inline(always)]
    fn join_party(forward: u32, ports: u32, most: u32) -> u64 {
        join_party4(forward, ports, most)
    }

    #[inline(always)]
    fn leave_party(forward: u32, ports: u32) -> u64 {
        leave_party4(forward, ports)
    }

    #[inline(always)]
    fn approach(hash: u64, other: u64) {
        approach4(hash, other);
    }

    #[inline(always)]
    fn leave_endpoint(forward: u32, ports: u32) {
        leave_endpoint4(forward, ports);
    }

    #[inline(always)]
    fn leave_ended(index: u32) {
        leave_ended4(index);
    }

    #[inline(always)]
    fn copy_slot(index: u32) -> u64 {
        copy_slot4(index)
    }

    #[inline(always)]
    fn trace(trail: &mut Trail<Self>) {
        trace4(trail);
    }

    #[inline(always)]
    fn half_open_place(index: u32) -> Option<*mut u64> {
        HALF_OPEN4.get_ptr_mut(index)
    }

    #[inline(always)]
    fn half_open_cursor(ring: u32) -> Option<*mut u32> {
        HALF_OPEN_CURSORS.get_ptr_mut(ring)
    }
}

impl FamilyMaps for Ip6 {
    #[inline(always)]
    fn work(hook: Hook) -> Option<*mut Work<Self>> {
        WORK6.get_ptr_mut(hook as u32)
    }

    #[inline(always)]
    fn turn_work() -> Option<*mut Work<Self>> {
        TURN_WORK6.get_ptr_mut(0)
    }

    #[inline(always)]
    fn frontend(key: &FrontendKey<Self>) -> Option<Frontend> {
        // SAFETY: eight bytes, replaced as a whole.
        unsafe { FRONTENDS6.get(key) }.copied()
    }

    #[inline(always)]
    fn flow(index: u32) -> Option<*mut Flow<Self>> {
        FLOWS6.get_ptr_mut(index)
    }

    #[inline(always)]
    fn open_index(work: &mut Work<Self>, ifindex: u32) -> u64 {
        open_index6(work, ifindex)
    }

    #[inline(always)]
    fn finish_index(work: &mut Work<Self>) -> u64 {
        finish_index6(work)
    }

    #[inline(always)]
    fn find_index(tuple: &Tuple<Self>) -> u64 {
        find_index6(tuple)
    }

    #[inline(always)]
    fn claim_index(tuple: &Tuple<Self>, hash: u64) -> u64 {
        claim_index6(tuple, hash)
    }

    #[inline(always)]
    fn has_rival(tuple: &Tuple<Self>, hash: u64, outcome: u64) -> bool {
        has_rival6(tuple, hash, outcome) != 0
    }

    #[inline(always)]
    fn gives_way(index: u32, segment: &Segment, purpose: Purpose) -> bool {
        gives_way6(segment, index, purpose as u32) != 0
    }

    #[inline(always)]
    fn sticky_index(plan: &Plan, policy: Policy, tuple: &Tuple<Self>) -> u64 {
        sticky_index6(tuple, plan, policy as u32)
    }

    #[inline(always)]
    fn unknown_index(tuple: &Tuple<Self>) -> u64 {
        unknown_index6(tuple)
    }

    #[inline(always)]
    fn seat_socket(tuple: &Tuple<Self>, endpoint: u32, held: *mut SocketSeats, cookie: u64) -> u64 {
        seat_socket6(tuple, endpoint, held, cookie)
    }

    #[inline(always)]
    fn other_flow(index: u32) -> Option<*mut Flow<Self>> {
        OTHER_FLOWS6.get_ptr_mut(index)
    }

    #[inline(always)]
    fn other_mask() -> u32 {
        OTHER_MASK6.load()
    }

    #[inline(always)]
    fn find_other_index(tuple: &Tuple<Self>) -> u64 {
        find_other_index6(tuple)
    }

    #[inline(always)]
    fn copy_index(tuple: &Tuple<Self>) -> u64 {
        copy_index6(tuple)
    }

    #[inline(always)]
    fn end_other(index: u32) {
        end_other6(index);
    }

    #[inline(always)]
    fn join_party(forward: u32, ports: u32, most: u32) -> u64 {
        join_party6(forward, ports, most)
    }

    #[inline(always)]
    fn leave_party(forward: u32, ports: u32) -> u64 {
        leave_party6(forward, ports)
    }

    #[inline(always)]
    fn approach(hash: u64, other: u64) {
        approach6(hash, other);
    }

    #[inline(always)]
    fn leave_endpoint(forward: u32, ports: u32) {
        leave_endpoint6(forward, ports);
    }

    #[inline(always)]
    fn leave_ended(index: u32) {
        leave_ended6(index);
    }

    #[inline(always)]
    fn copy_slot(index: u32) -> u64 {
        copy_slot6(index)
    }

    #[inline(always)]
    fn trace(trail: &mut Trail<Self>) {
        trace6(trail);
    }

    #[inline(always)]
    fn half_open_place(index: u32) -> Option<*mut u64> {
        HALF_OPEN6.get_ptr_mut(index)
    }

    #[inline(always)]
    fn half_open_cursor(ring: u32) -> Option<*mut u32> {
        HALF_OPEN_CURSORS.get_ptr_mut(RINGS + ring)
    }
}
