//! Levels as the kernel counts them.

use lb_admission::{
    queueset::{QueueSet, QueueState},
    seat_seconds::SeatSeconds,
    shuffle::Dealer,
};
use lb_common::flow::Seats;

use super::{
    seen::{Count, Seen},
    *,
};
use crate::admission::objects::Objects;

const SECOND: u64 = 1_000_000_000;

/// What objects say, written as YAML.
fn read(text: String) -> InForce {
    let mut objects = Objects::default();
    objects.read([("a.yaml".into(), Ok(text.into_bytes()))]);
    assert_eq!(objects.errors, []);
    objects.configuration.in_force()
}

/// Two levels: one lends half of its seats, the other has as many of its own.
fn in_force() -> InForce {
    let level = |name: &str, lendable: u32| {
        format!(
            "---\napiVersion: node-lb.io/v1alpha1\nkind: PriorityLevel\nmetadata: {{name: {name}}}\n\
             spec: {{type: Limited, limited: {{nominalConcurrencyShares: 50, \
             lendablePercent: {lendable}, limitResponse: {{type: Reject}}}}}}\n"
        )
    };
    read(level("lender", 50) + &level("other", 0))
}

fn seats(taken: u32, used: u32) -> Seats {
    Seats {
        word: u64::from(taken) << 32 | u64::from(used),
        ..Seats::default()
    }
}

/// Of a level without queues.
fn alone(level: Seats) -> Counted {
    Counted {
        level,
        ..Counted::default()
    }
}

fn counted(taken: u32, used: u32) -> Counted {
    alone(seats(taken, used))
}

impl Levels {
    fn waiting(&self, level: &str) -> u32 {
        self.set(level).waiting()
    }

    fn queues(&self, level: &str) -> Vec<QueueState> {
        self.set(level).queues()
    }

    fn set(&self, level: &str) -> &QueueSet {
        let level = self.controller.find_present(level).unwrap();
        self.controller.level(level)
    }
}

fn limit(levels: &Levels, name: &str) -> u32 {
    let mut limits = levels.limits();
    limits.find(|(known, _)| *known == name).unwrap().1
}

#[test]
fn a_level_in_demand_borrows_what_another_does_not_use() {
    let mut levels = Levels::new(&in_force(), 1050, 0).unwrap();
    assert!((500..=502).contains(&limit(&levels, "other")));
    let mut taken = 0;
    let mut highest = 0;
    for step in 1..60 {
        // Connections of a tenth of a second each, as many as it may have.
        let used = limit(&levels, "other");
        highest = highest.max(used);
        taken += used * 5;
        let now = step * PERIOD;
        levels.observe("other", &counted(taken, used), now);
        levels.observe("lender", &counted(0, 0), now);
        levels.advance(now);
    }
    assert!(highest > 700, "{highest}");
    assert!(limit(&levels, "lender") >= 250, "half is not lent");

    // The lender wants its own back.
    let mut used = 0;
    for step in 60..100 {
        used = limit(&levels, "lender");
        let now = step * PERIOD;
        let wants = Seats {
            refused: 40 * step,
            ..seats(used * step as u32, used)
        };
        levels.observe("lender", &alone(wants), now);
        let of_other = limit(&levels, "other");
        taken += of_other * 5;
        levels.observe("other", &counted(taken, of_other), now);
        levels.advance(now);
    }
    assert!((500..=502).contains(&used), "{used}");
}

#[test]
fn a_level_that_is_deleted_keeps_its_seats_until_its_connections_end() {
    let all = in_force();
    let mut fewer = all.clone();
    fewer.levels.retain(|level| level.name != "other");
    for knows_the_number in [true, false] {
        let mut levels = Levels::new(&all, 1050, 0).unwrap();
        let mut step = 0;
        let mut pass = |levels: &mut Levels, of_other: Option<Counted>| {
            // More than the time after which limits follow at the latest.
            for _ in 0..60 {
                step += 1;
                let lender = Some(("lender", counted(0, 0)));
                let other = of_other.clone().map(|counted| ("other", counted));
                let all = lender.into_iter().chain(other).collect();
                levels.observe_all(&all, step * PERIOD);
                levels.advance(step * PERIOD);
            }
            step * PERIOD
        };
        let now = pass(&mut levels, Some(counted(40, 40)));
        levels.configure(&fewer, 1050, now).unwrap();
        pass(&mut levels, Some(counted(40, 40)));
        assert!(levels.limits().any(|(name, _)| name == "other"));
        pass(&mut levels, knows_the_number.then(|| counted(40, 0)));
        assert!(levels.limits().all(|(name, _)| name != "other"));
        let known = levels.observed.len();
        assert!(known < 3, "{known}");
    }
}

#[test]
fn who_holds_seats_for_long_borrows_little() {
    let mut levels = Levels::new(&in_force(), 1050, 0).unwrap();
    let mut used = 0;
    for step in 1..200 {
        used = limit(&levels, "other").max(used);
        levels.observe("other", &counted(used, used), step * PERIOD);
        levels.observe("lender", &counted(0, 0), step * PERIOD);
        levels.advance(step * PERIOD);
    }
    assert!(used < 600, "{used}");
}

#[test]
fn what_was_there_before_the_agent_came_is_held_from_now_on() {
    let count = |taken, used| Count { used, taken };
    let mut seen = Seen::default();
    seen.follow(count(1000, 40), SECOND, SECOND);
    assert_eq!((seen.holds.executing, seen.holds.seats), (40, 40));
    seen.follow(count(1010, 30), SECOND, 3 * SECOND);
    assert_eq!((seen.holds.seats, seen.holds.released), (30, 20));
    let held = seen.holds.held_time(3 * SECOND).per_seat(30.0);
    assert!((SECOND..=2 * SECOND).contains(&held), "{held}");
}

/// What is left of a sum may seem to go back while its parts are read.
#[test]
fn a_count_that_goes_back_for_a_moment_is_of_no_consequence() {
    let count = |taken, used| Count { used, taken };
    let mut seen = Seen::default();
    seen.follow(count(5, 5), 0, 0);
    seen.follow(count(4, 4), 0, SECOND);
    seen.follow(count(5, 5), SECOND, 2 * SECOND);
    assert_eq!((seen.holds.seats, seen.holds.released), (5, 1));
    seen.follow(count(6, 5), 2 * SECOND, 3 * SECOND);
    assert_eq!((seen.holds.seats, seen.holds.released), (5, 2));
}

const MILLISECOND: u64 = 1_000_000;
const SHOP: &str = "shop";

/// A level of 100 seats with so many queues, of which flows are dealt eight.
fn shop(queues: u32) -> InForce {
    read(format!(
        "apiVersion: node-lb.io/v1alpha1\nkind: PriorityLevel\nmetadata: {{name: {SHOP}}}\n\
         spec: {{type: Limited, limited: {{nominalConcurrencyShares: 100, borrowingLimitPercent: 0, \
         lendablePercent: 0, limitResponse: {{type: Queue, queuing: {{queues: {queues}, \
         handSize: 8, queueLengthLimit: 50}}}}}}}}\n"
    ))
}

/// The level and what the kernel counts of it.
struct Shop {
    levels: Levels,
    counted: Counted,
    now: u64,
}

impl Shop {
    fn new(queues: u32) -> Self {
        let levels = Levels::new(&shop(queues), 105, 0).unwrap();
        assert_eq!(limit(&levels, SHOP), 100);
        let mut shop = Self {
            levels,
            counted: Counted::default(),
            now: 0,
        };
        shop.renew(queues);
        shop
    }

    /// The kernel has other queues.
    fn renew(&mut self, queues: u32) {
        self.counted.queues = vec![0; queues as usize];
        self.levels.configure(&shop(queues), 105, self.now).unwrap();
    }

    fn hand(&self, flow: u64) -> Vec<u32> {
        let queues = self.counted.queues.len();
        let dealer = Dealer::new(queues.try_into().unwrap(), 8).unwrap();
        dealer.deal(flow).to_vec()
    }

    /// The kernel lets a connection in, and counts its seat at a queue.
    fn take(&mut self, queue: u32) {
        self.take_seats(queue, 1);
    }

    /// The same with so many seats.
    fn take_seats(&mut self, queue: u32, width: u64) {
        let all = [
            &mut self.counted.level.word,
            &mut self.counted.queues[queue as usize],
        ];
        for word in all {
            *word = word.wrapping_add(width << 32 | width);
        }
    }

    fn give_back(&mut self, queue: Option<u32>) {
        self.counted.level.word -= 1;
        if let Some(queue) = queue {
            self.counted.queues[queue as usize] -= 1;
        }
    }

    fn used(&self) -> u32 {
        Count::of(self.counted.level.word).used
    }

    /// Time goes on, and the kernel's numbers are taken over: after that they are known.
    fn observe(&mut self, elapsed: u64) {
        self.now += elapsed;
        self.levels.observe(SHOP, &self.counted, self.now);
        let set = self.levels.set(SHOP);
        assert_eq!(set.seats_in_use(), u64::from(self.used()));
        assert_eq!(set.executing(), self.used());
        for (queue, word) in set.queues().iter().zip(&self.counted.queues) {
            assert_eq!(queue.holds.seats, u64::from(Count::of(*word).used));
        }
    }

    fn park(&mut self, queue: u32, flow: u64) -> Handle {
        let deadline = self.now + 3600 * SECOND;
        let levels = &mut self.levels;
        let (_, handle) = levels
            .park(SHOP, queue, waits(flow, deadline), self.now)
            .unwrap();
        handle
    }

    /// Lets the next one in, which the kernel counts at the queue that `card` says.
    fn let_in_next(&mut self, card: impl FnOnce(Handle) -> u32) -> Option<Handle> {
        let (level, handle, grant) = self.levels.next(self.now)?;
        self.take(card(handle));
        self.levels.let_in(level, grant, self.now);
        Some(handle)
    }
}

/// A connection of a flow that waits for one seat.
fn waits(flow: u64, deadline: u64) -> Arrival {
    Arrival::connection(flow, 1, 0, Some(deadline))
}

/// A shop whose seats are all held by one flow, with fifty more of its connections waiting.
fn besieged(elephant: u64) -> Shop {
    let mut shop = Shop::new(64);
    let hand = shop.hand(elephant);
    for number in 0..100 {
        shop.take(hand[number % hand.len()]);
    }
    shop.observe(0);
    shop.observe(10 * SECOND);
    shop.levels.observe_flow(SHOP, elephant, 100, 1, shop.now);
    for number in 0..50 {
        shop.park(hand[number % hand.len()], elephant);
    }
    shop
}

#[test]
fn a_mouse_comes_before_an_elephant() {
    let (elephant, mouse) = (7, 12_345_678_901_234);
    let mut shop = besieged(elephant);
    let (hand, quiet) = (shop.hand(elephant), shop.hand(mouse));
    let card = *quiet.iter().find(|card| !hand.contains(card)).unwrap();
    shop.observe(MILLISECOND);
    assert_eq!(shop.let_in_next(|_| unreachable!()), None);
    shop.levels.observe_flow(SHOP, mouse, 0, 1, shop.now);
    let first = shop.park(card, mouse);
    assert_eq!(shop.levels.waiting(SHOP), 51);
    let of_mouse = &shop.levels.queues(SHOP)[card as usize];
    assert_eq!((of_mouse.waiting.len(), of_mouse.holds.seats), (1, 0));

    let mut admitted = Vec::new();
    for number in 0..60 {
        shop.give_back(Some(hand[number % hand.len()]));
        shop.observe(100 * MILLISECOND);
        let other_card = hand[(number + 3) % hand.len()];
        let next = shop.let_in_next(|next| if next == first { card } else { other_card });
        admitted.extend(next);
    }
    assert_eq!(admitted[0], first);
    assert_eq!((admitted.len(), shop.levels.waiting(SHOP)), (51, 0));
    shop.observe(MILLISECOND);
}

#[test]
fn seats_are_kept_for_a_mouse_while_it_is_remembered() {
    let (elephant, mouse) = (7, 12_345_678_901_234);
    let mut shop = besieged(elephant);
    assert_eq!(shop.levels.kept_back(SHOP), 0, "an elephant alone");
    let (hand, quiet) = (shop.hand(elephant), shop.hand(mouse));
    let card = *quiet.iter().find(|card| !hand.contains(card)).unwrap();
    shop.levels.observe_flow(SHOP, mouse, 0, 1, shop.now);
    let first = shop.park(card, mouse);
    shop.give_back(Some(hand[0]));
    shop.observe(MILLISECOND);
    assert_eq!(shop.let_in_next(|_| card), Some(first));
    assert_eq!(shop.levels.kept_back(SHOP), 2, "or for somebody new");
    for card in &hand[1..3] {
        shop.give_back(Some(*card));
    }
    shop.observe(MILLISECOND);
    assert_eq!(shop.let_in_next(|_| unreachable!()), None);
    // Nothing happens but that time goes by.
    shop.observe(60 * SECOND);
    assert_eq!(shop.levels.kept_back(SHOP), 0);
    for card in &hand[1..3] {
        assert!(shop.let_in_next(|_| *card).is_some());
    }
    assert_eq!(shop.let_in_next(|_| unreachable!()), None);
}

#[test]
fn the_first_in_a_queue_has_waited_there_for_longest() {
    let mut shop = Shop::new(64);
    let since = |shop: &Shop| {
        let mut since: Vec<_> = shop.levels.waiting_since(SHOP).collect();
        since.sort_unstable();
        since
    };
    shop.observe(SECOND);
    let first = shop.park(9, 7);
    shop.observe(SECOND);
    shop.park(9, 7);
    shop.park(3, 8);
    assert_eq!(since(&shop), [(3, 2 * SECOND), (9, SECOND)]);
    shop.observe(SECOND);
    let level = shop.levels.controller.find(SHOP).unwrap();
    assert!(shop.levels.cancel(level, first, shop.now));
    assert_eq!(since(&shop), [(3, 2 * SECOND), (9, 2 * SECOND)]);
}

#[test]
fn numbers_stay_those_of_the_kernel_however_connections_come_and_go() {
    let mut shop = Shop::new(64);
    let mut connections = std::collections::VecDeque::new();
    let (mut seed, mut held, mut admitted) = (1_u64, SeatSeconds::ZERO, 0);
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005);
        seed = seed.wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut came_at = std::collections::HashMap::new();
    for step in 0..20_000 {
        // Connections of a second each.
        while let Some((at, queue)) = connections.front().copied()
            && at + SECOND <= shop.now
        {
            connections.pop_front();
            held += SeatSeconds::new(1.0, (shop.now - at) as i64);
            shop.give_back(Some(queue));
        }
        // More than there are seats for, and then less.
        let is_busy = step / 2000 % 2 == 0;
        if random(10) < if is_busy { 3 } else { 1 } {
            let flow = random(30).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let hand = shop.hand(flow);
            let card = hand[random(8) as usize];
            if shop.levels.waiting(SHOP) == 0 && shop.used() < 100 {
                shop.take(card);
                connections.push_back((shop.now, card));
            } else if shop.levels.waiting(SHOP) < 200 {
                let waits = shop.park(hand[random(8) as usize], flow);
                came_at.insert(waits, card);
            }
        }
        shop.observe(2 * MILLISECOND);
        shop.levels.advance(shop.now);
        while let Some((level, handle, grant)) = shop.levels.next(shop.now) {
            if random(10) == 0 {
                shop.levels.not_let_in(level, grant, shop.now);
                continue;
            }
            admitted += 1;
            let card = came_at[&handle];
            shop.take(card);
            connections.push_back((shop.now, card));
            shop.levels.let_in(level, grant, shop.now);
        }
        assert!(shop.used() <= 100);
    }
    assert!(admitted > 1000, "{admitted}");
    let mut sum = Holds::default();
    for queue in shop.levels.queues(SHOP) {
        sum += queue.holds;
    }
    assert_eq!(sum.seats, u64::from(shop.used()));
    let mean = sum.released_time.per_seat(sum.released as f64);
    assert!(
        (900 * MILLISECOND..1100 * MILLISECOND).contains(&mean),
        "{mean}"
    );
    for (at, _) in connections {
        held += SeatSeconds::new(1.0, (shop.now - at) as i64);
    }
    let ratio = sum.used(shop.now).units() as f64 / held.units() as f64;
    assert!((0.99..1.01).contains(&ratio), "{ratio}");
}

#[test]
fn a_wide_connection_waits_for_all_its_seats() {
    let (elephant, wide) = (7, 12_345_678_901_234);
    let mut shop = besieged(elephant);
    let (hand, card) = (shop.hand(elephant), shop.hand(wide)[0]);
    shop.levels.observe_flow(SHOP, wide, 0, 3, shop.now);
    let (_, first) = shop
        .levels
        .park(SHOP, card, Arrival::connection(wide, 3, 0, None), shop.now)
        .unwrap();
    for queue in &hand[..2] {
        shop.give_back(Some(*queue));
        shop.observe(MILLISECOND);
        // It is next, and nobody overtakes it.
        assert_eq!(shop.let_in_next(|_| unreachable!()), None);
    }
    shop.give_back(Some(hand[2]));
    shop.observe(MILLISECOND);
    let (level, next, grant) = shop.levels.next(shop.now).unwrap();
    assert_eq!(next, first);
    shop.take_seats(card, 3);
    shop.levels.let_in(level, grant, shop.now);
    shop.observe(MILLISECOND);
    assert_eq!((shop.used(), shop.levels.next(shop.now)), (100, None));
}

#[test]
fn who_waits_for_too_long_is_named() {
    let mut shop = besieged(7);
    let park = |levels: &mut Levels, queue, deadline| {
        let parked = levels.park(SHOP, queue, waits(9, deadline), 10 * SECOND);
        parked.unwrap()
    };
    let late = park(&mut shop.levels, 1, 13 * SECOND);
    let early = park(&mut shop.levels, 2, 11 * SECOND);
    let (level, gone) = park(&mut shop.levels, 3, 11 * SECOND);
    assert!(shop.levels.cancel(level, gone, 10 * SECOND));
    assert!(!shop.levels.cancel(level, gone, 10 * SECOND));
    assert_eq!(shop.levels.advance(12 * SECOND), [early]);
    assert_eq!(shop.levels.advance(14 * SECOND), [late]);
    assert_eq!(shop.levels.waiting(SHOP), 50);
}

#[test]
fn who_may_not_wait_is_told_why() {
    let mut levels = Levels::new(&in_force(), 1050, 0).unwrap();
    let parked = levels.park("nowhere", 0, waits(1, SECOND), 0);
    assert_eq!(parked, Err(NotParked::NoQueue));
    let parked = levels.park("other", 0, waits(1, SECOND), 0);
    assert_eq!(
        parked,
        Err(NotParked::NoQueue),
        "it has room, and no queues"
    );
    levels.observe("other", &counted(1000, 1000), 0);
    let parked = levels.park("other", 0, waits(1, SECOND), 0);
    let full = NotParked::Rejected(Rejection::ConcurrencyLimit);
    assert_eq!(parked, Err(full));

    let mut shop = Shop::new(64);
    for _ in 0..50 {
        shop.park(5, 1);
    }
    let parked = shop.levels.park(SHOP, 5, waits(1, SECOND), 0);
    let full = NotParked::Rejected(Rejection::QueueFull);
    assert_eq!(parked, Err(full));
}

#[test]
fn numbers_are_right_while_queues_become_more_and_fewer() {
    let elephant = 7;
    let mut shop = besieged(elephant);
    for flow in 100..120 {
        let queue = shop.hand(flow)[0];
        shop.park(queue, flow);
    }
    let mut admitted = 0;
    for queues in [16, 128, 9, 64] {
        shop.renew(queues);
        shop.observe(MILLISECOND);
        for number in 0..15 {
            // The kernel no longer knows which queue it was in.
            shop.give_back(None);
            shop.observe(20 * MILLISECOND);
            while shop.let_in_next(|_| number % queues).is_some() {
                admitted += 1;
            }
            shop.observe(MILLISECOND);
        }
    }
    assert!(admitted >= 55, "{admitted}");

    // All others go at once.
    let counted = &mut shop.counted;
    for word in counted.queues.iter_mut().chain([&mut counted.level.word]) {
        *word -= u64::from(Count::of(*word).used);
    }
    shop.observe(SECOND);
    while let Some((level, _, grant)) = shop.levels.next(shop.now) {
        shop.levels.not_let_in(level, grant, shop.now);
    }
    assert_eq!(shop.levels.waiting(SHOP), 0);
    let level = shop.levels.controller.find(SHOP).unwrap();
    assert_eq!(shop.levels.controller.level(level).queue_count(), 64);
}

#[test]
fn who_waits_at_a_level_that_is_deleted_is_asked_for_again() {
    let mut shop = besieged(7);
    let nothing = read(String::new());
    shop.levels.configure(&nothing, 105, shop.now).unwrap();
    let parked = shop.levels.park(SHOP, 0, waits(1, SECOND), shop.now);
    assert_eq!(parked, Err(NotParked::NoQueue));

    // Who is not asked for again is still let in.
    let hand = shop.hand(7);
    for &queue in &hand[..2] {
        shop.give_back(Some(queue));
        shop.observe(MILLISECOND);
    }
    assert!(shop.let_in_next(|_| hand[0]).is_some());

    let evicted = shop.levels.evict_leaving(shop.now);
    let waited = 50 - shop.used().saturating_sub(98) as usize;
    assert_eq!((evicted.len(), shop.levels.waiting(SHOP)), (waited, 0));
    for _ in 0..10 {
        shop.now += PERIOD;
        shop.levels.observe_all(&BTreeMap::new(), shop.now);
        shop.levels.advance(shop.now);
    }
    assert!(shop.levels.limits().all(|(name, _)| name != SHOP));
}
