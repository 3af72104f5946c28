//! The flow table under many threads: no tuple live twice, none lost, nothing half written.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Barrier,
        atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use lb_common::{
    addr::{Address, Ip4, Ip6},
    flow::{
        Flow,
        table::{self, Refused, Slots},
        tag,
    },
    parse::{TCP, Tuple},
    verdict::Reason,
};
use node_lb::{
    memory::{Family, FlowTable},
    model::IpFamily,
};
use proptest::{collection::vec, prelude::*};

use crate::{hooks::ingress, scene::Scene};

const THREADS: usize = 8;

proptest! {
    /// Against a set: whatever is claimed, found and killed, in whatever order.
    #[test]
    fn one_thread_sees_a_set(steps in vec((0..40u16, 0..4u8), 1..400)) {
        let mut flows = FlowTable::<Ip4>::new(16);
        let mut live = HashMap::new();
        for (number, step) in steps {
            let tuple = tuple::<Ip4>(number.into());
            let found = table::find(&flows, &tuple);
            prop_assert_eq!(found.is_some(), live.contains_key(&number));
            match (step, found) {
                (0, Some(record)) => {
                    prop_assert!(table::kill(record));
                    prop_assert!(!table::kill(record), "only once");
                    live.remove(&number);
                }
                (1, _) => flows.bury_dead(),
                _ => match open(&flows, &tuple, 7) {
                    Ok(()) => prop_assert!(live.insert(number, ()).is_none()),
                    Err(Refused::Exists) => prop_assert!(live.contains_key(&number)),
                    Err(Refused::Full) => prop_assert!(live.len() + 1 > table::GROUP as usize / 2),
                    Err(Refused::Race) => prop_assert!(false, "nobody to race with"),
                },
            }
            prop_assert_eq!(flows.live().count(), live.len());
        }
    }

    #[test]
    fn a_search_visits_two_whole_groups(hash: u64, bits in 4..20u32) {
        let mask = (1 << bits) - 1;
        let steps = 2 * table::GROUP;
        let mut seen: Vec<_> = (0..steps).map(|step| table::position(hash, mask, step)).collect();
        prop_assert!(seen.iter().all(|index| *index <= mask));
        prop_assert_eq!(seen[0], hash as u32 & mask, "home first");
        seen.sort_unstable();
        seen.dedup();
        prop_assert_eq!(seen.len(), steps as usize);
        let groups: BTreeSet<_> =
            seen.iter().map(|index| index / table::GROUP).collect();
        prop_assert_eq!(groups.len(), 2);
    }
}

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
                    // A race is nobody's win: a client would send again.
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
                    // SAFETY: nobody kills here.
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
        let counts: Vec<_> = (0..TUPLES).map(|_| AtomicU32::new(0)).collect();
        let (opened, killed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let before = flows.live().count();
        thread::scope(|scope| {
            for thread in 0..THREADS as u32 {
                let (flows, counts, opened, killed) = (&flows, &counts, &opened, &killed);
                scope.spawn(move || {
                    let mut random = round * 31 + thread + 1;
                    for _ in 0..200 {
                        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let number = (random >> 8) % TUPLES;
                        let tuple = tuple::<Ip4>(number);
                        match (random >> 28, table::find(flows, &tuple)) {
                            (0..4, Some(record)) => {
                                if table::kill(record) {
                                    killed.fetch_add(1, Relaxed);
                                }
                            }
                            _ => {
                                if open(flows, &tuple, thread).is_ok() {
                                    opened.fetch_add(1, Relaxed);
                                }
                            }
                        }
                        counts[number as usize].fetch_add(1, Relaxed);
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
fn a_record_being_claimed_is_a_rival() {
    let flows = FlowTable::<Ip4>::new(16);
    let tuple = tuple::<Ip4>(1);
    let mut refused = Refused::Exists;
    let claim = table::claim(&flows, &tuple, &mut refused).expect("an empty table");
    assert!(table::find(&flows, &tuple).is_none(), "not visible yet");
    assert_eq!(open(&flows, &tuple, 0), Err(Refused::Race));

    // Given back, it is nobody's rival, and its place is used again.
    let index = index_of(&flows, claim.record().as_ptr());
    claim.release();
    assert_eq!(open(&flows, &tuple, 0), Ok(()));
    let found = table::find(&flows, &tuple).unwrap();
    assert_eq!(index_of(&flows, found.as_ptr()), index);
    assert_eq!(open(&flows, &tuple, 0), Err(Refused::Exists));
}

#[test]
fn two_claims_that_do_not_see_each_other_at_first_do_in_the_end() {
    let flows = FlowTable::<Ip4>::new(16);
    let tuple = tuple::<Ip4>(1);
    let hash = table::hash(&tuple, flows.secret());
    // A rival that began its search before: it holds a record further on, still being written.
    let rival = flows.slot(table::position(hash, flows.mask(), 3)).unwrap();
    // SAFETY: one thread.
    let rival = unsafe { &mut *rival.as_ptr() };
    for step in 0..3 {
        let record = flows
            .slot(table::position(hash, flows.mask(), step))
            .unwrap();
        // SAFETY: as above.
        unsafe { (*record.as_ptr()).tag = tag::TOMB };
    }
    rival.tag = tag::claimed(tag::CLEAN, hash);
    assert_eq!(open(&flows, &tuple, 0), Err(Refused::Race));

    // Live, it is the tuple's record.
    write(rival, &tuple, 0);
    rival.tag = tag::with_state(rival.tag, tag::LIVE);
    assert_eq!(open(&flows, &tuple, 0), Err(Refused::Exists));

    // Dead, it only lies in the way.
    rival.tag = tag::with_state(rival.tag, tag::DEAD);
    assert_eq!(open(&flows, &tuple, 0), Ok(()));
}

#[test]
fn every_claim_raises_the_generation() {
    let mut flows = FlowTable::<Ip4>::new(16);
    let tuple = tuple::<Ip4>(1);
    let mut tags = Vec::new();
    for _ in 0..4 {
        open(&flows, &tuple, 0).unwrap();
        let record = table::find(&flows, &tuple).unwrap();
        tags.push(table::read_tag(record));
        table::kill(record);
        flows.bury_dead();
    }
    tags.dedup();
    assert_eq!(tags.len(), 4);
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

/// Claims, writes and publishes a record, marked as a thread's.
fn open<A: Family>(flows: &FlowTable<A>, tuple: &Tuple<A>, mark: u32) -> Result<(), Refused> {
    let mut refused = Refused::Exists;
    let claim = table::claim(flows, tuple, &mut refused).ok_or(refused)?;
    // SAFETY: a claimed record is its claimer's alone.
    write(unsafe { claim.record().as_mut() }, tuple, mark);
    claim.publish();
    Ok(())
}

fn write<A: Address>(flow: &mut Flow<A>, tuple: &Tuple<A>, mark: u32) {
    flow.source = tuple.source;
    flow.destination = tuple.destination;
    flow.source_port = tuple.source_port;
    flow.destination_port = tuple.destination_port;
    flow.last_seen = mark;
    flow.service = mark;
}

fn tuple<A: Family>(number: u32) -> Tuple<A> {
    Tuple {
        source_port: number as u16,
        destination_port: 80,
        protocol: TCP,
        ..Tuple::default()
    }
}

fn number_of(flow: &Flow<Ip4>) -> u32 {
    flow.source_port.into()
}

fn index_of(flows: &FlowTable<Ip4>, record: *mut Flow<Ip4>) -> Option<u32> {
    (0..=flows.mask()).find(|index| flows.slot(*index).map(|r| r.as_ptr()) == Some(record))
}
