//! What is counted of service ports, as others read it.

use super::{changes::slot_of, fake::ROOMY, *};

/// A Service with two ready endpoints and a terminating one.
fn three() -> Spec {
    let mut three = spec(1, [5, 6]);
    three.endpoints.push((7, Condition::Terminating));
    three
}

#[test]
fn who_reads_what_is_counted_finds_flows_and_endpoints() {
    let mut bench = Bench::new(ROOMY);
    bench.round(&[three()], &[]);
    let roster = bench.writer.roster();
    let key = three().key();
    let id = bench.writer.id(&key).unwrap();
    let slot = slot_of(&bench, 6);
    {
        let mut state = bench.kernel.state();
        state.service_flows[id as usize].flows = 4;
        state.service_stats[id as usize].dropped = 2;
        let endpoint = state.endpoints[slot].id as usize;
        state.endpoint_states[endpoint].connections = 9;
        state.endpoint_memory[endpoint].failures = 100;
    }
    let mut told = Vec::new();
    roster.tell(|_, counts| told.push(counts));
    let [counts] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(
        (counts.id, counts.flows.flows, counts.stats.dropped),
        (id, 4, 2)
    );
    assert_eq!(
        (counts.ready, counts.terminating, counts.failing.len()),
        (2, 1, 1)
    );

    let endpoints = roster.endpoints(&key);
    let is_ready: Vec<_> = endpoints.iter().map(|endpoint| endpoint.is_ready).collect();
    assert_eq!(is_ready, [true, true, false]);
    let failing: Vec<_> = endpoints.iter().filter(|of| of.is_failing()).collect();
    assert_eq!(failing.len(), 1);
    assert_eq!(failing[0].connections, 9);
    assert_eq!(failing[0].address, counts.failing[0]);
    assert_eq!(roster.endpoints(&spec(2, []).key()), []);
}

#[test]
fn endpoints_that_become_terminating_are_told_of_so() {
    let mut bench = Bench::new(ROOMY);
    bench.round(&[spec(1, [5, 6, 7])], &[]);
    bench.round(&[three()], &[]);
    let mut ready = 0;
    bench
        .writer
        .roster()
        .tell(|_, counts| ready += counts.ready);
    assert_eq!(ready, 2);
}
