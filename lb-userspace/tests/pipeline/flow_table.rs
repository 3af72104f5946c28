//! The flow table's own rules: a claimed tuple is found, once, until it is killed.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeSet, HashMap},
};

use lb_common::{
    addr::{Address, Ip4},
    flow::{
        Flow, Record, Timeouts,
        claim::{self, Claim, Refused, SHORT_GRACE},
        record::{evict_if, kill, read_tag},
        slots::{Purpose, Slots},
        steps::Plain,
        table, tag,
    },
    parse::{Segment, TCP, Tuple},
};
use lb_datapath::memory::{Family, FlowTable};
use proptest::{collection::vec, prelude::*};

proptest! {
    /// Compares the table with a set, whatever is claimed, found and killed in whatever order.
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
                    prop_assert!(kill(record, 0).is_some());
                    prop_assert!(kill(record, 0).is_none(), "only once");
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
    fn a_search_visits_whole_groups(hash: u64, bits in 5..20u32) {
        let mask = (1 << bits) - 1;
        let steps = table::GROUPS * table::GROUP;
        let mut seen: Vec<_> = (0..steps).map(|step| table::position(hash, mask, step)).collect();
        prop_assert!(seen.iter().all(|index| *index <= mask));
        prop_assert_eq!(seen[0], hash as u32 & mask, "home first");
        seen.sort_unstable();
        seen.dedup();
        prop_assert_eq!(seen.len(), steps as usize);
        let groups: BTreeSet<_> =
            seen.iter().map(|index| index / table::GROUP).collect();
        prop_assert_eq!(groups.len(), table::GROUPS as usize);
    }
}

#[test]
fn a_record_being_claimed_is_a_rival() {
    let flows = FlowTable::<Ip4>::new(16);
    let tuple = tuple::<Ip4>(1);
    let claim = claim(&flows, &tuple).expect("an empty table");
    assert!(table::find(&flows, &tuple).is_none(), "not visible yet");
    assert_eq!(open(&flows, &tuple, 0), Err(Refused::Race));

    // A claim that was given back is no rival, and its place is used again.
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
    // A rival that started its search earlier: it holds a record further on, which is still being
    // written.
    let rival = flows.slot(table::position(hash, flows.mask(), 3)).unwrap();
    // SAFETY: only this thread uses the table.
    let rival = unsafe { &mut *rival.as_ptr() };
    for step in 0..3 {
        let record = flows
            .slot(table::position(hash, flows.mask(), step))
            .unwrap();
        // SAFETY: only this thread uses the table.
        unsafe { (*record.as_ptr()).tag = tag::TOMB };
    }
    rival.tag = tag::claimed(tag::CLEAN, hash);
    assert_eq!(open(&flows, &tuple, 0), Err(Refused::Race));

    // If the rival is live, it is the tuple's record.
    write(rival, &tuple, 0);
    rival.tag = tag::with_state(rival.tag, tag::LIVE);
    assert_eq!(open(&flows, &tuple, 0), Err(Refused::Exists));

    // If it is dead, it is only in the way.
    rival.tag = tag::with_state(rival.tag, tag::DEAD);
    assert_eq!(open(&flows, &tuple, 0), Ok(()));
}

/// Whenever the other CPU comes in between, the tuple gets at most one record, and none only if
/// both gave up.
#[test]
fn claims_of_one_tuple_that_overlap_leave_one_record() {
    for published in [false, true] {
        for moment in 1..=40 {
            let flows = FlowTable::<Ip4>::new(16);
            let tuple = tuple::<Ip4>(1);
            // A third one holds the home record when the claim begins, and gives it back.
            let hash = table::hash(&tuple, flows.secret());
            let home = flows.slot(table::position(hash, flows.mask(), 0)).unwrap();
            // SAFETY: only this thread uses the table.
            unsafe { (*home.as_ptr()).tag = tag::claimed(tag::CLEAN, !hash) };
            let other = RefCell::new(None);
            let meanwhile = || {
                // SAFETY: only this thread uses the table.
                unsafe { (*home.as_ptr()).tag = tag::TOMB };
                let claim = claim(&flows, &tuple);
                *other.borrow_mut() = match published {
                    true => claim.map(|claim| publish(claim, &tuple, 1)).err().map(Err),
                    false => Some(claim),
                };
            };
            let own = claim(&Interrupted::new(&flows, moment, &meanwhile), &tuple);

            if let Ok(own) = own {
                publish(own, &tuple, 0);
            }
            if let Some(Ok(other)) = other.take() {
                publish(other, &tuple, 1);
            }
            assert!(flows.live().count() <= 1, "{published} {moment}");
        }
    }
}

/// A flow table in which something happens at a given look at a record.
struct Interrupted<'a> {
    flows: &'a FlowTable<Ip4>,
    left: Cell<u32>,
    interrupt: &'a dyn Fn(),
}

impl<'a> Interrupted<'a> {
    fn new(flows: &'a FlowTable<Ip4>, moment: u32, interrupt: &'a dyn Fn()) -> Self {
        let left = Cell::new(moment);
        Self {
            flows,
            left,
            interrupt,
        }
    }
}

impl Plain for Interrupted<'_> {}

// SAFETY: the records are those of the flow table, which meets the requirements.
unsafe impl Slots<Ip4> for Interrupted<'_> {
    fn mask(&self) -> u32 {
        self.flows.mask()
    }

    fn slot(&self, index: u32) -> Option<Record<Ip4>> {
        self.left.set(self.left.get().wrapping_sub(1));
        if self.left.get() == 0 {
            (self.interrupt)();
        }
        self.flows.slot(index)
    }

    fn secret(&self) -> [u64; 2] {
        self.flows.secret()
    }

    fn now(&self) -> u32 {
        self.flows.now()
    }

    fn timeouts(&self) -> Option<&Timeouts> {
        self.flows.timeouts()
    }

    fn count_half_open(&self, service: u32, change: i32) {
        self.flows.count_half_open(service, change);
    }

    fn count_flows(&self, service: u32, change: i32) {
        self.flows.count_flows(service, change);
    }
}

#[test]
fn a_record_that_gave_way_is_claimed_after_its_grace() {
    let tuple = tuple::<Ip4>(1);
    // The table's clock is at zero, where the clock of evictions wraps.
    for (age, outcome) in [
        (0, Err(Refused::Full)),
        (SHORT_GRACE, Err(Refused::Full)),
        (SHORT_GRACE + 1, Ok(())),
    ] {
        let flows = FlowTable::<Ip4>::new(16);
        let died = 0_u64.wrapping_sub(age.into());
        for index in 0..=flows.mask() {
            let record = flows.slot(index).unwrap();
            // SAFETY: only this thread uses the table.
            let tag = unsafe { &mut (*record.as_ptr()).tag };
            *tag = tag::with_state(*tag, tag::HALF);
            assert!(evict_if(record, *tag, died));
        }
        assert_eq!(
            open(&flows, &tuple, 0),
            outcome,
            "after {age} eighths of a tick"
        );
    }
}

#[test]
fn every_claim_raises_the_generation() {
    let mut flows = FlowTable::<Ip4>::new(16);
    let tuple = tuple::<Ip4>(1);
    let mut tags = Vec::new();
    for _ in 0..4 {
        open(&flows, &tuple, 0).unwrap();
        let record = table::find(&flows, &tuple).unwrap();
        tags.push(read_tag(record));
        kill(record, 0);
        flows.bury_dead();
    }
    tags.dedup();
    assert_eq!(tags.len(), 4);
}

/// Claims, writes and publishes a record with the mark of a thread.
pub fn open<A: Family>(flows: &FlowTable<A>, tuple: &Tuple<A>, mark: u32) -> Result<(), Refused> {
    claim(flows, tuple).map(|claim| publish(claim, tuple, mark))
}

fn claim<A: Address, S: Slots<A>>(flows: &S, tuple: &Tuple<A>) -> Result<Claim<A>, Refused> {
    let mut refused = Refused::Exists;
    let segment = Segment::default();
    let hash = table::hash(tuple, flows.secret());
    claim::claim(flows, tuple, hash, &segment, Purpose::Plain, &mut refused).ok_or(refused)
}

fn publish<A: Address>(claim: Claim<A>, tuple: &Tuple<A>, mark: u32) {
    // SAFETY: a claimed record belongs to its claimer alone.
    write(unsafe { claim.record().as_mut() }, tuple, mark);
    claim.publish(tag::LIVE);
}

fn write<A: Address>(flow: &mut Flow<A>, tuple: &Tuple<A>, mark: u32) {
    flow.source = tuple.source;
    flow.destination = tuple.destination;
    flow.source_port = tuple.source_port;
    flow.destination_port = tuple.destination_port;
    flow.last_seen = mark;
    flow.service = mark;
}

/// One of 65,536 tuples.
pub fn tuple<A: Family>(number: u32) -> Tuple<A> {
    Tuple {
        source_port: number as u16,
        destination_port: 80,
        protocol: TCP,
        ..Tuple::default()
    }
}

fn index_of(flows: &FlowTable<Ip4>, record: *mut Flow<Ip4>) -> Option<u32> {
    (0..=flows.mask()).find(|index| flows.slot(*index).map(|r| r.as_ptr()) == Some(record))
}
