//! The work of an API server after a write.

use lb_admission::simulate::Notification;
use serde::Deserialize;

use crate::vectors;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Case {
    watchers: u32,
    max_seats: u32,
    final_seats: u32,
    #[serde(rename = "additionalLatency_ms")]
    additional_latency: u64,
}

#[test]
fn every_ten_watchers_take_a_seat_for_a_moment() {
    let cases: Vec<Case> = vectors::at("/g_extras/mutatingWork/cases");
    assert!(!cases.is_empty());
    for case in cases {
        let expected = Notification {
            seats: case.final_seats,
            time: case.additional_latency * 1_000_000,
        };
        let found = Notification::of_write(case.watchers, case.max_seats);
        assert_eq!(found, expected, "{} watchers", case.watchers);
    }
    let unlimited = Notification::of_write(u32::MAX, 0);
    assert_eq!(unlimited.seats, 10);
}
