//! Endpoints with weights: lookup tables by weight, and the weights beside the loads.

use lb_common::abi::plan_flag;

use super::{fake::ROOMY, *};

fn weighted(weights: &[u16]) -> Spec {
    Spec {
        weights: weights.to_vec(),
        ..spec(1, [1, 2, 3])
    }
}

fn content(bench: &Bench) -> lb_common::abi::Plan {
    let id = bench.writer.id(&weighted(&[]).key()).unwrap();
    bench.kernel.state().content(id)
}

#[test]
fn rows_are_drawn_where_endpoints_differ_in_weight_and_only_there() {
    let mut bench = Bench::new(ROOMY);
    bench.round(&[weighted(&[5, 5, 5])], &[]);
    assert_eq!(content(&bench).maglev_rows, 0, "all have the same");
    bench.round(&[weighted(&[1, 2])], &[]);
    bench.assert_complete();
    let plan = content(&bench);
    assert_eq!((plan.maglev_rows, plan.flags), (ROWS, plan_flag::DRAWN));
    assert_eq!(bench.weights(&weighted(&[]).key()), [1, 2, 1]);
    bench.round(&[weighted(&[])], &[]);
    bench.assert_complete();
    assert_eq!(content(&bench).maglev_rows, 0);
    assert_eq!(bench.weights(&weighted(&[]).key()), [0; 3]);
}

#[test]
fn another_weight_alone_is_written() {
    let mut bench = Bench::new(ROOMY);
    for weights in [[1, 2, 3], [1, 2, 4], [2, 4, 8]] {
        bench.round(&[weighted(&weights)], &[]);
        bench.assert_complete();
        assert_eq!(
            bench.weights(&weighted(&[]).key()),
            weights.map(u32::from),
            "least connections compares by them"
        );
    }
}

#[test]
fn maglev_has_tables_by_weight_that_the_client_looks_up() {
    let mut bench = Bench::new(ROOMY);
    let maglev = Spec {
        maglev: true,
        ..weighted(&[3, 1, 1])
    };
    bench.round(&[maglev], &[]);
    bench.assert_complete();
    assert_eq!(content(&bench).flags & plan_flag::DRAWN, 0);
}

#[test]
fn a_restart_writes_no_weight_again() {
    let mut bench = Bench::new(ROOMY);
    bench.round(&[weighted(&[1, 2]), spec(2, [4, 5])], &[]);
    bench.writer.tidy();
    let writes = bench.writes();
    bench.restart();
    bench.apply_all();
    bench.assert_complete();
    assert_eq!(bench.writes(), writes);
}

/// An agent in the middle of a slow start has written the greatest weights there are.
#[test]
fn an_agent_puts_whole_weights_in_the_place_of_those_of_a_slow_start() {
    let mut bench = Bench::new(ROOMY);
    bench.round(&[weighted(&[2560, 10, 2304])], &[]);
    bench.assert_complete();
    bench.restart();
    bench.note(&[weighted(&[])], &[]);
    bench.apply_all();
    bench.assert_complete();
    assert_eq!(content(&bench).maglev_rows, 0);
    assert_eq!(bench.weights(&weighted(&[]).key()), [0; 3]);
}

#[test]
fn an_endpoint_number_that_is_used_again_has_no_weight_of_the_one_before() {
    let mut bench = Bench::new(ROOMY);
    bench.round(&[weighted(&[7, 8, 9])], &[]);
    bench.round(&[], &[weighted(&[]).key()]);
    bench.writer.tidy();
    bench.round(&[spec(2, 1..40)], &[]);
    bench.assert_complete();
}

#[test]
fn without_room_for_a_table_endpoints_have_the_same_weight_until_there_is() {
    let mut bench = Bench::new(Sizes {
        maglev: ROWS.div_ceil(4) as usize,
        ..ROOMY
    });
    let maglev = Spec {
        maglev: true,
        ..spec(2, [4, 5])
    };
    bench.round(std::slice::from_ref(&maglev), &[]);
    bench.note(&[weighted(&[1, 2])], &[]);
    bench.write(&[weighted(&[1, 2])], &[]);
    let reasons = bench.writer.waiting().map(|(_, error)| error.reason());
    assert_eq!(reasons.collect::<Vec<_>>(), [Reason::NoMaglevTable]);
    assert_eq!(content(&bench).maglev_rows, 0);
    bench.note(&[], &[maglev.key()]);
    bench.write(&[], &[maglev.key()]);
    bench.writer.settle();
    bench.assert_complete();
}

#[test]
fn a_weight_that_others_write_is_found_where_it_is_compared() {
    let mut bench = Bench::new(ROOMY);
    let plan = Plan {
        algorithm: Algorithm::LeastConnections,
        ..weighted(&[1, 2]).plan()
    };
    bench.writer.apply(Key::of(&plan), Some(&plan)).unwrap();
    let id = bench.writer.programmed[&Key::of(&plan)].endpoints[1].id;
    bench.kernel.state().is_spoilt = true;
    bench.kernel.state().endpoint_loads[id as usize].weight = 250;
    let found = bench.verify();
    let described: Vec<_> = found.described.iter().map(ToString::to_string).collect();
    assert_eq!(
        described,
        [format!(
            "ENDPOINT_LOADS {id} of default/s1 TCP (IPv4) has been changed"
        )]
    );
    assert_eq!(bench.weights(&Key::of(&plan)), [1, 2, 1]);
    assert_eq!(bench.verify().described, vec![]);
}
