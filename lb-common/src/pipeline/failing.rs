//! Endpoints that fail: they refuse connections, or are silent. New connections avoid them for some
//! seconds if the set has another endpoint; then one connection tries again.
//!
//! A client can have an endpoint avoided by SYNs that the endpoint does not answer, for example
//! because a network policy keeps the client away from it. The endpoint is avoided until it answers
//! another client. So an endpoint is only avoided where another one can take its place.

use core::ptr::NonNull;

use crate::{
    abi::{EndpointMemory, config_flag, plan_flag},
    addr::Address,
    atomic,
    flow::{Flow, Record, stage::idle},
    opaque::{choose, mask_unless_zero, rolled},
    select::{Policy, Range},
    tables::Tables,
};

/// Failures in a row from which on an endpoint is avoided.
pub const LIMIT: u32 = 3;
/// Ticks until a connection tries it again: five seconds at least.
const AVOIDED: u32 = 40;
/// How many other endpoints are drawn for a connection if its first one fails; the first that does
/// not fail is used.
const DRAWS: usize = 3;

/// How an endpoint has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It has not answered a SYN. The cause may be at the client.
    Silent,
    /// It has refused one: nothing listens there.
    Refused,
}

/// Whether a SYN should go to another endpoint than the one that was drawn, if one of them does not
/// fail: because the client has just got no answer from it, or because it is avoided. `left` is the
/// endpoint that gave the client no answer.
#[inline(always)]
pub(super) fn turns_away<A: Address, T: Tables<A>>(tables: &T, endpoint: u32, left: u32) -> bool {
    // For a client that has waited before, one failure is enough.
    let limit = if left == 0 { LIMIT } else { 1 };
    endpoint == left || tables.is_avoided(endpoint, limit)
}

/// Index of another endpoint than the one at `index`: one that does not fail, if one is found; or
/// else any, for a client that has just left the one at `index`; or else the same.
#[inline(always)]
pub fn elsewhere<A: Address, T: Tables<A>>(tables: &T, set: Range, index: u32, left: u32) -> u32 {
    let mut found = index;
    for _ in rolled(DRAWS) {
        let other = set.other_than(index, tables.random());
        let Some(endpoint) = tables.endpoint(other) else {
            break;
        };
        if !turns_away(tables, endpoint.id, left) {
            return other;
        }
        // Without a branch: the verifier would look at all combinations.
        let differ = |one: u32, other: u32| mask_unless_zero(one ^ other) as u32;
        found = choose(differ(left, 0) & differ(endpoint.id, left), other, found);
    }
    found
}

/// Whether a new connection should avoid an endpoint that has failed often enough. When it is time
/// to try the endpoint again, this connection does, and no other for a while.
#[inline(always)]
pub fn is_avoided<A: Address, T: Tables<A>>(tables: &T, endpoint: u32, limit: u32) -> bool {
    let Some(memory) = memory(tables, endpoint) else {
        return false;
    };
    let (failures, failed_at) = read(memory);
    let now = tables.now();
    if failures < limit || idle(failed_at, now) < AVOIDED {
        return failures >= limit;
    }
    // SAFETY: a word of a map's element, changed by compare-and-swap or where any value will do.
    unsafe { !atomic::compare_and_swap(&raw mut (*memory.as_ptr()).failed_at, failed_at, now) }
}

/// Notes that an endpoint has failed.
#[inline(always)]
pub(super) fn note_failure<A: Address, T: Tables<A>>(tables: &T, endpoint: u32, failure: Failure) {
    let Some(memory) = memory(tables, endpoint) else {
        return;
    };
    let weight = match failure {
        Failure::Silent => 1,
        Failure::Refused => LIMIT,
    };
    // SAFETY: words of a map's element: one that any value will do for, and a counter.
    unsafe {
        (&raw mut (*memory.as_ptr()).failed_at).write_volatile(tables.now());
        atomic::fetch_add(&raw mut (*memory.as_ptr()).failures, weight);
    }
}

/// Notes that an endpoint has answered a SYN.
#[inline(always)]
pub(super) fn note_success<A: Address, T: Tables<A>>(tables: &T, endpoint: u32) {
    if let Some(memory) = memory(tables, endpoint)
        && read(memory).0 != 0
    {
        // SAFETY: a word of a map's element, of which any value will do.
        unsafe { (&raw mut (*memory.as_ptr()).failures).write_volatile(0) };
    }
}

/// Notes that the endpoint of a client's direction has refused the connection. Returns whether to
/// keep that from the client, because its next SYN finds an endpoint that may serve.
#[inline(never)]
pub(super) fn is_withheld<A: Address, T: Tables<A>>(tables: &T, forward: Record<A>) -> bool {
    // SAFETY: records stay valid until every program that can see them ends.
    let flow = unsafe { forward.as_ref() };
    if flow.is_foreign() || memory(tables, flow.detail).is_none() {
        return false;
    }
    note_failure(tables, flow.detail, Failure::Refused);
    has_alternative(tables, flow)
}

/// Whether a service has another endpoint than a flow's, which is not avoided itself.
#[inline(always)]
fn has_alternative<A: Address, T: Tables<A>>(tables: &T, flow: &Flow<A>) -> bool {
    let Some(plan) = tables.plan(flow.service_id()) else {
        return false;
    };
    // The policy by which it was chosen is not known here. The smaller set is safe.
    let policy = match plan.has(plan_flag::INTERNAL_LOCAL | plan_flag::EXTERNAL_LOCAL) {
        true => Policy::Local,
        false => Policy::Cluster,
    };
    let set = plan.set(policy);
    let Some(index) = set.first_of(tables.indexes_of(flow.detail)) else {
        return !set.is_empty();
    };
    for _ in rolled(DRAWS) {
        let other = set.other_than(index, tables.random());
        let Some(endpoint) = tables.endpoint(other).filter(|_| other != index) else {
            return false;
        };
        let (failures, failed_at) = memory(tables, endpoint.id).map_or((0, 0), read);
        if failures < LIMIT || idle(failed_at, tables.now()) >= AVOIDED {
            return true;
        }
    }
    false
}

/// What is remembered of an endpoint, if failing ones are avoided.
#[inline(always)]
fn memory<A: Address, T: Tables<A>>(tables: &T, endpoint: u32) -> Option<NonNull<EndpointMemory>> {
    if tables.config().flags & config_flag::AVOID_FAILING == 0 || endpoint == 0 {
        return None;
    }
    tables.endpoint_memory(endpoint)
}

/// Failures in a row, and the tick of the latest.
#[inline(always)]
fn read(memory: NonNull<EndpointMemory>) -> (u32, u32) {
    let memory = memory.as_ptr();
    // SAFETY: words of a map's element, changed by other CPUs.
    unsafe {
        (
            (&raw const (*memory).failures).read_volatile(),
            (&raw const (*memory).failed_at).read_volatile(),
        )
    }
}
