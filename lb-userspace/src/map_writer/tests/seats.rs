//! Limits of Services: who gets which element, and when it becomes another's.

use lb_common::{
    abi::plan_flag,
    flow::{Seats, limit::limit_flag},
};

use super::*;
use crate::config::{Cap, Caps, Resource};

/// The elements of `SEATS` that Services can have here; one more is the node's.
const ROOM: u8 = 7;

fn limited(number: u8, most: u32) -> Plan {
    Plan {
        max_connections: most,
        ..spec(number, [1]).plan()
    }
}

impl Bench {
    fn apply(&mut self, plan: &Plan) -> Result<(), super::super::NotProgrammed> {
        self.writer.apply(Key::of(plan), Some(plan))
    }

    /// Index of the limit in a service port's plan.
    fn index(&self, plan: &Plan) -> u32 {
        let id = self.writer.id(&Key::of(plan)).unwrap();
        let state = self.kernel.state();
        state.content(id).seats
    }

    fn seats(&self, index: u32) -> Seats {
        self.kernel.state().seats[index as usize]
    }

    /// So many flows hold a seat.
    fn hold(&self, index: u32, flows: u64) {
        self.kernel.state().seats[index as usize].word = flows;
    }
}

#[test]
fn all_ports_of_a_service_share_a_limit() {
    let mut bench = Bench::new(ROOMY);
    let v4 = limited(1, 5);
    let v6 = Plan {
        max_connections: 5,
        ..Spec {
            family: IpFamily::V6,
            ..spec(1, [1])
        }
        .plan()
    };
    let other = limited(2, 9);
    let without = spec(3, [1]).plan();
    for plan in [&v4, &v6, &other, &without] {
        bench.apply(plan).unwrap();
    }
    let index = bench.index(&v4);
    assert_eq!(bench.index(&v6), index);
    assert_ne!(bench.index(&other), index);
    assert!(index != 0 && bench.index(&other) != 0);
    assert_eq!(bench.index(&without), 0);
    assert_eq!(
        (
            bench.seats(index).limit,
            bench.seats(bench.index(&other)).limit
        ),
        (5, 9)
    );
    let limited = bench.writer.limited().all();
    assert_eq!(limited.len(), 2);
    assert_eq!((limited[0].1.index, limited[0].1.most), (index, 5));
}

#[test]
fn a_service_that_counts_at_its_endpoints_has_a_limit_that_lets_everybody_in() {
    let mut bench = Bench::new(ROOMY);
    let of_endpoints = Plan {
        max_connections_per_endpoint: 40,
        ..spec(1, [1]).plan()
    };
    let by_load = Plan {
        algorithm: Algorithm::LeastConnections,
        ..spec(2, [1]).plan()
    };
    for plan in [&of_endpoints, &by_load] {
        bench.apply(plan).unwrap();
        let seats = bench.seats(bench.index(plan));
        assert!(bench.index(plan) != 0);
        assert_eq!((seats.limit, seats.pressed), (0, 0));
    }
    let content = |bench: &Bench, plan: &Plan| {
        let id = bench.writer.id(&Key::of(plan)).unwrap();
        bench.kernel.state().content(id)
    };
    let least = plan_flag::LEAST_CONNECTIONS;
    let [first, second] = [&of_endpoints, &by_load].map(|plan| content(&bench, plan));
    assert_eq!((first.most, first.flags & least), (40, 0));
    assert_eq!((second.most, second.flags & least), (0, least));
    // Forged handshakes must not fill an endpoint for long.
    let patience =
        |bench: &Bench, plan| bench.seats(bench.index(plan)).flags >> limit_flag::PATIENCE_SHIFT;
    assert_eq!(patience(&bench, &of_endpoints), 10);
    assert_eq!(patience(&bench, &by_load), 0);
    let index = bench.index(&of_endpoints);
    bench.apply(&spec(1, [1]).plan()).unwrap();
    assert_eq!(bench.seats(index).flags, 0);
    assert_eq!(content(&bench, &of_endpoints).most, 0);
}

#[test]
fn a_limit_changes_without_another_plan() {
    let mut bench = Bench::new(ROOMY);
    bench.apply(&limited(1, 5)).unwrap();
    let id = bench.writer.id(&Key::of(&limited(1, 5))).unwrap();
    let plan = bench.kernel.state().published(id);
    bench.apply(&limited(1, 3)).unwrap();
    assert_eq!(bench.kernel.state().published(id), plan);
    assert_eq!(bench.seats(bench.index(&limited(1, 3))).limit, 3);
}

#[test]
fn a_service_that_has_its_limit_again_has_its_connections_counted() {
    let mut bench = Bench::new(ROOMY);
    bench.apply(&limited(1, 5)).unwrap();
    let index = bench.index(&limited(1, 5));
    bench.hold(index, 3);
    bench.apply(&spec(1, [1]).plan()).unwrap();
    assert_eq!(bench.index(&limited(1, 5)), 0);
    assert_eq!(bench.seats(index).limit, 0, "nobody is refused any more");
    bench.apply(&limited(2, 5)).unwrap();
    assert_ne!(bench.index(&limited(2, 5)), index);
    bench.apply(&limited(1, 4)).unwrap();
    assert_eq!(bench.index(&limited(1, 4)), index);
    let seats = bench.seats(index);
    assert_eq!((seats.limit, seats.used()), (4, 3));
}

#[test]
fn an_element_is_anothers_only_when_no_flow_holds_a_seat() {
    let mut bench = Bench::new(ROOMY);
    let indexes: Vec<_> = (1..=ROOM)
        .map(|number| {
            bench.apply(&limited(number, 5)).unwrap();
            bench.index(&limited(number, 5))
        })
        .collect();
    let full = bench.apply(&limited(100, 5));
    assert_eq!(full, Err(super::super::NotProgrammed::Limits(8)));
    assert_eq!(bench.index(&limited(100, 5)), 0, "it works without a limit");

    for (number, flows) in [(1, 2), (2, 0)] {
        bench.hold(indexes[number - 1], flows);
        bench.apply(&spec(number as u8, [1]).plan()).unwrap();
    }
    bench.apply(&limited(100, 7)).unwrap();
    assert_eq!(bench.index(&limited(100, 7)), indexes[1]);
    assert_eq!(bench.seats(indexes[1]).limit, 7);
    assert!(bench.apply(&limited(101, 7)).is_err());
    bench.hold(indexes[0], 0);
    bench.apply(&limited(101, 7)).unwrap();
    assert_eq!(bench.index(&limited(101, 7)), indexes[0]);
}

#[test]
fn a_namespace_has_no_more_limits_than_it_may() {
    let mut namespace = Caps::default();
    namespace.set(Resource::ConnectionLimits, Cap::Count(2));
    let mut bench = Bench::limited(
        ROOMY,
        MapLimits {
            namespace,
            ..MapLimits::default()
        },
    );
    for number in [1, 2] {
        bench.apply(&limited(number, 5)).unwrap();
    }
    let refused = bench.apply(&limited(3, 5)).unwrap_err();
    assert_eq!(refused.reason(), Reason::NamespaceLimit, "{refused}");
    assert_eq!(bench.index(&limited(3, 5)), 0, "it works without a limit");
    // A limit may change, and the next one has the room of one that goes.
    bench.apply(&limited(1, 6)).unwrap();
    bench.apply(&spec(2, [1]).plan()).unwrap();
    bench.writer.tidy();
    assert_ne!(bench.index(&limited(3, 5)), 0);
    assert_eq!(bench.waiting(), [""; 0]);
}

#[test]
fn one_wait_for_programs_frees_all_elements_that_no_flow_holds() {
    let mut bench = Bench::new(ROOMY);
    for number in 1..=ROOM {
        bench.apply(&limited(number, 5)).unwrap();
    }
    for number in 1..=ROOM {
        bench.apply(&spec(number, [1]).plan()).unwrap();
    }
    let before = bench.kernel.state().graces;
    for number in 1..=ROOM {
        bench.apply(&limited(100 + number, 5)).unwrap();
    }
    assert_eq!(bench.kernel.state().graces - before, 1);
}

#[test]
fn the_next_agent_finds_the_limits() {
    let mut bench = Bench::new(ROOMY);
    for number in 1..=3 {
        bench.apply(&limited(number, 5)).unwrap();
    }
    bench.writer.settle();
    let indexes = [1, 2, 3].map(|number| bench.index(&limited(number, 5)));
    bench.hold(indexes[0], 4);
    bench.hold(indexes[2], 4);
    bench.restart();
    // In another order, with another limit, and one Service is gone.
    bench.apply(&limited(2, 5)).unwrap();
    bench.apply(&limited(9, 5)).unwrap();
    bench.apply(&limited(1, 6)).unwrap();
    bench.writer.settle();
    bench.writer.finish_adoption();
    assert_eq!(bench.index(&limited(1, 6)), indexes[0]);
    assert_eq!(bench.index(&limited(2, 5)), indexes[1]);
    assert!(!indexes.contains(&bench.index(&limited(9, 5))));
    let seats = bench.seats(indexes[0]);
    assert_eq!((seats.limit, seats.used()), (6, 4));
    assert_eq!(bench.seats(indexes[2]).limit, 0);
}

#[test]
fn who_reads_what_is_counted_goes_along_to_other_maps() {
    let mut bench = Bench::new(ROOMY);
    let (roster, limits) = (bench.writer.roster(), bench.writer.limited());
    let other = Kernel::new(ROOMY);
    bench.writer.reopen(other.maps()).unwrap();
    bench.kernel = other;
    let plan = limited(1, 5);
    bench.apply(&plan).unwrap();
    let index = bench.index(&plan);
    let known: Vec<_> = limits.all().into_iter().map(|(_, limit)| limit).collect();
    assert_eq!(known.len(), 1);
    assert_eq!((known[0].index, known[0].most), (index, 5));
    assert_eq!(roster.len(), 1);
    let id = bench.writer.id(&Key::of(&plan)).unwrap();
    bench.kernel.state().service_stats[id as usize].connections = 7;
    let mut connections = Vec::new();
    roster.tell(|_, counts| connections.push(counts.stats.connections));
    assert_eq!(connections, [7]);
}
