//! The flow table with many threads: no tuple is live twice, none is lost, and no record is half
//! written.

use std::{
    collections::HashMap,
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use lb_common::{
    addr::{Ip4, Ip6},
    flow::{Flow, claim::Refused, record::kill, table},
    verdict::Reason,
};
use lb_datapath::memory::{Family, FlowTable};
use lb_objects::IpFamily;

use crate::{
    flow_table::{open, tuple},
    hooks::ingress,
    scene::Scene,
};

const THREADS: usize = 8;

#[test]
fn threads_claim_each_tuple_once() {
    claim_each_once::<Ip4>();
    claim_each_once::<Ip6>();
}

/// All threads claim the same tuples in the same order, so that they meet all the time.
fn claim_each_once<A: Family + Send + Sync>() {
    const TUPLES: u32 = 2_000;
    let flows = FlowTable::<A>::new(4 * TUPLES);
    let barrier = Barrier::new(THREADS);
    let claims: Vec<_> = (0..TUPLES).map(|_| AtomicUsize::new(0)).collect();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (flows, claims, barrier) = (&flows, &claims, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for number in 0..TUPLES {
                    let tuple = tuple::<A>(number);
                    // Nobody may win a race; a client would then send again.
                    let outcome = loop {
                        match open(flows, &tuple, thread as u32) {
                            Err(Refused::Race) => thread::yield_now(),
                            outcome => break outcome,
                        }
                    };
                    match outcome {
                        Ok(()) => _ = claims[number as usize].fetch_add(1, Relaxed),
                        Err(refused) => assert_eq!(refused, Refused::Exists),
                    }
                    let found = table::find(flows, &tuple).expect("whoever claimed it");
                    // SAFETY: no thread kills records here, so the record stays live.
                    let found = unsafe { found.as_ref() };
                    assert_eq!(found.last_seen, found.service, "written before it is seen");
                }
            });
        }
    });
    assert!(claims.iter().all(|claims| claims.load(Relaxed) == 1));
    assert_eq!(flows.live().count(), TUPLES as usize);
}

#[test]
fn threads_claim_and_kill_without_duplicates_or_losses() {
    const ROUNDS: u32 = 60;
    const TUPLES: u32 = 24;
    let mut flows = FlowTable::<Ip4>::new(64);
    for round in 0..ROUNDS {
        let (opened, killed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let before = flows.live().count();
        thread::scope(|scope| {
            for thread in 0..THREADS as u32 {
                let (flows, opened, killed) = (&flows, &opened, &killed);
                scope.spawn(move || {
                    let mut random = round * 31 + thread + 1;
                    for _ in 0..200 {
                        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let number = (random >> 8) % TUPLES;
                        let tuple = tuple::<Ip4>(number);
                        match (random >> 28, table::find(flows, &tuple)) {
                            (0..4, Some(record)) => {
                                if kill(record, 0).is_some() {
                                    killed.fetch_add(1, Relaxed);
                                }
                            }
                            _ => {
                                if open(flows, &tuple, thread).is_ok() {
                                    opened.fetch_add(1, Relaxed);
                                }
                            }
                        }
                    }
                });
            }
        });

        let mut live = HashMap::new();
        for flow in flows.live() {
            *live.entry(number_of(&flow)).or_insert(0) += 1;
        }
        assert!(
            live.values().all(|count| *count == 1),
            "round {round}: {live:?}"
        );
        let balance = before + opened.load(Relaxed) - killed.load(Relaxed);
        assert_eq!(live.len(), balance, "round {round}");
        for number in live.keys() {
            assert!(
                table::find(&flows, &tuple::<Ip4>(*number)).is_some(),
                "round {round}"
            );
        }
        flows.bury_dead();
    }
}

#[test]
fn packets_of_one_connection_on_many_cpus_open_one_flow() {
    for scene in Scene::each() {
        let scene = Scene {
            flow_records: 1 << 12,
            ..scene
        };
        let tables = scene.tables();
        let barrier = Barrier::new(THREADS);
        let frames: Vec<_> = (1..=200).map(|port| scene.opening(port)).collect();
        let opened = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    for frame in &frames {
                        match ingress(&tables, frame).reason {
                            Reason::Opened => _ = opened.fetch_add(1, Relaxed),
                            Reason::ToEndpoint
                            | Reason::InsertRace
                            | Reason::SnatPortsExhausted => {}
                            reason => panic!("{reason:?}"),
                        }
                    }
                });
            }
        });
        let live = match scene.family {
            IpFamily::V4 => tables.flows::<Ip4>().live().count(),
            IpFamily::V6 => tables.flows::<Ip6>().live().count(),
        };
        assert!(opened.load(Relaxed) >= frames.len() * 9 / 10);
        assert_eq!(
            live as u64,
            2 * tables.stats(1).connections,
            "two records a flow"
        );
        for frame in &frames {
            let reason = ingress(&tables, frame).reason;
            assert!(
                matches!(reason, Reason::ToEndpoint | Reason::Opened),
                "{reason:?}"
            );
        }
        assert_eq!(tables.stats(1).connections, frames.len() as u64);
    }
}

fn number_of(flow: &Flow<Ip4>) -> u32 {
    flow.source_port.into()
}
