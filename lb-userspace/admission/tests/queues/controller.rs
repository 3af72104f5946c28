//! Seats that move between levels, and levels that come and go.

use lb_admission::{
    controller::{Controller, Event, LevelId},
    level::Level,
    queueset::{Arrival, Grant, Policy, Verdict},
};

use crate::support;

const SECOND: u64 = 1_000_000_000;

/// A node with two levels of 100 seats each, of which one lends most of its own.
struct Node {
    controller: Controller,
    lender: LevelId,
    borrower: LevelId,
    now: u64,
}

fn levels() -> [Level; 2] {
    let mut lender = support::level("lender", 1, 64, 6);
    lender.lendable_percent = 90;
    let mut borrower = support::level("borrower", 1, 64, 6);
    if let lb_admission::level::LevelKind::Limited(limited) = &mut borrower.kind {
        limited.borrowing_limit_percent = None;
    }
    [lender, borrower]
}

impl Node {
    fn new(policy: Policy) -> Self {
        let controller = Controller::new(&levels(), 200, policy, 0).unwrap();
        let [lender, borrower] = ["lender", "borrower"].map(|name| controller.find(name).unwrap());
        Self {
            controller,
            lender,
            borrower,
            now: 0,
        }
    }

    /// Lets timers fire up to `to`, and admits what can be admitted.
    fn advance(&mut self, to: u64) -> Vec<(LevelId, Grant)> {
        let mut admitted = Vec::new();
        while let Some((at, _)) = self.controller.fire(to) {
            self.now = at;
            admitted.extend(self.dispatch());
        }
        self.now = to;
        admitted
    }

    fn dispatch(&mut self) -> Vec<(LevelId, Grant)> {
        let mut admitted = Vec::new();
        while let Some((level, mut dispatch)) = self.controller.dispatch(self.now) {
            self.controller
                .establish(level, &mut dispatch.grant, self.now);
            admitted.push((level, dispatch.grant));
        }
        admitted
    }

    fn arrive(&mut self, level: LevelId, hash: u64) -> Vec<(LevelId, Grant)> {
        let arrival = Arrival::connection(hash, 1, 0, None);
        let verdict = self.controller.arrive(level, arrival, self.now);
        assert!(matches!(verdict, Verdict::Queued(_)), "{verdict:?}");
        self.dispatch()
    }

    fn limit(&self, level: LevelId) -> u32 {
        self.controller.level(level).limit()
    }
}

/// Many connections of many flows arrive at the borrower; each lasts for `hold`.
fn borrow(node: &mut Node, hold: u64, connections: u64) {
    let borrower = node.borrower;
    let mut executing = std::collections::VecDeque::new();
    let interval = hold / 150;
    for number in 0..connections {
        let mut admitted = node.advance(node.now + interval);
        admitted.extend(node.arrive(borrower, number * 7919));
        let until = node.now + hold;
        executing.extend(admitted.into_iter().map(|(_, grant)| (until, grant)));
        while executing.front().is_some_and(|(end, _)| *end <= node.now) {
            if let Some((_, grant)) = executing.pop_front() {
                node.controller.finish(borrower, grant, node.now);
            }
            let admitted = node.dispatch();
            let until = node.now + hold;
            executing.extend(admitted.into_iter().map(|(_, grant)| (until, grant)));
        }
    }
}

#[test]
fn what_turns_over_may_borrow_and_what_does_not_may_not() {
    let mut node = Node::new(Policy::Connections);
    borrow(&mut node, SECOND, 2000);
    let quick = node.limit(node.borrower);
    assert!(quick > 140, "connections of a second borrow: {quick}");

    let mut node = Node::new(Policy::Connections);
    borrow(&mut node, 3600 * SECOND, 300);
    let slow = node.limit(node.borrower);
    assert!(slow <= 110, "connections of an hour do not: {slow}");
}

#[test]
fn a_level_gets_its_own_seats_back_as_soon_as_it_wants_them() {
    let mut node = Node::new(Policy::Connections);
    borrow(&mut node, SECOND, 2000);
    let (lender, lent) = (node.lender, node.limit(node.lender));
    assert!(lent < 60, "{lent}");
    // The level does not wait for the next period.
    let start = node.now;
    let mut admitted = 0;
    for hash in 0..100 {
        admitted += node.arrive(lender, hash).len();
    }
    admitted += node.advance(start + SECOND / 50).len();
    assert_eq!(node.limit(lender), 100);
    // All but the seats reserved for queues without a seat.
    assert!(admitted >= 95, "{admitted}");
}

#[test]
fn the_exact_mode_waits_for_its_period() {
    let mut node = Node::new(Policy::Exact);
    borrow(&mut node, SECOND, 3300);
    let lent = node.limit(node.lender);
    assert!(lent < 60, "{lent}");
    let start = node.now;
    for hash in 0..100 {
        node.arrive(node.lender, hash);
    }
    node.advance(start + SECOND / 50);
    assert_eq!(node.limit(node.lender), lent);
    node.advance(start + 10 * SECOND);
    assert!(node.limit(node.lender) >= 100);
}

#[test]
fn a_level_that_is_gone_stays_until_its_connections_are() {
    let mut node = Node::new(Policy::Connections);
    let mut admitted = node.arrive(node.borrower, 1);
    let Some((level, grant)) = admitted.pop() else {
        panic!("not admitted");
    };
    let [lender, borrower] = levels();
    node.controller
        .configure(std::slice::from_ref(&lender), 200, 1)
        .unwrap();
    assert_eq!(
        node.controller.find("borrower"),
        None,
        "it takes no arrivals"
    );
    assert_eq!(node.controller.levels().count(), 2);
    assert_eq!(node.controller.level(level).seats_in_use(), 1);

    // When the level comes back, it is the same one.
    node.controller
        .configure(&[lender.clone(), borrower], 200, 2)
        .unwrap();
    assert_eq!(node.controller.find("borrower"), Some(level));
    node.controller
        .configure(std::slice::from_ref(&lender), 200, 3)
        .unwrap();
    node.controller.finish(level, grant, 4);
    while let Some((_, event)) = node.controller.fire(5 * SECOND) {
        assert_eq!(event, Event::Adjusted);
    }
    assert_eq!(node.controller.levels().count(), 1, "and then it goes");
}

/// Skipped adjustments leave the same state as if they had been made.
#[test]
fn quiet_time_can_be_skipped() {
    for policy in support::POLICIES {
        let mut node = Node::new(policy);
        borrow(&mut node, SECOND, 2000);
        node.advance(node.now + 30 * SECOND);
        let mut skipping = node.controller.clone();
        let end = node.now + 3600 * SECOND;
        skipping.skip_adjustments(end);
        let mut adjustments = 0;
        while skipping.fire(end).is_some() {
            adjustments += 1;
        }
        assert!(adjustments <= 1, "{policy:?}: {adjustments}");
        node.advance(end);
        for level in [node.lender, node.borrower] {
            let limit = skipping.level(level).limit();
            assert_eq!(limit, node.limit(level), "{policy:?}");
        }
        assert_eq!(skipping.next_event(), node.controller.next_event());
    }
}

/// A change of the configuration moves seats at once, and does not delay the next adjustment.
#[test]
fn a_new_configuration_does_not_put_off_the_next_adjustment() {
    for policy in support::POLICIES {
        let mut controller = Controller::new(&levels(), 200, policy, 0).unwrap();
        let due = controller.next_event();
        controller.configure(&levels(), 400, due - 1).unwrap();
        let limits: u32 = controller.levels().map(|(_, level)| level.limit()).sum();
        assert_eq!((limits, controller.next_event()), (400, due), "{policy:?}");
    }
}

/// What cannot be applied as a whole changes nothing.
#[test]
fn a_configuration_is_applied_whole_or_not_at_all() {
    for policy in support::POLICIES {
        let mut controller = Controller::new(&levels(), 200, policy, 0).unwrap();
        let limits = |controller: &Controller| -> Vec<(String, u32)> {
            let levels = controller.levels();
            levels
                .map(|(name, level)| (name.to_owned(), level.limit()))
                .collect()
        };
        let before = limits(&controller);
        let other = support::level("other", 1, 8, 1);
        let impossible = support::level("impossible", 1, 512, 8);
        let twice = [other.clone(), other.clone()];
        let too_many: Vec<Level> = (0..300)
            .map(|number| support::level(&format!("level {number}"), 1, 1, 1))
            .collect();
        let refused: [&[Level]; 3] = [&[other, impossible], &twice, &too_many];
        for levels in refused {
            assert!(controller.configure(levels, 400, 1).is_err());
            assert_eq!(limits(&controller), before, "{policy:?}");
            assert!(controller.find("lender").is_some() && controller.find("other").is_none());
        }
    }
}

/// Connections that come and go in borrowed seats do not vouch for those that stay.
#[test]
fn releases_of_borrowed_seats_decide_how_much_is_lent() {
    let mut node = Node::new(Policy::Connections);
    borrow(&mut node, SECOND, 2000);
    assert!(node.controller.level(node.borrower).borrowed_released() > 0);
    // Without any borrowing, own seats that come back say nothing.
    let mut node = Node::new(Policy::Connections);
    let borrower = node.borrower;
    for number in 0..2000 {
        let mut admitted = node.arrive(borrower, number * 7919);
        node.advance(node.now + SECOND / 100);
        let (_, grant) = admitted.pop().unwrap();
        node.controller.finish(borrower, grant, node.now);
    }
    assert_eq!(node.controller.level(borrower).borrowed_released(), 0);
    for number in 0..200 {
        node.arrive(borrower, number * 104_729);
    }
    node.advance(node.now + SECOND / 4);
    let limit = node.limit(borrower);
    assert!(limit <= 106, "its own, and one beside the reserve: {limit}");
}
