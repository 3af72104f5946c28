//! Changes the sizes of the maps that hold Services, while traffic runs.
//!
//! A map of another size is another map. The present maps are pinned as `NAME_BEFORE`, and the new
//! ones, in their place, get their contents before any program has them. Then the agent exchanges
//! the programs on all devices and sockets. Until that is done the present maps are not written to,
//! so programs with either maps decide alike. What the earlier programs have counted meanwhile is
//! added at the end.
//!
//! `SERVICES_BEFORE` is pinned first and unpinned first. An agent that finds it takes the change
//! back.

use std::{
    mem::offset_of,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use aya::Pod;
use lb_common::{
    abi::{
        ClusterIp, Endpoint, EndpointLatency, EndpointLoad, EndpointMemory, EndpointState,
        Frontend, FrontendKey, Latencies, MAGLEV_ROWS, MaglevRows, Plan, Service, ServiceFlows,
        ServiceStats, Shortages,
    },
    addr::{Ip4, Ip6},
    flow::latency::BUCKETS,
};
use lb_datapath::{
    Pins,
    bpf::{BatchMap, MappedArray, synchronize_rcu},
    load::{BEFORE, pinned_entries},
    maps::SourceKey,
    pins::PinError,
};

use super::{
    resize::Programs,
    sizes::{SERVICE_MAPS, ServiceSizes, Sizes, is_by_endpoint},
};

/// Entries that are read and written at a time.
const CHUNK: usize = 4096;

/// Programs to attach, and how large the maps of Services are that they use.
pub(super) struct Started {
    pub programs: Programs,
    pub sizes: Sizes,
    /// The change that these programs are part of; `None` if there is none.
    pub refit: Option<Refit>,
    /// Why the maps do not have the sizes wanted; `None` if they do.
    pub kept: Option<String>,
}

/// A change of the maps' sizes under way.
pub(super) struct Refit {
    /// The sizes before.
    present: ServiceSizes,
    counted: Vec<Box<dyn Counted>>,
    began: Instant,
}

/// Loads programs around maps of the sizes wanted. If the pinned maps have others, new ones take
/// their place, unless these cannot be made or have no room for what is in use.
///
/// # Errors
///
/// If pins cannot be read or changed, or `load` fails with the present maps as well.
pub(super) fn begin(
    pins: &Pins,
    wanted: Sizes,
    load: impl Fn(Sizes) -> anyhow::Result<Programs>,
) -> anyhow::Result<Started> {
    take_back(pins)?;
    let mut present = wanted.service_maps;
    for (map, entries) in SERVICE_MAPS.into_iter().zip(&mut present) {
        // Those that an earlier version has not had are made as they are wanted.
        *entries = pinned_entries(pins, map)?.unwrap_or(*entries);
    }
    if present == wanted.service_maps {
        return Ok(Started::steady(load(wanted)?, wanted, None));
    }
    tracing::info!("changing the sizes of the maps of Services");
    let kept = match prepare(pins, present, wanted, &load) {
        Ok(started) => return Ok(started),
        Err(error) => kept(&format!("{error:#}")),
    };
    take_back(pins)?;
    let sizes = wanted.with_service_maps(present);
    Ok(Started::steady(load(sizes)?, sizes, Some(kept)))
}

/// Makes new maps, with programs for them and the contents of the present ones.
fn prepare(
    pins: &Pins,
    present: ServiceSizes,
    wanted: Sizes,
    load: impl Fn(Sizes) -> anyhow::Result<Programs>,
) -> anyhow::Result<Started> {
    let began = Instant::now();
    check_room(pins, &wanted.service_maps)?;
    for map in SERVICE_MAPS {
        pins.rename_map(map, &before(map))?;
    }
    let programs = load(wanted)?;
    let counted = copy(pins)?;
    Ok(Started {
        programs,
        sizes: wanted,
        refit: Some(Refit {
            present,
            counted,
            began,
        }),
        kept: None,
    })
}

/// Gives the present maps their places again, if a change is not complete.
fn take_back(pins: &Pins) -> Result<(), PinError> {
    let [first, rest @ ..] = SERVICE_MAPS;
    if pins.maps()?.contains(&before(first)) {
        // The first one says that the others are to follow.
        for map in rest.into_iter().chain([first]) {
            pins.rename_map(&before(map), map)?;
        }
    }
    unpin(pins)
}

/// Removes what is left of the maps before.
fn unpin(pins: &Pins) -> Result<(), PinError> {
    for map in SERVICE_MAPS {
        pins.remove_map(&before(map))?;
    }
    Ok(())
}

fn before(map: &str) -> String {
    format!("{map}{BEFORE}")
}

fn kept(why: &str) -> String {
    let kept = format!("the maps of Services keep their sizes: {why}");
    tracing::warn!("{kept}");
    kept
}

impl Started {
    fn steady(programs: Programs, sizes: Sizes, kept: Option<String>) -> Self {
        Self {
            programs,
            sizes,
            refit: None,
            kept,
        }
    }
}

impl Refit {
    /// Takes the change back, because the programs of `device` cannot be exchanged. The programs
    /// that are returned have the present maps, and are to be attached everywhere.
    ///
    /// # Errors
    ///
    /// As [`begin`].
    pub fn give_up(
        self,
        pins: &Pins,
        wanted: Sizes,
        device: &str,
        load: impl Fn(Sizes) -> anyhow::Result<Programs>,
    ) -> anyhow::Result<Started> {
        let kept = kept(&format!("programs on {device} cannot be exchanged"));
        take_back(pins)?;
        let sizes = wanted.with_service_maps(self.present);
        Ok(Started::steady(load(sizes)?, sizes, Some(kept)))
    }

    /// Ends the change, once all programs have the new maps. Returns how long it took.
    ///
    /// # Errors
    ///
    /// If the maps before cannot be unpinned.
    pub fn finish(self, pins: &Pins) -> Result<Duration, PinError> {
        // The exchanged programs may still run for a moment.
        synchronize_rcu();
        for counted in self.counted {
            counted.add_up();
        }
        unpin(pins)?;
        Ok(self.began.elapsed())
    }
}

/// Copies the contents of the maps before into those in their place.
fn copy(pins: &Pins) -> anyhow::Result<Vec<Box<dyn Counted>>> {
    copy_entries::<FrontendKey<Ip4>, Frontend>(pins, "FRONTENDS4")?;
    copy_entries::<FrontendKey<Ip6>, Frontend>(pins, "FRONTENDS6")?;
    copy_entries::<SourceKey, u8>(pins, "SOURCE_RANGES")?;
    copy_entries::<Ip6, ClusterIp>(pins, "CLUSTER_IPS")?;
    copy_elements::<Service>(pins, "SERVICES", &[])?;
    copy_elements::<Plan>(pins, "PLANS", &[])?;
    copy_elements::<Endpoint>(pins, "ENDPOINTS", &[])?;
    copy_elements::<MaglevRows>(pins, "MAGLEV", &[])?;
    copy_elements::<EndpointLatency>(pins, "ENDPOINT_LATENCIES", &[])?;
    let counted = [
        copy_elements::<ServiceStats>(
            pins,
            "SERVICE_STATS",
            &[
                Word::Long(offset_of!(ServiceStats, connections)),
                Word::Long(offset_of!(ServiceStats, rejected)),
                Word::Long(offset_of!(ServiceStats, dropped)),
                Word::Short(offset_of!(ServiceStats, half_open)),
                Word::Short(offset_of!(ServiceStats, gave_way)),
            ],
        )?,
        copy_elements::<Shortages>(
            pins,
            "SERVICE_SHORTAGES",
            &[
                Word::Long(offset_of!(Shortages, flow_table_full)),
                Word::Long(offset_of!(Shortages, snat_ports_exhausted)),
            ],
        )?,
        copy_elements::<ServiceFlows>(
            pins,
            "SERVICE_FLOWS",
            &[Word::Short(offset_of!(ServiceFlows, flows))],
        )?,
        copy_elements::<EndpointState>(
            pins,
            "ENDPOINT_STATES",
            &[Word::Long(offset_of!(EndpointState, connections))],
        )?,
        copy_elements::<EndpointMemory>(
            pins,
            "ENDPOINT_MEMORY",
            &[Word::Short(offset_of!(EndpointMemory, ports))],
        )?,
        copy_elements::<EndpointLoad>(
            pins,
            "ENDPOINT_LOADS",
            &[Word::Short(offset_of!(EndpointLoad, open))],
        )?,
        copy_elements::<Latencies>(pins, "SERVICE_LATENCIES", &LATENCIES)?,
    ];
    Ok(counted.into_iter().flatten().collect())
}

/// Copies the entries of a map of keys, if there was one.
fn copy_entries<K: Pod, V: Pod>(pins: &Pins, map: &str) -> anyhow::Result<()> {
    if pinned_entries(pins, &before(map))?.is_none() {
        return Ok(());
    }
    let (keys, values): (Vec<_>, Vec<_>) = entries::<K, V>(pins, &before(map))?.into_iter().unzip();
    let to = BatchMap::from_pin(&pins.map(map))?;
    for (keys, values) in keys.chunks(CHUNK).zip(values.chunks(CHUNK)) {
        to.update(keys, values)?;
    }
    Ok(())
}

/// Copies the elements of an array, in which programs count the `words`. `None` if there was no
/// such map, or none is counted.
fn copy_elements<T: Pod + Send + Sync + 'static>(
    pins: &Pins,
    map: &str,
    words: &'static [Word],
) -> anyhow::Result<Option<Box<dyn Counted>>> {
    if pinned_entries(pins, &before(map))?.is_none() {
        return Ok(None);
    }
    let from = array::<T>(pins, &before(map))?;
    let to = array::<T>(pins, map)?;
    let len = from.len().min(to.len());
    if words.is_empty() {
        for (index, element) in from.iter(0..len) {
            to.write(index, &element);
        }
        return Ok(None);
    }
    let copied = MappedArray::in_memory(len);
    for (index, element) in from.iter(0..len) {
        copied.write(index, &element);
        to.write(index, &element);
    }
    Ok(Some(Box::new(Counters {
        from,
        copied,
        to,
        words,
    })))
}

/// A number that programs count in an element: its place in bytes, and whether it has four of them
/// or eight.
#[derive(Clone, Copy)]
enum Word {
    Short(usize),
    Long(usize),
}

/// The numbers of [`Latencies`].
const LATENCIES: [Word; BUCKETS] = {
    let mut words = [Word::Short(offset_of!(Latencies, buckets)); BUCKETS];
    let mut bucket = 0;
    while bucket < BUCKETS {
        words[bucket] = Word::Short(offset_of!(Latencies, buckets) + bucket * size_of::<u32>());
        bucket += 1;
    }
    words
};

/// What is counted in an array while programs are exchanged.
trait Counted {
    /// Adds what programs have counted in the array before since it was copied.
    fn add_up(&self);
}

struct Counters<T> {
    from: MappedArray<T>,
    /// As it was when it was copied.
    copied: MappedArray<T>,
    to: MappedArray<T>,
    words: &'static [Word],
}

impl<T: Pod> Counted for Counters<T> {
    fn add_up(&self) {
        let all = [&self.from, &self.copied, &self.to];
        for index in 0..self.copied.len() {
            for word in self.words {
                match *word {
                    Word::Short(at) => {
                        let [from, copied, to] = all.map(|array| array.u32_at(index, at));
                        let more = from.load(Relaxed).wrapping_sub(copied.load(Relaxed));
                        to.fetch_add(more, Relaxed);
                    }
                    Word::Long(at) => {
                        let [from, copied, to] = all.map(|array| array.u64_at(index, at));
                        let more = from.load(Relaxed).wrapping_sub(copied.load(Relaxed));
                        to.fetch_add(more, Relaxed);
                    }
                }
            }
        }
    }
}

/// Fails if what is in use of the present maps would not fit into maps of these sizes.
fn check_room(pins: &Pins, sizes: &ServiceSizes) -> anyhow::Result<()> {
    let used = InUse::read(pins)?;
    for (map, entries) in SERVICE_MAPS.into_iter().zip(*sizes) {
        let used = used.of(map);
        ensure!(
            used <= entries,
            "map {map} is in use up to entry {used}, and is to have {entries}. Choose a larger size, or \
             start node-lb again when there are fewer Services or endpoints"
        );
    }
    Ok(())
}

/// Up to which entries maps are in use; of maps with keys, how many there are.
#[derive(Debug, Default)]
struct InUse {
    services: u32,
    plans: u32,
    endpoints: u32,
    endpoint_ids: u32,
    maglev: u32,
    frontends4: u32,
    frontends6: u32,
    source_ranges: u32,
    cluster_ips: u32,
}

impl InUse {
    fn read(pins: &Pins) -> anyhow::Result<Self> {
        let services = array::<Service>(pins, "SERVICES")?;
        let plans = array::<Plan>(pins, "PLANS")?;
        let endpoints = array::<Endpoint>(pins, "ENDPOINTS")?;
        let mut used = Self {
            frontends4: count::<FrontendKey<Ip4>, Frontend>(pins, "FRONTENDS4")?,
            frontends6: count::<FrontendKey<Ip6>, Frontend>(pins, "FRONTENDS6")?,
            source_ranges: count::<SourceKey, u8>(pins, "SOURCE_RANGES")?,
            cluster_ips: count::<Ip6, ClusterIp>(pins, "CLUSTER_IPS")?,
            ..Self::default()
        };
        let published = services.iter(1..services.len());
        for (id, service) in published.filter(|(_, service)| service.plan != 0) {
            let Some((_, plan)) = plans.iter(service.plan..plans.len()).next() else {
                continue;
            };
            used.add(id, service.plan, &plan, &endpoints);
        }
        Ok(used)
    }

    fn add(&mut self, id: u32, number: u32, plan: &Plan, endpoints: &MappedArray<Endpoint>) {
        let up_to = |mark: &mut u32, end: u32| *mark = end.max(*mark);
        up_to(&mut self.services, id + 1);
        up_to(&mut self.plans, number + 1);
        let count = plan
            .counts
            .iter()
            .fold(0, |sum: u32, n| sum.saturating_add(*n));
        let slots = plan.first..plan.first.saturating_add(count);
        if count != 0 {
            up_to(&mut self.endpoints, slots.end);
        }
        for (_, endpoint) in endpoints.iter(slots) {
            up_to(&mut self.endpoint_ids, endpoint.id.saturating_add(1));
        }
        let elements = plan.maglev_rows.div_ceil(MAGLEV_ROWS);
        for row in [plan.maglev_cluster, plan.maglev_local] {
            // What does not lie in the map stands for no table.
            if elements != 0 && row != u32::MAX {
                up_to(&mut self.maglev, row / MAGLEV_ROWS + elements);
            }
        }
    }

    fn of(&self, map: &str) -> u32 {
        match map {
            "PLANS" => self.plans,
            "ENDPOINTS" => self.endpoints,
            _ if is_by_endpoint(map) => self.endpoint_ids,
            "MAGLEV" => self.maglev,
            "FRONTENDS4" => self.frontends4,
            "FRONTENDS6" => self.frontends6,
            "SOURCE_RANGES" => self.source_ranges,
            "CLUSTER_IPS" => self.cluster_ips,
            _ => self.services,
        }
    }
}

fn array<T: Pod>(pins: &Pins, pin: &str) -> anyhow::Result<MappedArray<T>> {
    MappedArray::from_pin(&pins.map(pin)).with_context(|| format!("cannot read {pin}"))
}

fn entries<K: Pod, V: Pod>(pins: &Pins, pin: &str) -> anyhow::Result<Vec<(K, V)>> {
    let map = BatchMap::from_pin(&pins.map(pin));
    let map = map.with_context(|| format!("cannot read {pin}"))?;
    map.entries().with_context(|| format!("cannot read {pin}"))
}

/// How many entries a map of keys has; none if an earlier version has not had it.
fn count<K: Pod, V: Pod>(pins: &Pins, pin: &str) -> anyhow::Result<u32> {
    match pinned_entries(pins, pin)? {
        Some(_) => Ok(entries::<K, V>(pins, pin)?.len() as u32),
        None => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_with_either_map_have_counted_is_added_up() {
        let counted = |connections, half_open| ServiceStats {
            connections,
            half_open,
            ..ServiceStats::default()
        };
        let array = |stats: ServiceStats| {
            let array = MappedArray::in_memory(2);
            array.write(1, &stats);
            array
        };
        let counters = Counters {
            copied: array(counted(100, 5)),
            // Three more connections, and two half-open flows less.
            from: array(counted(103, 3)),
            to: array(counted(110, 6)),
            words: &[
                Word::Long(offset_of!(ServiceStats, connections)),
                Word::Short(offset_of!(ServiceStats, half_open)),
            ],
        };
        counters.add_up();
        assert_eq!(counters.to.read(1), counted(113, 4));
        assert_eq!(counters.to.read(0), ServiceStats::default());
    }
}
