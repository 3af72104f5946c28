//! Properties that hold after any random sequence of changes.

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Round { apply: Vec<Spec>, remove: Vec<u8> },
    Tidy,
    Restart,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// The maps do the checking: after each write, programs find the old or the new state, and
    /// nothing that they may be using changes.
    #[test]
    fn programs_find_old_or_new_at_any_time(steps in vec(step(), 1..12)) {
        let mut bench = Bench::new(ROOMY);
        for step in &steps {
            take(&mut bench, step);
            bench.assert_complete();
            prop_assert_eq!(bench.verify().described, vec![]);
        }
        bench.writer.tidy();
        assert_nothing_lost(bench);
    }

    #[test]
    fn little_room_hurts_only_those_without(
        steps in vec(step(), 1..12),
        sizes in (5..12_usize, 3..9_usize, 3..9_usize, 6..20_usize, 6..20_usize, 4..20_usize, 2..5_usize),
    ) {
        let (frontends, services, plans, endpoints, endpoint_states, maglev, source_ranges) = sizes;
        let mut bench = Bench::new(Sizes {
            frontends, services, plans, endpoints, endpoint_states, maglev, source_ranges,
            classes: ROOMY.classes,
        });
        for step in &steps {
            // Who is in depends on who came first.
            let before = bench.rooms();
            match step {
                Step::Round { apply, remove } => {
                    let remove = keys(&bench, remove);
                    bench.note(apply, &remove);
                    bench.write(apply, &remove);
                    bench.writer.settle();
                }
                step => take(&mut bench, step),
            }
            bench.assert_none_is_gone(&before);
            prop_assert_eq!(bench.verify().described, vec![]);
        }
        let keys: Vec<_> = bench.plans.keys().cloned().collect();
        bench.plans.clear();
        bench.write(&[], &keys);
        bench.writer.settle();
        bench.writer.tidy();
        prop_assert_eq!(bench.waiting(), Vec::<String>::new());
        assert_nothing_lost(bench);
    }

    /// An agent starts with any maps, however corrupt, and repairs them.
    #[test]
    fn corrupted_maps_heal(
        specs in vec(service(), 1..8),
        damage in vec((0..6_u8, any::<u32>(), damaged_value()), 1..6),
    ) {
        let mut bench = Bench::new(ROOMY);
        bench.round(&specs, &[]);
        {
            let mut state = bench.kernel.state();
            for (what, at, value) in damage {
                corrupt(&mut state, what, at, value);
            }
        }
        bench.restart();
        bench.apply_all();
        bench.assert_complete();
        bench.round(&[spec(99, [1, 2, 3])], &[]);
        bench.assert_complete();
    }
}

fn take(bench: &mut Bench, step: &Step) {
    match step {
        Step::Round { apply, remove } => {
            let remove = keys(bench, remove);
            bench.round(apply, &remove);
        }
        Step::Tidy => bench.writer.tidy(),
        Step::Restart => {
            let before = bench.writes();
            let was_complete = bench.waiting().is_empty();
            bench.restart();
            if was_complete {
                bench.allow(&bench.plans);
            }
            bench.apply_all();
            bench.kernel.state().allowed = None;
            if was_complete {
                let left_over = bench.kernel.state().source_ranges.len();
                assert!(
                    bench.writes() - before <= left_over + 64,
                    "only what an earlier round left behind is written"
                );
                let settled = bench.writes();
                bench.restart();
                bench.apply_all();
                assert_eq!(bench.writes(), settled, "nothing has changed");
            }
        }
    }
}

/// Removes everything and checks that all room is free again.
fn assert_nothing_lost(mut bench: Bench) {
    let keys: Vec<_> = bench.plans.keys().cloned().collect();
    bench.round(&[], &keys);
    bench.writer.tidy();
    bench.assert_complete();
    let Bench { kernel, writer, .. } = bench;
    let sizes = kernel.state().sizes;
    assert_eq!(writer.slots.free() as usize, sizes.endpoints);
    assert_eq!(writer.ids.free() as usize, sizes.services - 1);
    assert_eq!(writer.plans.free() as usize, sizes.plans - 1);
    assert_eq!(
        writer.endpoint_ids.free() as usize,
        sizes.endpoint_states - 1
    );
    assert_eq!(writer.lookup_tables.free() as usize, sizes.maglev);
    let state = kernel.state();
    assert!(state.source_ranges.is_empty());
    assert!(state.services.iter().all(|service| service.plan == 0));
}

fn keys(bench: &Bench, numbers: &[u8]) -> Vec<Key> {
    let named = |key: &&Key| {
        let name = key.name.service.name.trim_start_matches('s');
        numbers.contains(&name.parse().unwrap())
    };
    bench.plans.keys().filter(named).cloned().collect()
}

fn corrupt(state: &mut fake::State, what: u8, at: u32, value: u32) {
    let at = |len: usize| at as usize % len;
    let used: Vec<_> = (0..state.services.len())
        .filter(|id| state.services[*id].plan != 0)
        .collect();
    // Earlier damage may have unpublished all of them.
    if used.is_empty() {
        return;
    }
    let id = used[at(used.len())];
    let plan = state.services[id].plan as usize % state.plans.len();
    match what {
        0 => state.services[id].plan = value,
        1 => state.plans[plan].first = value,
        2 => state.plans[plan].counts[at(6)] = value,
        3 => {
            let first = state.plans[plan].first as usize % state.endpoints.len();
            state.endpoints[first].id = value;
        }
        4 => {
            state.plans[plan].maglev_rows = value;
            state.plans[plan].maglev_local = value;
        }
        _ => {
            let count = state.frontends.len().max(1);
            if let Some(entry) = state.frontends.values_mut().nth(at(count)) {
                entry.service = value % 200;
            }
        }
    }
}

fn damaged_value() -> impl Strategy<Value = u32> {
    prop_oneof![0..20_u32, any::<u32>(), Just(u32::MAX)]
}

fn step() -> impl Strategy<Value = Step> {
    let round = (vec(service(), 0..5), vec(0..6_u8, 0..3));
    let round = round.prop_map(|(mut apply, remove)| {
        // Each at most once, because programs would otherwise find states between old and new.
        let mut known = HashSet::new();
        apply.retain(|spec| known.insert(spec.key()));
        Step::Round { apply, remove }
    });
    prop_oneof![
        8 => round,
        1 => Just(Step::Tidy),
        1 => Just(Step::Restart),
    ]
}

/// Services that often share addresses, source ranges and sets of endpoints.
pub(super) fn service() -> impl Strategy<Value = Spec> {
    let identity = (
        (0..6_u8, 0..3_i64),
        select(vec![IpFamily::V4, IpFamily::V4, IpFamily::V6]),
        select(vec![Protocol::Tcp, Protocol::Tcp, Protocol::Udp]),
    );
    let addresses = (
        select(vec![80, 81]),
        select(vec![0, 30_000, 30_001]),
        proptest::option::of(0..2_u8),
    );
    let rest = (
        vec(0..3_u8, 0..3),
        select(vec![0, 0, 600]),
        select(vec![false, false, true]),
        any::<bool>(),
    );
    let condition = select(vec![
        Condition::Ready,
        Condition::ReadyHere,
        Condition::Terminating,
        Condition::TerminatingHere,
    ]);
    let endpoints = proptest::collection::btree_map(0..8_u8, condition, 0..6);
    let weights = prop_oneof![2 => Just(Vec::new()), 1 => vec(1..4_u16, 1..4)];
    (identity, addresses, rest, endpoints, weights).prop_map(
        |(
            ((number, created), family, protocol),
            (port, node_port, load_balancer),
            (sources, affinity, maglev, local),
            endpoints,
            weights,
        )| Spec {
            number,
            created,
            family,
            protocol,
            port,
            node_port,
            load_balancer,
            externals: 0,
            essential: false,
            sources,
            affinity,
            maglev,
            local,
            endpoints: endpoints.into_iter().collect(),
            weights,
        },
    )
}
