//! Sweeps beside threads that open, use and end flows as programs do: no live flow is lost, no
//! ended one stays, and no half or claim of a running program counts as forgotten.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread,
};

use lb_common::flow::{
    flow_flag::{RST, SEEN},
    record, tag,
};

use super::table::{NewFlow, Sweeping, Table};

const CPUS: u32 = 3;
/// Flows of one CPU. With all of them open the table is nearly full, so that searches are long.
const FLOWS: u32 = 140;
const RECORDS: usize = 1024;
/// Seconds between passes, so that a closed flow is over in the next pass or the one after.
const PASS: u32 = 4;
/// The test ends after so many opened flows and passes.
const OPENED: u64 = 5_000;
const PASSES: u32 = 500;

#[test]
fn live_flows_are_found_and_ended_ones_are_not() {
    let table = Table::new(RECORDS);
    let clock = Arc::new(AtomicU32::new(0));
    let cpus: Vec<_> = (0..CPUS)
        .map(|number| Cpu::new(number, &table, &clock))
        .collect();
    let running: Vec<_> = cpus.iter().map(|cpu| cpu.running.clone()).collect();
    let progress = Arc::new(Progress::default());
    let threads: Vec<_> = cpus
        .into_iter()
        .map(|cpu| {
            let progress = progress.clone();
            thread::spawn(move || cpu.run(&progress))
        })
        .collect();

    let mut sweeping = Sweeping::new(&table);
    let mut passes = 0;
    while !threads.iter().all(thread::JoinHandle::is_finished) {
        if passes > progress.rounds.load(Ordering::Relaxed) / CPUS {
            // A program that gets no processor keeps its flows for as long as that lasts.
            thread::yield_now();
            continue;
        }
        let now = clock.fetch_add(PASS, Ordering::SeqCst) + PASS;
        sweeping.pass_with(now, || wait_for_programs(&running));
        passes += 1;
        if passes >= PASSES && progress.opened.load(Ordering::Relaxed) >= OPENED {
            progress.enough.store(true, Ordering::Relaxed);
        }
    }
    let open: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();

    let opened = progress.opened.load(Ordering::Relaxed);
    let open: usize = open.into_iter().sum();
    println!("{opened} flows opened during {passes} passes, {open} are open");
    assert!(
        open > 100,
        "the table is empty: nothing is in the way of anything"
    );
    assert_eq!(table.count(tag::LIVE), 2 * open);
    assert!(sweeping.removed.expired.total() > 0);
    assert_eq!(sweeping.removed.orphans, 0);
    assert_eq!(sweeping.removed.leaked_claims, 0);

    let later = clock.load(Ordering::SeqCst) + 100_000;
    for pass in 0..32 {
        sweeping.pass(later + pass);
    }
    assert_eq!(table.count(tag::CLEAN), RECORDS);
}

/// Returns when every program that was running at the call has returned.
fn wait_for_programs(running: &[Arc<AtomicU64>]) {
    for count in running {
        let before = count.load(Ordering::SeqCst);
        while before % 2 == 1 && count.load(Ordering::SeqCst) == before {
            thread::yield_now();
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Absent,
    Open,
    /// Reset: the sweeper will end it.
    Closed,
}

/// What all programs have done together.
#[derive(Default)]
struct Progress {
    /// Number of flows opened.
    opened: AtomicU64,
    /// How often CPUs have run programs.
    rounds: AtomicU32,
    /// Whether the programs are to end.
    enough: AtomicBool,
}

struct Cpu {
    table: Arc<Table>,
    clock: Arc<AtomicU32>,
    /// Odd while a program runs.
    running: Arc<AtomicU64>,
    flows: Vec<(u32, State)>,
    random: u32,
}

impl Cpu {
    fn new(number: u32, table: &Arc<Table>, clock: &Arc<AtomicU32>) -> Self {
        Self {
            table: table.clone(),
            clock: clock.clone(),
            running: Arc::default(),
            flows: (0..FLOWS)
                .map(|n| (number * FLOWS + n, State::Absent))
                .collect(),
            random: number + 1,
        }
    }

    /// Runs programs until enough has happened. Returns how many flows it leaves open.
    fn run(mut self, progress: &Progress) -> usize {
        let count = self.running.clone();
        while !progress.enough.load(Ordering::Relaxed) {
            for _ in 0..64 {
                let running = Running::start(&count);
                self.program(&progress.opened);
                drop(running);
            }
            progress.rounds.fetch_add(1, Ordering::Relaxed);
            thread::yield_now();
        }
        // Closed flows end now, so that the rest can be counted.
        for (client, state) in &mut self.flows {
            if *state == State::Closed {
                if let Some((forward, _)) = self.table.pair(&NewFlow::tcp(*client)) {
                    self.table.end(forward);
                }
                *state = State::Absent;
            }
        }
        self.flows
            .iter()
            .filter(|(_, state)| *state == State::Open)
            .count()
    }

    fn program(&mut self, opened: &AtomicU64) {
        let pick = (self.random() % FLOWS) as usize;
        let dice = self.random() % 512;
        let (client, state) = self.flows[pick];
        let pauses = self.random().is_multiple_of(4);
        let pause = || {
            if pauses {
                thread::yield_now();
            }
        };
        let now = self.clock.load(Ordering::SeqCst);
        let flow = NewFlow::tcp(client).seen(SEEN, SEEN).at(now);
        self.flows[pick].1 = match state {
            State::Absent => match self.table.open_slowly(&flow, pause) {
                Some(_) => {
                    opened.fetch_add(1, Ordering::Relaxed);
                    State::Open
                }
                None => State::Absent,
            },
            State::Open => {
                let (mut forward, reply) =
                    self.table.pair(&flow).expect("an open flow is not found");
                assert!(
                    self.table.has(&flow),
                    "the answers of an open flow are not found"
                );
                match dice {
                    0 => {
                        self.table.end_slowly(forward, pause);
                        assert!(!self.table.has(&flow));
                        State::Absent
                    }
                    1 | 2 => {
                        record::set(reply, RST);
                        // SAFETY: in this test only the flow's CPU writes its times.
                        unsafe { forward.as_mut() }.last_seen = now;
                        State::Closed
                    }
                    _ => State::Open,
                }
            }
            State::Closed if self.table.pair(&flow).is_none() => State::Absent,
            State::Closed => State::Closed,
        };
    }

    /// Marsaglia's xorshift.
    fn random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random
    }
}

/// Marks a running program, also while it panics.
struct Running<'a>(&'a AtomicU64);

impl<'a> Running<'a> {
    fn start(count: &'a Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
