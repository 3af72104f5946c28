//! Connections that wait for a seat: who has to, who keeps their place, and what their queues are
//! charged.

use std::mem::offset_of;
use std::sync::atomic::Ordering::SeqCst;

use lb_admission::shuffle::Dealer;
use lb_common::{
    flow::{
        limit::LEVELS,
        queue::{Hand, LevelQueues, Queue, Waiter, card_of, hash_of, leave},
    },
    verdict::{Action, Reason},
};
use lb_datapath::memory::MemoryFrame;
use lb_packet::{
    TCP, UDP,
    tcp_flag::{ACK, RST, SYN},
};
use node_lb::{
    config::AdmissionMode::{self, Audit, Enforce},
    memory::ProgrammedTables,
};

use crate::{
    conversation::{Conversation, Side},
    hooks::{Outcome, ingress},
    levels,
    pressed::press,
    scene::Scene,
};

const QUEUES: u32 = 16;
const HAND: u32 = 4;

/// Everything belongs to a level where so many wait in a queue; `more` are fields of its schema.
fn objects(length: u32, more: &str) -> String {
    levels::for_all(
        &format!(
            "limitResponse: {{type: Queue, queuing: {{queues: {QUEUES}, handSize: {HAND}, \
             queueLengthLimit: {length}}}}}"
        ),
        &format!("  distinguisherMethod: {{type: BySourceIP}}\n{more}"),
    )
}

/// A level with queues, and the agent as far as these tests need it.
struct Node<'a> {
    scene: &'a Scene,
    tables: ProgrammedTables,
    level: u32,
}

impl<'a> Node<'a> {
    fn new(scene: &'a Scene, text: &str, mode: AdmissionMode, seats: u32) -> Self {
        let tables = levels::tables(scene, text, mode, seats);
        let level = levels::index(&tables, "tenant") - LEVELS;
        let node = Self {
            scene,
            tables,
            level,
        };
        node.promise(1);
        node
    }

    /// Says until when the agent looks after those who wait.
    fn promise(&self, until: u32) {
        let queues = self.tables.level_queues();
        let until_word = queues.u32_at(self.level, offset_of!(LevelQueues, until));
        until_word.store(until, SeqCst);
    }

    /// Says whether a flood has filled the queues.
    fn overrun(&self, is_overrun: bool) {
        let queues = self.tables.level_queues();
        let overrun = queues.u32_at(self.level, offset_of!(LevelQueues, overrun));
        overrun.store(is_overrun.into(), SeqCst);
    }

    /// Keeps seats for those who have none.
    fn keep(&self, seats: u32) {
        let queues = self.tables.level_queues();
        let kept = queues.u32_at(self.level, offset_of!(LevelQueues, kept));
        kept.store(seats, SeqCst);
    }

    fn open(&self, port: u16) -> Outcome {
        ingress(&self.tables, &self.scene.opening(port))
    }

    fn of_level(&self) -> LevelQueues {
        self.tables.level_queues().read(self.level)
    }

    fn queues(&self) -> Vec<Queue> {
        let of = self.of_level();
        (of.first..of.first + of.number)
            .map(|index| self.tables.queue(index))
            .collect()
    }

    /// Connections that wait, and seats that are charged, as queues and level count them.
    fn counted(&self) -> (u32, i32) {
        let queues = self.queues();
        let waiting = queues.iter().map(|queue| queue.waiting).sum();
        assert_eq!(self.of_level().waiting, waiting);
        (waiting, queues.iter().map(|queue| queue.word as i32).sum())
    }

    fn one_waiter(&self) -> Waiter {
        let waiters = self.tables.take_waiters();
        assert_eq!(waiters.len(), 1);
        let waiter = waiters[0];
        assert_eq!(waiter.level, self.level);
        waiter
    }

    /// Which card of its party's hand the queue is in which a connection waits.
    fn card(&self, waiter: &Waiter) -> u32 {
        let of = self.of_level();
        card_of(of.number, of.hand, waiter.party, waiter.queue - of.first)
    }

    /// Lets a connection in as the agent does.
    fn let_in(&self, waiter: &Waiter) -> Reason {
        let syn = waiter.packet[..waiter.length as usize].to_vec();
        let frame = MemoryFrame::<false, false>::new(syn, waiter.ifindex);
        let card = self.card(waiter);
        assert!((1..=HAND).contains(&card), "{card}");
        self.tables.tc().let_in(&frame, card)
    }

    /// It waits no longer.
    fn leave(&self, waiter: &Waiter) {
        let level = self.tables.level_queues().pointer(self.level).unwrap();
        leave(level, self.tables.queue_pointer(waiter.queue).unwrap());
    }

    fn in_use(&self) -> i32 {
        levels::level(self.scene, &self.tables, "tenant").used()
    }
}

#[test]
fn who_finds_no_seat_waits_and_those_after_it_wait_behind() {
    for scene in Scene::each().filter(|scene| scene.protocol == TCP) {
        let node = Node::new(&scene, &objects(5, ""), Enforce, 2);
        let mut first = Conversation::established(&scene, &node.tables, 1);
        assert_eq!(node.open(2).reason, Reason::Opened);
        assert_eq!(node.counted(), (0, 2));
        let outcome = node.open(3);
        assert_eq!(
            (outcome.action, outcome.reason),
            (Action::Drop, Reason::Parked)
        );
        let third = node.one_waiter();
        assert_eq!(&third.packet[..third.length as usize], scene.opening(3));
        assert_eq!((node.counted(), node.in_use()), ((1, 2), 2));
        assert_eq!(
            node.queues()[(third.queue - node.of_level().first) as usize].waiting,
            1
        );
        // The same packet of those who are in is theirs.
        assert_eq!(node.open(2).reason, Reason::ToEndpoint);
        assert_eq!(node.let_in(&third), Reason::Parked, "no seat");

        first.close(Side::Client);
        assert_eq!(node.in_use(), 1);
        assert_eq!(node.open(4).reason, Reason::Parked, "others come first");
        let fourth = node.one_waiter();
        assert_ne!(third.queue, fourth.queue, "the shorter one");
        assert_eq!(node.let_in(&third), Reason::Opened);
        node.leave(&third);
        assert_eq!((node.counted(), node.in_use()), ((1, 2), 2));
        // Its SYN finds the flow, and so does the client's next.
        for _ in 0..2 {
            assert_eq!(node.open(3).reason, Reason::ToEndpoint);
        }
        assert_eq!(node.let_in(&fourth), Reason::Parked);
        node.leave(&fourth);
        let refused = levels::counted(&node.tables, "tenant").2;
        assert_eq!((refused, node.counted()), (0, (0, 2)));
    }
}

/// The agent recognises a flow's queues by that.
#[test]
fn programs_deal_hands_as_the_agent_does() {
    for (queues, size) in [(1, 1), (16, 15), (64, 8), (128, 6), (511, 6), (4096, 5)] {
        let dealer = Dealer::new(queues as i32, size).unwrap();
        for number in 0..500_u64 {
            let party = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !0xff_ffff | number << 3;
            let mut hand = Hand::of(party, queues);
            let dealt: Vec<_> = (0..size).map(|_| hand.deal()).collect();
            assert_eq!(dealt, *dealer.deal(hash_of(party)), "{queues} {party:x}");
        }
    }
}

#[test]
fn a_queue_is_charged_for_those_who_waited_in_it() {
    for scene in Scene::each().filter(|scene| scene.protocol == TCP) {
        let node = Node::new(&scene, &objects(9, ""), Enforce, 1);
        let mut before = Conversation::established(&scene, &node.tables, 1);
        for port in 2..30 {
            assert_eq!(node.open(port).reason, Reason::Parked);
            let waiter = node.one_waiter();
            before.close(Side::Client);
            assert_eq!(node.let_in(&waiter), Reason::Opened);
            node.leave(&waiter);
            let own = node.tables.queue(waiter.queue);
            assert_eq!((own.word as i32, node.counted()), (1, (0, 1)));
            before = Conversation::established(&scene, &node.tables, port);
        }
        before.close(Side::Endpoint);
        assert_eq!((node.counted(), node.in_use()), ((0, 0), 0));
    }
}

#[test]
fn a_wide_connection_waits_for_all_its_seats() {
    for scene in Scene::each().filter(|scene| scene.protocol == TCP) {
        // Three connections of three seats, and one seat is left.
        let node = Node::new(&scene, &objects(9, "  seats: 3\n"), Enforce, 20);
        let mut talks: Vec<_> = (1..=6)
            .map(|port| Conversation::established(&scene, &node.tables, port))
            .collect();
        assert_eq!((node.counted(), node.in_use()), ((0, 18), 18));
        assert_eq!(node.open(10).reason, Reason::Parked);
        let waiter = node.one_waiter();
        assert_eq!(node.let_in(&waiter), Reason::Parked, "two seats are free");
        talks.pop().unwrap().close(Side::Client);
        assert_eq!(node.open(11).reason, Reason::Parked, "nobody overtakes");
        let second = node.one_waiter();
        assert_eq!(node.let_in(&waiter), Reason::Opened);
        node.leave(&waiter);
        assert_eq!((node.counted(), node.in_use()), ((1, 18), 18));
        assert_eq!(node.let_in(&second), Reason::Parked);
        node.leave(&second);
        // Five seats are free, of which three are kept for those who have none.
        talks.pop().unwrap().close(Side::Endpoint);
        node.keep(3);
        assert_eq!(node.open(12).reason, Reason::Parked);
        node.leave(&node.one_waiter());
        node.keep(2);
        assert_eq!(node.open(12).reason, Reason::Opened);
        assert_eq!((node.counted(), node.in_use()), ((0, 18), 18));
    }
}

#[test]
fn nobody_waits_without_the_agent() {
    for scene in Scene::each() {
        let node = Node::new(&scene, &objects(5, ""), Enforce, 1);
        let waits = scene.protocol != UDP;
        assert_eq!(node.open(1).reason, Reason::Opened);
        let expected = match waits {
            true => Reason::Parked,
            false => Reason::ConcurrencyLimit,
        };
        assert_eq!(node.open(2).reason, expected, "a datagram never waits");
        node.promise(0);
        assert_eq!(node.open(3).reason, Reason::ConcurrencyLimit);
        // Who waits for nobody is not waited for.
        node.promise(1);
        node.tables.set_seconds(1);
        assert_eq!(node.open(4).reason, Reason::ConcurrencyLimit);
        assert_eq!(node.tables.take_waiters().len(), usize::from(waits));
    }
}

#[test]
fn seats_that_are_kept_are_the_agents_to_give() {
    for scene in Scene::each().filter(|scene| scene.protocol == TCP) {
        let node = Node::new(&scene, &objects(5, ""), Enforce, 2);
        node.keep(1);
        assert_eq!(node.open(1).reason, Reason::Opened);
        assert_eq!(node.open(2).reason, Reason::Parked);
        let second = node.one_waiter();
        assert_eq!((node.counted(), node.in_use()), ((1, 1), 1));
        assert_eq!(node.let_in(&second), Reason::Opened);
        node.leave(&second);
        assert_eq!((node.counted(), node.in_use()), ((0, 2), 2));
        // As many as are in use may be kept, and more.
        node.keep(9);
        assert_eq!(node.open(3).reason, Reason::Parked);
        // Without an agent there is nobody to keep them.
        node.promise(0);
        assert_eq!(node.open(4).reason, Reason::ConcurrencyLimit);
        let node = Node::new(&scene, &objects(5, ""), Enforce, 2);
        node.keep(1);
        node.promise(0);
        for port in 1..=2 {
            assert_eq!(node.open(port).reason, Reason::Opened);
        }
    }
}

#[test]
fn connections_wait_under_pressure_too_and_their_handshakes_hold_no_seats() {
    for scene in Scene::each().filter(|scene| scene.protocol == TCP) {
        let node = Node::new(&scene, &objects(9, ""), Enforce, 1);
        let mut first = Conversation::established(&scene, &node.tables, 1);
        press(&node.tables, LEVELS + node.level, true);
        assert_eq!(node.open(2).reason, Reason::Parked);
        let forged = node.one_waiter();
        assert_eq!(node.let_in(&forged), Reason::Parked, "no seat");
        first.close(Side::Client);
        assert_eq!(node.let_in(&forged), Reason::Opened);
        assert_eq!((node.counted(), node.in_use()), ((1, 0), 0));
        // So the next one has its turn as well.
        let mut talk = Conversation::new(&scene, &node.tables, 3);
        let syn = talk.segment(Side::Client, SYN);
        let outcome = talk.deliver(Side::Client, syn, b"");
        assert_eq!(outcome.reason, Reason::Parked);
        let waiter = node.one_waiter();
        node.leave(&forged);
        assert_eq!(node.let_in(&waiter), Reason::Opened);
        node.leave(&waiter);
        talk.send(Side::Client, SYN, b"");
        talk.send(Side::Endpoint, SYN | ACK, b"");
        assert_eq!(node.counted(), (0, 0));
        talk.send(Side::Client, ACK, b"");
        assert_eq!((node.counted(), node.in_use()), ((0, 1), 1));
    }
}

/// Too many forged clients want seats for the queues to be of use.
#[test]
fn in_a_flood_kept_seats_are_for_clients_with_few() {
    const SEATS: u32 = 8;
    for scene in Scene::each().filter(|scene| scene.protocol == TCP) {
        let node = Node::new(&scene, &objects(9, ""), Enforce, SEATS);
        press(&node.tables, LEVELS + node.level, true);
        node.overrun(true);
        node.keep(3);
        // The client may have five of eight, as it has more than a few.
        for port in 1..=5 {
            Conversation::established(&scene, &node.tables, port);
        }
        let refused = Conversation::new(&scene, &node.tables, 6).shake_hands();
        assert_eq!(
            (refused.action, refused.reason),
            (Action::Answer, Reason::ConcurrencyLimit)
        );
        assert_eq!((node.counted(), node.in_use()), ((0, 5), 5));
        assert_eq!(levels::counted(&node.tables, "tenant").2, 1);
        assert_eq!(node.tables.take_waiters(), []);
        // Without an agent nobody keeps them.
        node.promise(0);
        for port in 7..=9 {
            Conversation::established(&scene, &node.tables, port);
        }
        assert_eq!(node.open(10).reason, Reason::ConcurrencyLimit);
        // With one the queues are of use again.
        node.promise(1);
        node.overrun(false);
        assert_eq!(node.open(11).reason, Reason::Parked);
    }
}

#[test]
fn a_client_with_few_connections_may_have_kept_seats() {
    for scene in Scene::each().filter(|scene| scene.protocol == TCP) {
        let node = Node::new(&scene, &objects(9, ""), Enforce, 4);
        press(&node.tables, LEVELS + node.level, true);
        node.overrun(true);
        node.keep(4);
        for port in 1..=4 {
            Conversation::established(&scene, &node.tables, port);
        }
        assert_eq!((node.counted(), node.in_use()), ((0, 4), 4));
    }
}

#[test]
fn an_audit_lets_nobody_wait() {
    for scene in Scene::each() {
        let node = Node::new(&scene, &objects(5, ""), Audit, 1);
        for port in 1..=3 {
            assert_eq!(node.open(port).reason, Reason::Opened);
        }
        assert_eq!(node.tables.take_waiters(), []);
    }
}

#[test]
fn clients_are_told_of_a_full_queue_and_of_a_wait_in_vain() {
    for (answer, is_told) in [("RST", true), ("Drop", false)] {
        for scene in Scene::each().filter(|scene| scene.protocol == TCP) {
            let more = format!("  rejectAnswer: {{queueFull: {answer}, timeOut: {answer}}}\n");
            let node = Node::new(&scene, &objects(1, &more), Enforce, 1);
            assert_eq!(node.open(1).reason, Reason::Opened);
            let waiters: Vec<_> = (0..HAND as u16)
                .map(|next| {
                    assert_eq!(node.open(2 + next).reason, Reason::Parked);
                    node.one_waiter()
                })
                .collect();
            let full = node.open(100);
            let action = if is_told {
                Action::Answer
            } else {
                Action::Drop
            };
            assert_eq!((full.action, full.reason), (action, Reason::QueueFull));
            assert_eq!(node.of_level().refused, 1);
            assert_eq!(node.counted(), (HAND, 1));

            let late = &waiters[0];
            let syn = late.packet[..late.length as usize].to_vec();
            let mut frame = MemoryFrame::<false, false>::new(syn, 0);
            let tc = node.tables.tc();
            let verdict = tc.turn_away(&mut frame, late.schema, Reason::TimeOut);
            assert_eq!((verdict.action, verdict.reason), (action, Reason::TimeOut));
            if is_told {
                let told = lb_packet::Read::frame(&frame.into_bytes());
                assert_ne!(told.bytes[told.transport + 13] & RST, 0);
                assert_eq!(told.destination, scene.client(2).ip());
            }
        }
    }
}
