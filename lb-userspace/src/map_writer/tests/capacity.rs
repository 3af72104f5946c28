//! Full maps: a service port without room says so, keeps what it had, and gets its turn later.

use super::*;

const NO_TABLE: &str = "no room for a Maglev lookup table of 13 rows: MAGLEV is full; endpoints are \
                        picked at random, without weights";

/// Fills one map, and checks that the service that finds no room waits with this message, the
/// others work, and it is programmed as soon as another one goes.
fn assert_heals(sizes: Sizes, fits: Spec, too_much: Spec, message: &str) {
    let mut bench = Bench::new(sizes);
    bench.round(std::slice::from_ref(&fits), &[]);
    bench.assert_complete();

    bench.write(std::slice::from_ref(&too_much), &[]);
    bench.writer.settle();
    assert_eq!(bench.waiting(), [message]);
    bench.assert_views();

    bench.note(std::slice::from_ref(&too_much), &[fits.key()]);
    bench.write(&[], &[fits.key()]);
    bench.writer.settle();
    bench.assert_complete();
}

impl Bench {
    /// Like [`Bench::assert_complete`], but services may be waiting.
    fn assert_views(&self) {
        for (address, (key, kind)) in holders(&self.plans) {
            let found = self.kernel.state().view(&address);
            assert_eq!(found, Some(view(&self.plans[&key], kind)));
        }
    }
}

#[test]
fn services() {
    let sizes = Sizes {
        services: 2,
        ..ROOMY
    };
    let message = "no service number is free: SERVICES has 2 entries";
    assert_heals(sizes, spec(1, [1]), spec(2, [2]), message);
}

#[test]
fn plans() {
    // One stays free for changes.
    let sizes = Sizes { plans: 3, ..ROOMY };
    let message = "no plan number is free: PLANS has 3 entries";
    assert_heals(sizes, spec(1, [1]), spec(2, [2]), message);
}

#[test]
fn endpoints() {
    let sizes = Sizes {
        endpoints: 10,
        ..ROOMY
    };
    let message = "no room for 6 endpoints: ENDPOINTS has 5 of 10 slots free";
    assert_heals(sizes, spec(1, 1..6), spec(2, 1..7), message);
}

#[test]
fn endpoint_states() {
    let sizes = Sizes {
        endpoint_states: 10,
        ..ROOMY
    };
    let message = "no endpoint number is free: ENDPOINT_STATES has 10 entries";
    assert_heals(sizes, spec(1, 1..6), spec(2, 1..7), message);
}

#[test]
fn lookup_tables() {
    let sizes = Sizes {
        maglev: ROWS.div_ceil(4) as usize,
        ..ROOMY
    };
    let maglev = |n| Spec {
        maglev: true,
        ..spec(n, [n, n + 1])
    };
    assert_heals(sizes, maglev(1), maglev(2), NO_TABLE);
}

#[test]
fn the_second_lookup_table_finds_no_room() {
    let sizes = Sizes {
        maglev: 2 * ROWS.div_ceil(4) as usize,
        ..ROOMY
    };
    let mut two_tables = spec(2, [1, 2, 3]);
    two_tables.maglev = true;
    two_tables.endpoints[0].1 = Condition::ReadyHere;
    let one_table = Spec {
        maglev: true,
        ..spec(1, [5, 6])
    };
    assert_heals(sizes, one_table, two_tables, NO_TABLE);
}

#[test]
fn source_ranges() {
    let sizes = Sizes {
        source_ranges: 3,
        ..ROOMY
    };
    let with_sources = |n, sources| Spec {
        sources,
        ..spec(n, [n])
    };
    let (fits, too_much) = (with_sources(1, vec![1, 2]), with_sources(2, vec![3, 4]));
    assert_heals(sizes, fits, too_much, "SOURCE_RANGES is full");
}

#[test]
fn frontends() {
    let sizes = Sizes {
        frontends: 1,
        ..ROOMY
    };
    let message = "no room for 1 addresses of kind ClusterIP: FRONTENDS4 is full";
    assert_heals(sizes, spec(1, [1]), spec(2, [2]), message);
}

#[test]
fn a_full_map_of_frontends_still_lets_addresses_change_hands() {
    let mut bench = Bench::new(Sizes {
        frontends: 2,
        ..ROOMY
    });
    bench.round(&[spec(1, [1]), spec(2, [2])], &[]);
    bench.round(&[spec(3, [3])], &[spec(1, []).key()]);
    bench.assert_complete();
}

#[test]
fn endpoints_stay_in_force_that_are_still_there() {
    let mut bench = Bench::new(Sizes {
        endpoints: 10,
        ..ROOMY
    });
    bench.round(&[spec(1, 1..6)], &[]);
    let larger = Spec {
        node_port: 30_000,
        ..spec(1, 1..8)
    };
    bench.write(std::slice::from_ref(&larger), &[]);
    bench.writer.settle();
    // The new address leads to them.
    let before = bench.kernel.state().views();
    assert_eq!(before.len(), 2);
    let served = |view: &View| view.plan.as_ref().unwrap().endpoints.len();
    assert!(before.values().all(|view| served(view) == 5));
    let message = "no room for 7 endpoints: ENDPOINTS has 5 of 10 slots free";
    assert_eq!(bench.waiting(), [message]);

    // The same after a restart.
    bench.restart();
    bench.note(&[larger], &[]);
    bench.apply_all();
    assert_eq!(bench.kernel.state().views(), before);

    bench.note(&[spec(1, 1..4)], &[]);
    bench.write(&[spec(1, 1..4)], &[]);
    bench.writer.settle();
    bench.assert_complete();
}

#[test]
fn a_waiting_service_may_go() {
    let mut bench = Bench::new(Sizes {
        endpoints: 3,
        ..ROOMY
    });
    bench.round(&[spec(1, 1..9)], &[]);
    assert_eq!(bench.waiting().len(), 1);
    bench.round(&[], &[spec(1, []).key()]);
    bench.assert_complete();
}

#[test]
fn room_that_waits_for_reuse_is_used_before_anybody_is_refused() {
    let mut bench = Bench::new(Sizes {
        endpoints: 10,
        ..ROOMY
    });
    for first in 1..8 {
        bench.round(&[spec(1, first..first + 5)], &[]);
        bench.assert_complete();
    }
}
