//! Tests the choice among queues, from states that calls alone do not reach.

use proptest::{collection::vec, prelude::*};
use serde::Deserialize;

use super::{tournament::Conditions, *};
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
            audited: false,
        });
        let shape = Shape::new(&kind).unwrap();
        let mut set = QueueSet::new(shape, Policy::Exact, 0);
        for (hash, queue) in (0..).zip(&case.queues) {
            set.arrive(
                Arrival {
                    hash,
                    schema: 0,
                    most_of_flow: u32::MAX,
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
        set.holds.seats = case.tot_seats_in_use;
        set.tick.is_stale = true;
        // APF's -1 stands for the last queue: any number that is -1 modulo the number of queues.
        set.robin = case.robin_index.rem_euclid(i64::from(number)) as u32;
        for attempt in 0..case.attempts {
            if case.note.contains("before attempt 3") && attempt == 2 {
                set.holds.seats = 25;
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

/// The queue that a look at every queue finds, as APF does it.
fn scan(set: &QueueSet) -> Option<u32> {
    if set.holds.seats >= u64::from(set.limit) {
        return None;
    }
    let number = set.queues.len();
    let circle = (1..=number).map(|step| set.queues.slot((set.robin + step) % number));
    let finish_r = |slot: u32| {
        let queue = set.queues.at(slot);
        queue
            .head()
            .map(|_| queue.usage(set.synchronised_at) + queue.head_work)
    };
    // The first of equals.
    let first = circle
        .filter(|&slot| finish_r(slot).is_some())
        .min_by_key(|&slot| finish_r(slot));
    first.filter(|&slot| set.has_room(set.queues.at(slot).head_width, 0))
}

/// The same for connections: by the order of the last tick, among those that meet conditions.
fn scan_of_tick(set: &QueueSet, required: Conditions) -> Option<u32> {
    let number = set.queues.len();
    let circle = (1..=number).map(|step| set.queues.slot((set.robin + step) % number));
    let meets = circle.filter_map(|slot| {
        let entry = set.entry(slot)?;
        (entry.meets & required == required).then_some((slot, entry.key))
    });
    meets.min_by_key(|&(_, key)| key).map(|(slot, _)| slot)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_order_is_that_of_a_scan(
        steps in vec((0..12_u8, any::<u64>(), 1..4_u32, 0..3_000_000_u64), 1..200),
        exact in any::<bool>(),
        limit in 1..40_u32,
    ) {
        let policy = if exact { Policy::Exact } else { Policy::Connections };
        let kind = |queues, hand_size| {
            let queuing = Queuing { queues, hand_size, queue_length_limit: 5 };
            let kind = LevelKind::Limited(Limited {
                borrowing_limit_percent: None,
                response: match queues {
                    0 => LimitResponse::Reject,
                    _ => LimitResponse::Queue(queuing),
                },
                connections: ConnectionLimits::default(),
                audited: false,
            });
            Shape::new(&kind).unwrap()
        };
        let mut set = QueueSet::new(kind(32, 4), policy, 0);
        set.set_limit(limit, 0);
        let (mut now, mut held, mut waiting) = (0, Vec::new(), Vec::new());
        for (op, number, width, elapsed) in steps {
            now += elapsed;
            let place = |length: usize| usize::try_from(number).unwrap() % length;
            match op {
                0..6 => {
                    let arrival = Arrival::connection(number % 20, width, elapsed % 3, None);
                    match set.arrive(arrival, now) {
                        Verdict::Queued(handle) => waiting.push(handle),
                        Verdict::Admitted(grant) => held.push(grant),
                        Verdict::Rejected(_) => {}
                    }
                }
                6 | 7 if !held.is_empty() => set.finish(held.remove(place(held.len())), now),
                8 if !held.is_empty() => set.abort(held.remove(place(held.len())), now),
                9 if !held.is_empty() => {
                    let place = place(held.len());
                    set.establish(&mut held[place], now);
                }
                10 if !waiting.is_empty() => {
                    set.cancel(waiting.remove(place(waiting.len())), now);
                }
                11 if number % 8 == 0 => set.configure(kind(width * 8 - 8, 2), now),
                _ => while set.fire(now).is_some() {},
            }
            loop {
                set.synchronise(now);
                if exact {
                    let found = set.pick(now).map(|candidate| candidate.slot);
                    prop_assert_eq!(found, scan(&set));
                } else {
                    set.bring_order_up_to_date(now);
                    for required in 0..=gate::ALL {
                        let found = set.first(required).map(|(slot, _)| slot);
                        prop_assert_eq!(found, scan_of_tick(&set, required), "{}", required);
                    }
                }
                let Some(dispatch) = set.dispatch(now) else {
                    break;
                };
                held.push(dispatch.grant);
            }
        }
        // When all are gone, no flow is left with anything.
        for handle in waiting {
            set.cancel(handle, now);
        }
        for grant in held {
            set.finish(grant, now);
        }
        while set.fire(u64::MAX).is_some() {}
        prop_assert!(set.is_empty());
        for hash in 0..20 {
            if let Some(flow) = set.flows.find(hash) {
                prop_assert_eq!((flow.connections, flow.waiting, flow.seats), (0, 0, 0));
            }
        }
    }
}
