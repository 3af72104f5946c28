//! How evenly seats are divided among flows that all want more than their part.

use lb_admission::{queueset::Policy, simulate::report::Fairness};
use serde_json::{Value, json};

use crate::support::{level, simulate};

const SECOND: u64 = 1_000_000_000;

/// Five flows that send from half to ten times what the level can take.
fn fairness(policy: Policy, hold: u64, duration: u64) -> Fairness {
    let capacity = 100.0 / (hold as f64 / 1e9);
    let source = |(index, load): (usize, &f64)| -> Value {
        json!({
            "name": format!("flow {index}"),
            "connections_per_second": load * capacity,
            "hold_ns": hold,
            "random_holds": true,
        })
    };
    let sources: Vec<Value> = [0.5, 1.0, 2.0, 5.0, 10.0]
        .iter()
        .enumerate()
        .map(source)
        .collect();
    let workload = json!({"level": "tested", "duration_ns": duration, "sources": sources});
    let levels = [level("tested", 1, 128, 6)];
    simulate(policy, Some(SECOND), &levels, 100, workload).levels[0].fairness
}

#[test]
fn seats_are_even_for_holds_of_any_length() {
    for (hold, duration) in [
        (SECOND / 100, 2 * SECOND),
        (SECOND, 100 * SECOND),
        (100 * SECOND, 3000 * SECOND),
    ] {
        let ours = fairness(Policy::Connections, hold, duration);
        let exact = fairness(Policy::Exact, hold, duration);
        println!("{hold} ns: {ours:?}, exact {exact:?}");
        assert!(ours.jain_seat_seconds.unwrap() > 0.95, "{hold}");
        assert!(ours.jain_seats.unwrap() > 0.94, "{hold}");
        assert!(ours.jain_seats > exact.jain_seats, "{hold}");
    }
}
