//! Others write to the maps: it is found, and put right.

use lb_common::{
    abi::{self, CLASSES, ClusterIp, Decision},
    flow::place::LevelSeats,
};
use proptest::{collection::vec, prelude::*};

use super::{
    fake::State,
    properties::service,
    schemas::{ANYONE, FIRST, level, schema},
    *,
};
use crate::{
    config::AdmissionMode,
    map_writer::{Findings, Wrong, tables::NO_TABLE},
};

impl Bench {
    /// Compares everything once.
    pub(super) fn verify(&mut self) -> Findings {
        let mut round = self.writer.begin_round();
        while self.writer.verify_next(&mut round) {}
        round.findings().clone()
    }

    /// All that a round compares.
    fn contents(&self) -> String {
        let state = self.kernel.state();
        format!(
            "{:?}",
            (
                (&state.frontends, &state.cluster_ips, &state.service_ranges),
                (&state.services, &state.plans, &state.endpoints),
                (&state.maglev, &state.source_ranges),
                (&state.destination_classes, &state.decisions),
                &state.source_classes,
            )
        )
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// 256 times up to eight faults at once, of all kinds.
    #[test]
    fn whatever_others_write_is_found_and_put_right(
        specs in vec(service(), 1..8),
        faults in vec((0..KINDS, any::<u32>(), any::<u32>()), 1..9),
    ) {
        let mut bench = Bench::new(ROOMY);
        bench.round(&specs, &[]);
        let text = [
            level("one"),
            schema("first", "one", "{kind: CIDR, cidr: {cidr: 10.1.0.0/16}}", FIRST),
            schema("second", "one", ANYONE, FIRST),
        ];
        bench.admit(&text, AdmissionMode::Enforce).unwrap();
        prop_assert_eq!(bench.verify().described, vec![]);
        let (before, views) = (bench.contents(), bench.kernel.state().views());

        bench.kernel.state().is_spoilt = true;
        let meant = Meant::all(&bench);
        for (kind, at, value) in faults {
            let of = &meant[value as usize % meant.len()];
            spoil(&mut bench.kernel.state(), of, kind, at as usize, value);
        }
        let are_placed = meant.iter().all(|meant| meant.are_placed(&bench.kernel.state()));
        let is_spoilt = bench.contents() != before || !are_placed;
        let found = bench.verify();
        prop_assert_eq!(found.differences > 0, is_spoilt, "{:?}", found);

        // What was foreign has gone, and may have made the room for what was missing.
        let again = bench.verify();
        prop_assert_eq!(&again.described, &vec![], "after {:?}", found.described);
        prop_assert!(bench.contents() == before);
        prop_assert_eq!(bench.kernel.state().views(), views);
    }
}

/// Kinds of faults.
const KINDS: u8 = 15;

/// What a service port has in the maps, as it was meant: an earlier fault may have led astray.
struct Meant {
    id: u32,
    plan: u32,
    content: abi::Plan,
    endpoints: Vec<abi::Endpoint>,
    lane: usize,
}

impl Meant {
    fn all(bench: &Bench) -> Vec<Self> {
        let mut programmed: Vec<_> = bench.writer.programmed.iter().collect();
        programmed.sort_unstable_by_key(|(key, _)| *key);
        let meant = programmed.into_iter().map(|(_, programmed)| Self {
            id: programmed.id,
            plan: programmed.plan,
            content: programmed.content,
            endpoints: programmed.endpoints.to_vec(),
            lane: usize::from(programmed.lane),
        });
        meant.collect()
    }

    /// Whether its endpoints have the positions that they should.
    fn are_placed(&self, state: &State) -> bool {
        let endpoints = (self.content.first..).zip(&self.endpoints);
        let position = |id: u32| state.endpoint_states[id as usize].slots[self.lane];
        endpoints
            .into_iter()
            .all(|(slot, endpoint)| position(endpoint.id) == slot)
    }
}

/// Makes a fault, if there is anything to spoil.
fn spoil(state: &mut State, meant: &Meant, kind: u8, at: usize, value: u32) -> Option<()> {
    let Meant {
        id,
        plan,
        content,
        endpoints,
        lane,
    } = meant;
    let flip = 1 << (value % 32);
    let endpoint = |at: usize| endpoints.get(at % endpoints.len().max(1));
    match kind {
        0 => state.services[*id as usize].plan ^= flip,
        1 => state.services[*id as usize].name_hash ^= flip,
        2 => {
            let plan = &mut state.plans[*plan as usize];
            let fields = [
                &mut plan.first,
                &mut plan.flags,
                &mut plan.affinity_seconds,
                &mut plan.source_set,
                &mut plan.maglev_rows,
                &mut plan.maglev_cluster,
                &mut plan.service,
                &mut plan.most,
                &mut plan.seats,
            ];
            let length = fields.len();
            *fields.into_iter().nth(at % length)? ^= flip;
        }
        3 => state.plans[*plan as usize].counts[at % CLASSES] ^= flip,
        4 => {
            endpoint(at)?;
            let slot = content.first as usize + at % endpoints.len();
            let endpoint = &mut state.endpoints[slot];
            match value % 4 {
                0 => endpoint.address.octets[at % 16] ^= 1,
                1 => endpoint.port ^= 1 << (at % 16),
                2 => endpoint.flags ^= 1 << (at % 16),
                _ => endpoint.id ^= flip,
            }
        }
        5 => state.endpoint_states[endpoint(at)?.id as usize].slots[*lane] ^= flip,
        6 => {
            if content.maglev_rows == 0 || content.maglev_cluster == NO_TABLE {
                return None;
            }
            let row = (content.maglev_cluster + at as u32 % ROWS) as usize;
            state.maglev[row / 4].positions[row % 4] ^= 1 << (value % 16);
        }
        7 => {
            let entry = nth(&state.frontends, at)?;
            let entry = state.frontends.get_mut(&entry)?;
            match value % 3 {
                0 => entry.service ^= 1 << (at % 8),
                1 => entry.kind ^= 1 << (at % 8),
                _ => entry.class ^= 1 << (at % 5),
            }
        }
        8 => drop(state.frontends.remove(&nth(&state.frontends, at)?)),
        9 => {
            let (address, protocol) = nth(&state.frontends, at)?;
            let foreign = SocketAddr::new(address.ip(), address.port() ^ 0x100);
            let entry = state.frontends[&(address, protocol)];
            state.frontends.insert((foreign, protocol), entry);
        }
        10 => {
            let ip = nth(&state.cluster_ips, at)?;
            match value % 3 {
                0 => state.cluster_ips.get_mut(&ip)?.flags ^= 1,
                1 => drop(state.cluster_ips.remove(&ip)),
                _ => {
                    let foreign = Ipv4Addr::from(value | 0x4000_0000);
                    state
                        .cluster_ips
                        .insert(foreign.into(), ClusterIp::default());
                }
            }
        }
        11 => {
            let range = at % state.service_ranges.len();
            let range = &mut state.service_ranges[range];
            match value % 3 {
                0 => range.flags ^= 1,
                1 => range.prefix ^= 1,
                _ => range.network.octets[at % 16] ^= 1,
            }
        }
        12 => spoil_trie(&mut state.source_ranges, at, value, |member| member ^ 1)?,
        13 => spoil_trie(&mut state.source_classes, at, value, |class| class ^ 1)?,
        14 => {
            // Class 0 is that of frontends that nothing is known of.
            let class = &mut state.destination_classes[at % 2];
            match (class.set, value % 2) {
                (0, _) => class.first ^= flip,
                (_, 0) => class.set ^= 1,
                _ => state.decisions[class.first as usize % 100] = Decision::new([77; 3]),
            }
        }
        _ => unreachable!("there are {KINDS} kinds"),
    }
    Some(())
}

/// Changes, removes or adds an entry.
fn spoil_trie<V: Copy>(
    trie: &mut BTreeMap<(u32, u32, [u8; 16]), V>,
    at: usize,
    value: u32,
    change: impl FnOnce(V) -> V,
) -> Option<()> {
    let network = nth(trie, at)?;
    let present = trie[&network];
    let (set, bits, octets) = network;
    match value % 3 {
        0 => drop(trie.insert(network, change(present))),
        1 => drop(trie.remove(&network)),
        _ => drop(trie.insert((set ^ 8, bits, octets), present)),
    }
    Some(())
}

/// A key of a map.
fn nth<K: Copy, V>(map: &BTreeMap<K, V>, at: usize) -> Option<K> {
    map.keys().nth(at % map.len().max(1)).copied()
}

#[test]
fn a_difference_says_where_it_is() {
    let mut bench = Bench::new(ROOMY);
    bench.round(&[spec(1, [1, 2])], &[]);
    {
        let mut state = bench.kernel.state();
        state.is_spoilt = true;
        state.endpoints[0].port = 1;
        let address = *state.frontends.keys().next().unwrap();
        state.frontends.remove(&address);
    }
    let found = bench.verify();
    let words: Vec<_> = found.described.iter().map(ToString::to_string).collect();
    assert_eq!(
        words,
        [
            "ENDPOINTS 0 of default/s1 TCP (IPv4) has been changed",
            "FRONTENDS4 10.96.0.1:80, protocol 6 is missing",
        ]
    );
    assert_eq!(found.described[1].wrong, Wrong::Missing);
    let parts: Vec<_> = found
        .described
        .iter()
        .map(|difference| difference.part)
        .collect();
    assert_eq!(
        (parts, found.differences),
        (vec!["ENDPOINTS", "FRONTENDS4"], 2)
    );
    bench.assert_complete();
}

/// One fault at a time; what programs count in the same elements stays.
#[test]
fn limits_levels_and_schemas_that_others_change_are_put_right() {
    let mut bench = Bench::new(ROOMY);
    let plan = Plan {
        max_connections: 5,
        max_connections_per_endpoint: 8,
        ..spec(1, [1]).plan()
    };
    bench.writer.apply(Key::of(&plan), Some(&plan)).unwrap();
    let queued = "{type: Queue, queuing: {queues: 8, handSize: 2, queueLengthLimit: 3}}";
    let text = [
        level("one").replace("{type: Reject}", queued),
        schema("first", "one", ANYONE, FIRST),
    ];
    bench.admit(&text, AdmissionMode::Enforce).unwrap();
    let known = bench.writer.numbered().known();
    let number = |name: &str| known.levels.iter().find(|known| known.level.name == name);
    let [one, exempt] = ["one", "exempt"].map(|name| number(name).unwrap().number as usize);
    let first = known.schemas.iter().find(|known| known.name == "first");
    let first = first.unwrap().number as usize;
    let limit = {
        let mut state = bench.kernel.state();
        let id = bench.writer.id(&Key::of(&plan)).unwrap();
        let limit = state.content(id).seats as usize;
        state.seats[limit].word = 3;
        state.levels[one].refused = 4;
        state.flow_schemas[first].admitted = 5;
        state.level_queues[one].waiting = 6;
        state.is_spoilt = true;
        limit
    };
    assert_eq!(bench.verify().described, vec![]);
    let contents = |bench: &Bench| {
        let state = bench.kernel.state();
        let queues = &state.level_queues;
        format!(
            "{:?}",
            (&state.seats, &state.levels, &state.flow_schemas, queues)
        )
    };
    let before = contents(&bench);

    type Fault = Box<dyn Fn(&mut State)>;
    let faults: Vec<(&str, Fault)> = vec![
        (
            "SEATS",
            Box::new(move |state| state.seats[limit].limit = 500),
        ),
        (
            "SEATS",
            Box::new(move |state| state.seats[limit].flags ^= 1),
        ),
        (
            "SEATS",
            Box::new(move |state| state.seats[limit].owner ^= 1),
        ),
        (
            "LEVELS",
            Box::new(move |state| state.levels[one].flags ^= 2),
        ),
        (
            "LEVELS",
            Box::new(move |state| state.levels[exempt].owner ^= 2),
        ),
        (
            "LEVEL_QUEUES",
            Box::new(move |state| state.level_queues[one].first += 1),
        ),
        (
            "LEVEL_QUEUES",
            Box::new(move |state| state.level_queues[one].hand = 0),
        ),
        (
            "LEVEL_QUEUES",
            Box::new(move |state| state.level_queues[one].length = 900),
        ),
        (
            "LEVEL_QUEUES",
            Box::new(move |state| state.level_queues[exempt].number = 4),
        ),
        (
            "FLOW_SCHEMAS",
            Box::new(move |state| {
                state.flow_schemas[first].seats = LevelSeats::new(exempt as u32, 1)
            }),
        ),
        (
            "FLOW_SCHEMAS",
            Box::new(move |state| state.flow_schemas[first].answers ^= 1),
        ),
        (
            "FLOW_SCHEMAS",
            Box::new(move |state| state.flow_schemas[first].owner = 0),
        ),
        (
            "FLOW_SCHEMAS",
            Box::new(move |state| state.flow_schemas[first].rule.most ^= 8),
        ),
        (
            "FLOW_SCHEMAS",
            Box::new(move |state| state.flow_schemas[first].rule.by ^= 1),
        ),
        (
            "FLOW_SCHEMAS",
            Box::new(move |state| state.flow_schemas[first].deadlines[2] = 1),
        ),
        (
            "FLOW_SCHEMAS",
            Box::new(move |state| state.flow_schemas[first].is_audited ^= 1),
        ),
    ];
    for (number, (map, fault)) in faults.into_iter().enumerate() {
        fault(&mut bench.kernel.state());
        let found = bench.verify();
        let parts: Vec<_> = found.described.iter().map(|found| found.part).collect();
        assert_eq!(parts, [map], "fault {number}: {found:?}");
        assert_eq!(contents(&bench), before, "fault {number}");
        assert_eq!(bench.verify().described, vec![]);
    }
}

#[test]
fn where_nothing_differs_nothing_is_written() {
    let mut bench = Bench::new(ROOMY);
    let maglev = Spec {
        maglev: true,
        sources: vec![1, 2],
        ..spec(2, [1, 2, 3])
    };
    bench.round(&[spec(1, [1, 2]), maglev], &[]);
    let (writes, calls) = (bench.writes(), bench.kernel.state().calls);
    let found = bench.verify();
    assert_eq!((found.differences, found.unread), (0, None));
    assert_eq!(
        (bench.writes(), bench.kernel.state().calls),
        (writes, calls)
    );
    // Two service ports, their plans, five endpoints with two records each, a table of four
    // elements, two addresses, two ClusterIPs, ranges of both families, and two networks.
    let ranges = bench.kernel.state().service_ranges.len() as u64;
    assert_eq!(found.records, 2 + 2 + 10 + 4 + 2 + 2 + ranges + 2);
}

/// A map that others have filled has no room: what is theirs goes first.
#[test]
fn a_map_filled_by_others_is_cleared() {
    let mut bench = Bench::new(Sizes {
        frontends: 40,
        ..ROOMY
    });
    let specs: Vec<_> = (1..20).map(|number| spec(number, [1])).collect();
    bench.round(&specs, &[]);
    {
        let mut state = bench.kernel.state();
        state.is_spoilt = true;
        let ours: Vec<_> = state.frontends.keys().copied().take(10).collect();
        let entry = *state.frontends.values().next().unwrap();
        for address in ours {
            state.frontends.remove(&address);
        }
        for port in 0..31 {
            let foreign = (SocketAddr::new(ip(IpFamily::V4, 9, 9), port), 6);
            state.frontends.insert(foreign, entry);
        }
    }
    let mut rounds = 1;
    while bench.verify().differences > 0 {
        rounds += 1;
    }
    assert!(rounds <= 3, "{rounds} rounds");
    bench.assert_complete();
}
