//! Which endpoints may serve a connection, and which of them does.

use core::ptr::NonNull;

use crate::{
    abi::{
        Affinity, AffinityKey, CLASSES, EndpointLatency, EndpointLoad, Plan, SocketAffinityKey,
        plan_flag,
    },
    addr::Address,
    flow::{
        latency::{self, Standing},
        load,
        slots::Slots,
    },
    opaque::rolled,
    parse::Tuple,
    tables::Services,
};

/// Seconds for which an unconnected socket may be silent before its next datagram draws an endpoint
/// anew: as long as the kernel's connection tracking keeps a UDP flow that was answered.
const SILENT_SOCKET: u32 = 120;

/// How many endpoints are looked at for one that has room.
const LOOKS: usize = 64;

/// A set of endpoints as the kernel sees it: a contiguous part of `ENDPOINTS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub first: u32,
    pub count: u32,
}

impl Range {
    /// Whether there is nothing to pick from.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.count == 0
    }

    /// The index that a number draws, of which any value is as good.
    #[inline(always)]
    pub fn at(self, number: u32) -> u32 {
        let scaled = u64::from(number) * u64::from(self.count);
        self.first.wrapping_add((scaled >> 32) as u32)
    }

    /// The indexes of at most [`LOOKS`] endpoints, from the one at `index` on and then from the set's beginning.
    #[inline(always)]
    pub fn from(self, index: u32) -> impl Iterator<Item = u32> {
        let offset = index.wrapping_sub(self.first);
        let steps = rolled(LOOKS).map(|step| step as u32);
        steps
            .take_while(move |step| *step < self.count)
            .map(move |step| {
                // Without a branch, which the verifier would follow in every round.
                let ahead = offset.wrapping_add(step).checked_rem(self.count);
                self.first.wrapping_add(ahead.unwrap_or(0))
            })
    }

    /// The first of two indexes that is in the set.
    #[inline(always)]
    pub fn first_of(self, [one, two]: [u32; 2]) -> Option<u32> {
        let index = if self.has(one) { one } else { two };
        self.has(index).then_some(index)
    }

    /// Another endpoint of the set than the one at `index`, drawn by a number; the same if it has
    /// no other.
    #[inline(always)]
    pub fn other_than(self, index: u32, number: u32) -> u32 {
        let others = self.count.wrapping_sub(1);
        let Some(step) = number.checked_rem(others) else {
            return index;
        };
        let offset = index
            .wrapping_sub(self.first)
            .wrapping_add(step)
            .wrapping_add(1);
        match offset.checked_rem(self.count) {
            Some(offset) => self.first.wrapping_add(offset),
            None => index,
        }
    }

    #[inline(always)]
    fn has(self, index: u32) -> bool {
        index.wrapping_sub(self.first) < self.count
    }
}

/// The traffic policy in force for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Cluster,
    Local,
}

impl Policy {
    /// The policy with a number.
    #[inline(always)]
    pub fn from_u32(number: u32) -> Self {
        match number {
            0 => Self::Cluster,
            _ => Self::Local,
        }
    }
}

impl Plan {
    /// Whether any usable endpoint exists in the cluster.
    #[inline(always)]
    pub fn has_endpoints(&self) -> bool {
        !self.all().is_empty()
    }

    /// All endpoints of all classes.
    #[inline(always)]
    pub fn all(&self) -> Range {
        self.part(0, CLASSES)
    }

    /// The endpoints that serve connections under a policy: ready ones, else serving-terminating
    /// ones (KEP-1669), which topology hints do not apply to.
    #[inline(always)]
    pub fn set(&self, policy: Policy) -> Range {
        let (ready, terminating) = match policy {
            Policy::Local => (self.part(0, 2), self.part(4, 5)),
            Policy::Cluster if self.has(plan_flag::HINTED) => (self.part(1, 3), self.part(4, 6)),
            Policy::Cluster => (self.part(0, 4), self.part(4, 6)),
        };
        if ready.is_empty() { terminating } else { ready }
    }

    /// How many connections an endpoint that lookup tables pick may have open, in percent of the mean; 0
    /// means any number.
    #[inline(always)]
    pub fn balance_factor(&self) -> u32 {
        self.flags >> plan_flag::BALANCE_SHIFT
    }

    /// Whether a flag is set.
    #[inline(always)]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// The endpoints of classes `from..to`.
    #[inline(always)]
    fn part(&self, from: usize, to: usize) -> Range {
        let mut range = Range {
            first: self.first,
            count: 0,
        };
        let mut class = 0;
        while class < CLASSES {
            if class < from {
                range.first = range.first.wrapping_add(self.counts[class]);
            } else if class < to {
                range.count = range.count.wrapping_add(self.counts[class]);
            }
            class += 1;
        }
        range
    }
}

/// Picks an endpoint of a set for a new connection, by its index: the client's last one under
/// session affinity, else by lookup table or by `number`, of which any value is as good, and by how
/// many connections endpoints have open if that is asked for.
/// `None` only while the agent is changing the set.
#[inline(always)]
pub fn pick<A: Address, S: Services<A>>(
    services: &S,
    plan: &Plan,
    policy: Policy,
    tuple: &Tuple<A>,
    number: u32,
) -> Option<u32> {
    let set = plan.set(policy);
    if plan.affinity_seconds == 0 {
        return fresh(services, plan, policy, set, tuple, number);
    }
    u32::try_from(services.sticky_index(plan, policy, tuple)).ok()
}

/// Picks an endpoint for a datagram of an unconnected socket, which sees no flow record, by its index:
/// that of the socket's earlier ones to the Service, as long as it serves and the socket is not silent.
/// Says whether it is that one. If its endpoint is full, and the socket does not `hold` a connection there,
/// it goes to another one for good. Not for session affinity, under which whatever a client asks by goes
/// to one endpoint anyway.
///
/// A rule of kube-proxy's, where connection tracking remembers the endpoint by the socket's port.
#[inline(always)]
pub fn pick_for_socket<A: Address, S: Services<A>>(
    services: &S,
    plan: &Plan,
    policy: Policy,
    tuple: &Tuple<A>,
    cookie: u64,
    holds: impl FnOnce(u32) -> bool,
) -> Option<(u32, bool)> {
    let now = services.jiffies();
    let key = SocketAffinityKey {
        cookie,
        service: plan.service,
        set: policy as u32,
    };
    let known = services.socket_affinity(&key);
    let known = remembered(services, plan.all(), known, SILENT_SOCKET, now);
    let index = match known {
        Some((index, _)) => index,
        None => {
            let number = services.random();
            let index = fresh(services, plan, policy, plan.set(policy), tuple, number)?;
            within_bound(services, plan, policy, index)
        }
    };
    let first = index;
    let index = match plan.most == 0 || holds(services.endpoint(first)?.id) {
        true => first,
        false => with_room(services, plan, policy, first),
    };
    let known = known.filter(|_| index == first);
    // Not with every datagram.
    let is_recent = known.is_some_and(|(_, age)| age < services.config().hz);
    if !is_recent {
        services.remember_socket_affinity(&key, &affinity_to(services, index, now)?);
    }
    Some((index, known.is_some()))
}

/// The endpoint at an index, which [`pick`] has found for a new connection or, where a lookup table has led
/// there and its load is bounded, another one that is [`balanced`]. A client with session affinity stays where
/// it is.
///
/// Not for a connection in progress, whose flow was lost: most likely it began where the table leads.
#[inline(always)]
pub fn within_bound<A: Address, S: Services<A>>(
    services: &S,
    plan: &Plan,
    policy: Policy,
    index: u32,
) -> u32 {
    match plan.balance_factor() {
        factor if factor != 0 && plan.affinity_seconds == 0 => {
            services.balanced(plan.set(policy), index, factor)
        }
        _ => index,
    }
}

/// The endpoint at an index or, where each may have so many connections, the next one of its set that has
/// room. If none has, it is for those who count to say so.
#[inline(always)]
pub fn with_room<A: Address, S: Services<A>>(
    services: &S,
    plan: &Plan,
    policy: Policy,
    index: u32,
) -> u32 {
    if plan.most == 0 || plan.has(plan_flag::EXEMPT) {
        return index;
    }
    let set = plan.set(policy);
    let found = services.with_room(set, index, plan.most);
    if set.has(found) { found } else { index }
}

/// Sends a client's later connections to another endpoint than [`pick`] remembers.
#[inline(never)]
pub fn remember<A: Address, S: Services<A>>(
    services: &S,
    plan: &Plan,
    policy: Policy,
    tuple: &Tuple<A>,
    endpoint: u32,
) {
    let key = client(plan, policy, tuple);
    let affinity = Affinity {
        endpoint,
        jiffies: services.jiffies(),
    };
    services.remember_affinity(&key, &affinity);
}

/// Picks under session affinity, and remembers the pick: its index, or a number that is none.
#[inline(always)]
pub fn sticky_index<A: Address, S: Services<A>>(
    services: &S,
    plan: &Plan,
    policy: Policy,
    tuple: &Tuple<A>,
) -> u64 {
    sticky(services, plan, policy, tuple).map_or(u64::MAX, u64::from)
}

#[inline(always)]
fn sticky<A: Address, S: Services<A>>(
    services: &S,
    plan: &Plan,
    policy: Policy,
    tuple: &Tuple<A>,
) -> Option<u32> {
    let set = plan.set(policy);
    let now = services.jiffies();
    let mut key = client(plan, policy, tuple);
    let timeout = plan.affinity_seconds;
    let mut picked = remembered(services, set, services.affinity(&key), timeout, now);
    if picked.is_none() {
        // The other set's endpoint counts as well, if it belongs to this set: affinity is per
        // service port, whatever address the client came by.
        key.set ^= 1;
        picked = remembered(services, set, services.affinity(&key), timeout, now);
        key.set ^= 1;
    }
    let index = match picked {
        Some((index, _)) => index,
        None => fresh(services, plan, policy, set, tuple, services.random())?,
    };
    services.remember_affinity(&key, &affinity_to(services, index, now)?);
    Some(index)
}

/// A client of a service port.
#[inline(always)]
fn client<A: Address>(plan: &Plan, policy: Policy, tuple: &Tuple<A>) -> AffinityKey {
    AffinityKey {
        service: plan.service,
        set: policy as u32,
        client: tuple.source.to_mapped(),
    }
}

/// What is remembered of the endpoint at an index.
#[inline(always)]
fn affinity_to<A: Address, S: Services<A>>(services: &S, index: u32, now: u32) -> Option<Affinity> {
    Some(Affinity {
        endpoint: services.endpoint(index)?.id,
        jiffies: now,
    })
}

/// The index of a remembered endpoint, if that was at most so many seconds ago and it is in the set;
/// and how many jiffies ago that was.
#[inline(always)]
fn remembered<A: Address, S: Services<A>>(
    services: &S,
    set: Range,
    affinity: Option<Affinity>,
    seconds: u32,
    now: u32,
) -> Option<(u32, u32)> {
    let affinity = affinity?;
    let age = now.wrapping_sub(affinity.jiffies);
    if age > seconds.saturating_mul(services.config().hz) {
        return None;
    }
    let index = set.first_of(services.indexes_of(affinity.endpoint))?;
    (services.endpoint(index)?.id == affinity.endpoint).then_some((index, age))
}

/// An endpoint for a client without history.
#[inline(always)]
fn fresh<A: Address, S: Services<A>>(
    services: &S,
    plan: &Plan,
    policy: Policy,
    set: Range,
    tuple: &Tuple<A>,
    number: u32,
) -> Option<u32> {
    let by_load = plan.has(plan_flag::LEAST_CONNECTIONS);
    let by_latency = plan.has(plan_flag::LEAST_LATENCY);
    if plan.maglev_rows == 0 {
        let one = set.at(number);
        return Some(match by_load {
            // The first by the number's upper bits, the second by the lower ones.
            true => services.less_loaded(one, set.other_than(one, number), by_latency),
            false => one,
        });
    }
    let table = match policy {
        Policy::Cluster => plan.maglev_cluster,
        Policy::Local => plan.maglev_local,
    };
    let at = |number: u32| {
        let row = number.checked_rem(plan.maglev_rows)?;
        let position = services.maglev(table.wrapping_add(row))?;
        Some(plan.first.wrapping_add(u32::from(position)))
    };
    if !plan.has(plan_flag::DRAWN) {
        return at(maglev_hash(tuple));
    }
    let one = at(number)?;
    match by_load {
        true => Some(services.less_loaded(one, at(number.rotate_left(16))?, by_latency)),
        false => Some(one),
    }
}

/// The endpoint at an index of a set or, where that has more connections open than `factor` percent of the
/// mean for its weight, the next one that has not: consistent hashing with bounded loads (Mirrokni,
/// Thorup, Zadimoghaddam, 2016). The mean is that of the [`LOOKS`] endpoints from there on, with the
/// connection to come. Some endpoint has no more than the mean, so there is one if `factor` is above 100.
#[inline(always)]
pub fn balanced<A: Address, T: Services<A> + Slots<A>>(
    tables: &T,
    set: Range,
    index: u32,
    factor: u32,
) -> u32 {
    if open_at(tables, index) == 0 {
        return index;
    }
    let (mut open, mut weight) = (1, 0);
    for index in set.from(index) {
        let load = load_at(tables, index);
        open += u64::from(load::open(load));
        weight += load::weight(load);
    }
    for index in set.from(index) {
        let load = load_at(tables, index);
        let its = u64::from(load::open(load)) * 100 * weight;
        if its < u64::from(factor) * open * load::weight(load) {
            return index;
        }
    }
    index
}

/// Of two endpoints at these indexes, which were drawn at random, that of the one with fewer
/// connections open for its weight, or of the one [that answers sooner](latency::is_quicker). Two come
/// close to the best of all (Mitzenmacher, 2001), and no endpoint draws all CPUs at once.
#[inline(always)]
pub fn less_loaded<A: Address, T: Services<A> + Slots<A>>(
    tables: &T,
    one: u32,
    other: u32,
    by_latency: bool,
) -> u32 {
    let is_better = match by_latency {
        true => {
            let standing = |index| Standing {
                load: load_at(tables, index),
                latency: latency_at(tables, index),
            };
            latency::is_quicker(standing(other), standing(one), tables.now())
        }
        false => load::is_less(load_at(tables, other), load_at(tables, one)),
    };
    if is_better { other } else { one }
}

/// The connections that the endpoint at an index has open.
#[inline(always)]
pub(crate) fn open_at<A: Address, T: Services<A> + Slots<A>>(tables: &T, index: u32) -> u32 {
    load::open(load_at(tables, index))
}

#[inline(always)]
fn load_at<A: Address, T: Services<A> + Slots<A>>(
    tables: &T,
    index: u32,
) -> Option<NonNull<EndpointLoad>> {
    tables.endpoint_load(tables.endpoint(index)?.id)
}

#[inline(always)]
fn latency_at<A: Address, T: Services<A> + Slots<A>>(
    tables: &T,
    index: u32,
) -> Option<NonNull<EndpointLatency>> {
    tables.endpoint_latency(tables.endpoint(index)?.id)
}

/// The hash that Maglev tables are looked up with. It has no secret: all nodes must agree.
#[inline(always)]
pub fn maglev_hash<A: Address>(tuple: &Tuple<A>) -> u32 {
    const SEED: [u64; 2] = [0x6e6f_6465_2d6c_6221, 0x6d61_676c_6576_2121];
    (crate::flow::table::hash(tuple, SEED) >> 16) as u32
}
