//! Single changes: what they cost, what they reuse, and which service gets a contested address.

use super::*;

#[test]
fn an_unchanged_plan_costs_nothing() {
    let mut bench = Bench::new(ROOMY);
    let mut specs = [spec(1, [1, 2]), spec(2, []), spec(3, [4])];
    specs[0].sources = vec![1, 2];
    specs[0].load_balancer = Some(1);
    specs[0].affinity = 60;
    specs[1].maglev = true;
    specs[2].maglev = true;
    bench.round(&specs, &[]);
    bench.writer.tidy();

    let (writes, calls, graces) = costs(&bench);
    bench.round(&specs, &[]);
    bench.writer.tidy();
    assert_eq!(costs(&bench), (writes, calls, graces));
}

#[test]
fn a_change_of_endpoints_takes_no_system_call_and_does_not_wait() {
    let mut bench = Bench::new(ROOMY);
    let specs: Vec<_> = (0..20).map(|n| spec(n, [1, 2, 3])).collect();
    bench.round(&specs, &[]);

    let (writes, calls, graces) = costs(&bench);
    bench.round(&[spec(7, [1, 2, 3, 4])], &[]);
    bench.assert_complete();
    let (after, calls_after, graces_after) = costs(&bench);
    assert_eq!((calls_after, graces_after), (calls, graces));
    // Four endpoints, their positions, what is kept of the new one (with its latency), then plan and
    // publication.
    assert_eq!(after - writes, 4 + 4 + 3 + 2);
}

#[test]
fn addresses_of_many_services_go_in_one_call() {
    let mut bench = Bench::new(ROOMY);
    let specs: Vec<_> = (0..50).map(|n| spec(n, [1])).collect();
    let before = bench.kernel.state().calls;
    bench.round(&specs, &[]);
    assert_eq!(bench.kernel.state().calls - before, 1);
    bench.assert_complete();
}

#[test]
fn an_endpoint_keeps_its_number_and_both_positions_over_changes() {
    let mut bench = Bench::new(ROOMY);
    bench.round(&[spec(1, [5, 6])], &[]);
    let old = slot_of(&bench, 6);
    bench.round(&[spec(1, [4, 5, 6])], &[]);
    let new = slot_of(&bench, 6);

    let state = bench.kernel.state();
    assert_eq!(state.endpoints[old].id, state.endpoints[new].id);
    let mut slots = state.endpoint_states[state.endpoints[new].id as usize].slots;
    slots.sort_unstable();
    let mut wanted = [old as u32, new as u32];
    wanted.sort_unstable();
    assert_eq!(slots, wanted);
}

#[test]
fn numbers_are_reused_as_late_as_possible() {
    let mut bench = Bench::new(Sizes {
        services: 6,
        ..ROOMY
    });
    let id = |bench: &Bench, n| bench.writer.id(&spec(n, []).key());
    bench.round(&[spec(1, [1])], &[]);
    assert_eq!(id(&bench, 1), Some(1));
    for n in 2..10 {
        bench.round(&[spec(n, [n])], &[spec(n - 1, []).key()]);
        bench.writer.tidy();
        assert_eq!(id(&bench, n), Some(u32::from(n - 1) % 5 + 1));
    }
}

#[test]
fn a_contested_address_goes_to_the_lesser_kind_then_the_lesser_name() {
    let mut bench = Bench::new(ROOMY);
    let mut first = spec(1, [1]);
    let mut second = spec(2, [2]);
    first.load_balancer = Some(1);
    second.load_balancer = Some(1);
    bench.round(&[second.clone()], &[]);
    let contested: Address = ((ip(IpFamily::V4, 50, 1), 80).into(), 6);
    assert_eq!(endpoints_at(&bench, &contested), [ip(IpFamily::V4, 1, 2)]);

    bench.round(&[first.clone()], &[]);
    assert_eq!(endpoints_at(&bench, &contested), [ip(IpFamily::V4, 1, 1)]);
    bench.round(&[], &[first.key()]);
    assert_eq!(endpoints_at(&bench, &contested), [ip(IpFamily::V4, 1, 2)]);
    bench.assert_complete();
}

#[test]
fn source_ranges_are_shared_until_the_last_user_goes() {
    let mut bench = Bench::new(ROOMY);
    let specs = [1, 2].map(|n| Spec {
        sources: vec![7, 8],
        ..spec(n, [n])
    });
    bench.round(&specs, &[]);
    assert_eq!(bench.kernel.state().source_ranges.len(), 2);
    for spec in &specs {
        assert_eq!(bench.kernel.state().source_ranges.len(), 2);
        bench.round(&[], &[spec.key()]);
        bench.writer.tidy();
    }
    assert_eq!(bench.kernel.state().source_ranges.len(), 0);
}

#[test]
fn equal_lookup_tables_are_shared() {
    let mut bench = Bench::new(Sizes {
        maglev: ROWS.div_ceil(4) as usize,
        ..ROOMY
    });
    let specs = [1, 2, 3].map(|n| Spec {
        maglev: true,
        ..spec(n, [10, 11])
    });
    bench.round(&specs, &[]);
    bench.assert_complete();
}

#[test]
fn a_service_may_go_and_come_back_in_one_round() {
    let mut bench = Bench::new(ROOMY);
    bench.round(&[spec(1, [1])], &[]);
    bench.round(&[spec(1, [2])], &[spec(1, []).key()]);
    bench.assert_complete();
}

fn costs(bench: &Bench) -> (usize, usize, usize) {
    let state = bench.kernel.state();
    (state.writes, state.calls, state.graces)
}

fn endpoints_at(bench: &Bench, address: &Address) -> Vec<IpAddr> {
    let view = bench.kernel.state().view(address).unwrap();
    let endpoints = view.plan.unwrap().endpoints.into_iter();
    endpoints.map(|(address, _)| address.ip()).collect()
}

/// The position in `ENDPOINTS` that the only service's published plan has for an endpoint.
pub fn slot_of(bench: &Bench, number: u8) -> usize {
    let state = bench.kernel.state();
    let service = state
        .services
        .iter()
        .find(|service| service.plan != 0)
        .unwrap();
    let plan = &state.plans[service.plan as usize];
    let count = plan.counts.iter().sum::<u32>();
    let mut slots = plan.first as usize..(plan.first + count) as usize;
    let address = ip(IpFamily::V4, 1, number);
    slots
        .find(|slot| IpAddr::from(state.endpoints[*slot].address) == address)
        .unwrap()
}
