//! Tests of taking over the maps of an earlier agent.

use super::*;

#[test]
fn nothing_is_written_if_nothing_changed() {
    let mut bench = Bench::new(ROOMY);
    let mut specs: Vec<_> = (1..20).map(|n| spec(n, 0..n % 5)).collect();
    for spec in &mut specs {
        spec.maglev = spec.number % 2 == 0;
        spec.affinity = 60;
        spec.sources = vec![spec.number % 3];
        spec.node_port = 30_000 + u16::from(spec.number);
        // Contested by all.
        spec.load_balancer = Some(1);
    }
    bench.round(&specs, &[]);
    bench.writer.tidy();
    let (before, writes) = (ids(&bench), bench.writes());
    bench.restart();
    bench.apply_all();
    bench.assert_complete();
    assert_eq!((ids(&bench), bench.writes()), (before, writes));
}

#[test]
fn what_nobody_claims_goes_when_everything_is_known() {
    let mut bench = Bench::new(ROOMY);
    bench.round(&[spec(1, [1]), spec(2, [2])], &[]);
    bench.plans.remove(&spec(1, []).key());
    bench.restart();
    assert_eq!(
        bench.kernel.state().frontends.len(),
        2,
        "it might be claimed yet"
    );
    bench.apply_all();
    bench.assert_complete();
}

#[test]
fn a_service_whose_addresses_moved_is_not_taken_for_another() {
    let mut bench = Bench::new(ROOMY);
    let mut first = spec(1, [1]);
    first.load_balancer = Some(1);
    bench.round(&[first.clone(), spec(2, [2])], &[]);
    let second_id = bench.writer.id(&spec(2, []).key());

    // While no agent runs, the address moves from one to the other.
    let before = bench.plans.clone();
    let mut second = spec(2, [2]);
    second.load_balancer = first.load_balancer.take();
    bench.note(&[first, second.clone()], &[]);
    bench.restart();
    bench.allow(&before);
    let _ = bench.writer.apply(second.key(), Some(&second.plan()));
    bench.apply_all();
    bench.assert_complete();
    assert_eq!(bench.writer.id(&second.key()), second_id);
}

#[test]
fn a_new_service_on_an_old_cluster_ip_does_not_inherit_the_other_addresses() {
    let mut bench = Bench::new(ROOMY);
    let mut old = spec(1, [1]);
    old.node_port = 30_000;
    bench.round(&[old.clone()], &[]);

    let mut plan = old.plan();
    let name = Arc::make_mut(&mut plan.name);
    name.service = ObjectName::new(name.service.namespace.clone(), "other");
    plan.frontends = plan.frontends[..1].into();
    let before = std::mem::take(&mut bench.plans);
    bench.plans.insert(Key::of(&plan), plan);
    bench.restart();
    bench.allow(&before);
    bench.apply_all();
    bench.assert_complete();
}

#[test]
fn a_service_with_another_port_is_made_anew() {
    let mut bench = Bench::new(ROOMY);
    bench.round(&[spec(1, [1])], &[]);
    let moved = Spec {
        port: 81,
        ..spec(1, [1])
    };
    let before = bench.plans.clone();
    bench.note(&[moved], &[]);
    bench.restart();
    bench.allow(&before);
    bench.apply_all();
    bench.assert_complete();
}

#[test]
fn two_services_in_the_same_slots_both_get_their_own() {
    let mut bench = Bench::new(ROOMY);
    bench.round(&[spec(1, [1, 2]), spec(2, [3, 4])], &[]);
    {
        let mut state = bench.kernel.state();
        let plans: Vec<_> = state.services.iter().map(|s| s.plan as usize).collect();
        let (one, two) = (plans[1], plans[2]);
        state.plans[two].first = state.plans[one].first;
    }
    bench.restart();
    bench.apply_all();
    bench.assert_complete();
}

#[test]
fn stray_source_ranges_go() {
    let mut bench = Bench::new(ROOMY);
    let used = Spec {
        sources: vec![1],
        ..spec(1, [1])
    };
    bench.round(&[used], &[]);
    {
        let mut state = bench.kernel.state();
        // Entries of no set, of a set that is not in use, and with a prefix over several sets.
        state.source_ranges.insert((0, 32, [0; 16]), 1);
        state.source_ranges.insert((77, 160, [1; 16]), 1);
        state.source_ranges.insert((78, 16, [1; 16]), 1);
    }
    bench.restart();
    bench.apply_all();
    assert_eq!(bench.kernel.state().source_ranges.len(), 1);
    bench.assert_complete();
}

fn ids(bench: &Bench) -> BTreeMap<Key, u32> {
    let ids = bench.writer.ids();
    ids.map(|(key, id)| (key.clone(), id)).collect()
}
