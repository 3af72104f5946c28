//! Statistics of demand.

use lb_admission::demand::{DemandIntegrator, DemandStatistics};
use serde_json::Value;

use crate::vectors::{self, assert_close};

const SECOND: u64 = 1_000_000_000;

fn check(found: DemandStatistics, expected: &Value) {
    let fields = [
        ("duration", found.duration),
        ("average", found.average),
        ("deviation", found.deviation),
        ("min", found.min),
        ("max", found.max),
    ];
    for (name, found) in fields {
        match expected["results"][name].as_f64() {
            Some(expected) => assert_close(found, expected, 1e-9, name),
            None => assert!(found.is_nan(), "{name} is {found}"),
        }
    }
}

#[test]
fn demand_is_integrated_as_by_upstream() {
    let steps: Vec<Value> = vectors::at("/g_extras/integrator/upstream");
    let [first, second, third] = &steps[..] else {
        panic!("{} steps", steps.len());
    };
    let mut demand = DemandIntegrator::new(0);
    demand.set(3.0, 0);
    check(demand.statistics(SECOND), first);
    demand.reset(SECOND);
    demand.set(2.0, SECOND);
    check(demand.statistics(SECOND), second);
    demand.set(1.0, SECOND + 1_000_000);
    check(demand.statistics(SECOND + 2_000_000), third);
}
