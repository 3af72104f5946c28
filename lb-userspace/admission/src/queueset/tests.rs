//! Tests the choice among queues, from states that calls alone do not reach.

use serde::Deserialize;

use super::*;
use crate::level::{Limited, Queuing};

#[derive(Deserialize)]
struct File {
    e_queueset: Section,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Section {
    find_dispatch_queue: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Case {
    name: String,
    concurrency_limit: u32,
    tot_seats_in_use: u64,
    robin_index: i64,
    queues: Vec<QueueCase>,
    attempts: usize,
    expect_queue: Vec<Option<u32>>,
    expect_robin_index_after: Vec<i64>,
    note: String,
}

#[derive(Deserialize)]
struct QueueCase {
    #[serde(rename = "nextDispatchR_seatSeconds")]
    next_dispatch_r: u64,
    #[serde(rename = "head_initialSeats")]
    head_initial_seats: u32,
}

#[test]
fn queues_are_picked_as_by_upstream() {
    let file: File = serde_json::from_str(include_str!("../../tests/data/apf.json")).unwrap();
    assert!(!file.e_queueset.find_dispatch_queue.is_empty());
    for case in file.e_queueset.find_dispatch_queue {
        let number = case.queues.len() as u32;
        let kind = LevelKind::Limited(Limited {
            borrowing_limit_percent: None,
            response: LimitResponse::Queue(Queuing {
                queues: number,
                hand_size: 1,
                queue_length_limit: 10,
            }),
            connections: ConnectionLimits::default(),
        });
        let mut set = QueueSet::new(&kind, Policy::Exact, 0).unwrap();
        for (hash, queue) in (0..).zip(&case.queues) {
            set.arrive(
                Arrival {
                    hash,
                    initial_seats: queue.head_initial_seats,
                    final_seats: 0,
                    additional_latency: 0,
                    deadline: None,
                },
                0,
            );
            let charged = SeatSeconds::new(queue.next_dispatch_r as f64, 1_000_000_000);
            set.queues.at_mut(hash as u32).set_usage(charged, 0);
        }
        set.limit = case.concurrency_limit;
        set.seats_in_use = case.tot_seats_in_use;
        // APF's -1 stands for the last queue: any number that is -1 modulo the number of queues.
        set.robin = case.robin_index.rem_euclid(i64::from(number)) as u32;
        for attempt in 0..case.attempts {
            if case.note.contains("before attempt 3") && attempt == 2 {
                set.seats_in_use = 25;
            }
            let picked = set.pick(0).map(|candidate| candidate.slot);
            let expected = case.expect_queue[attempt];
            assert_eq!(picked, expected, "{}, attempt {attempt}", case.name);
            let served = i64::from(picked.unwrap_or(set.robin));
            assert_eq!(
                served, case.expect_robin_index_after[attempt],
                "{}",
                case.name
            );
        }
    }
}
