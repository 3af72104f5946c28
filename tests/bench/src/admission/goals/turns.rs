//! Clients that all want more than their part of few seats: how evenly they take turns, and how soon a seat
//! that is given back has its next connection.

use std::{
    collections::{HashMap, VecDeque},
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, UNIX_EPOCH},
};

use anyhow::{Result, ensure};
use lb_admission::simulate::jain_index;
use lb_tests::{Load, Request};

use super::{
    super::measure::stop,
    BACK_OFF,
    ground::{Ground, Response, Tenant},
    sheet::{Column, Sample},
    wire::{Event, Recording, What},
};
use crate::{
    cluster::services::TARGET_PORT,
    options::Options,
    statistics::{millis, quantile},
};

/// Connections that each client always has, or wants, in halves of the level's seats.
const WANTED: [u32; 5] = [1, 2, 4, 10, 20];

/// Few seats and many, of which the machine can give away so many in a second.
const FEW: u32 = 10;
const MANY: u32 = 100;
/// When clients give up.
const DEADLINE: Duration = Duration::from_secs(60);

/// Seats of the level, for how long each connection is held, and for how long turns are watched.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    seats: u32,
    hold: Duration,
    watched: Duration,
}

impl Hold {
    /// As the command line says.
    pub fn of(options: &Options) -> Vec<Self> {
        let of = |seats, hold, watched| Self {
            seats,
            hold: Duration::from_millis(hold),
            watched: Duration::from_secs(watched),
        };
        match options.quick {
            true => vec![of(FEW, 10, 3), of(MANY, 1000, 10)],
            false => vec![
                of(FEW, 10, 10),
                of(FEW, 1000, 40),
                of(MANY, 1000, 40),
                of(MANY, 10_000, 80),
            ],
        }
    }

    /// Its name in the table.
    pub fn name(self) -> String {
        let Self {
            seats,
            hold,
            watched,
        } = self;
        format!("{seats} seats, held for {hold:?}, watched for {watched:?}")
    }

    /// The level with its queues, in which connections wait for at most five seconds. No seats are kept:
    /// each one that is given back is for somebody who waits.
    fn tenant(self) -> Tenant {
        Tenant {
            name: "turns",
            seats: self.seats,
            response: Response::Queue {
                queues: 64,
                length: 500,
                patience: 20,
                keeps_seats: false,
            },
        }
    }
}

/// The columns of the table.
pub const COLUMNS: &[Column] = &[
    Column::sum("connections", "connections"),
    Column::median("Jain: seat-seconds", "jain_seat_seconds", 3),
    Column::median("seats", "jain_seats", 3),
    Column::median("seats in use", "mean_seats", 2),
    Column::median("at most", "most_seats", 0),
    Column::median("of 0.5", "seats_of_0_5", 2),
    Column::median("1", "seats_of_1", 2),
    Column::median("2", "seats_of_2", 2),
    Column::median("5", "seats_of_5", 2),
    Column::median("10", "seats_of_10", 2),
    Column::sum("releases", "releases"),
    Column::median("release to SYN: p50, ms", "release_to_syn_p50_ms", 2),
    Column::median("p99", "release_to_syn_p99_ms", 2),
];

/// Measures turns in a lab of its own.
///
/// # Errors
///
/// If the lab cannot be built, or no connection is let in.
pub fn measure(hold: Hold, xdp: &str) -> Result<Sample> {
    let ground = Ground::build(&[hold.tenant()], WANTED.len() as u8, &[xdp])?;
    let request = Request::tcp(ground.target(0)).deadline(DEADLINE);
    let load = Load::new(request.held_for(hold.hold)).pause_after_failure(BACK_OFF);
    let recording = Recording::start(ground.pod(0), TARGET_PORT)?;
    let wanted = WANTED.map(|halves| (halves * hold.seats / 2) as usize);
    let hosts = ground.noisy().iter().zip(wanted);
    let loads = hosts.map(|(host, wanted)| load.workers(wanted).start(host));
    let loads = loads.collect::<Result<Vec<_>>>()?;
    // Until all of them wait, and the seats that the first ones have taken are free again.
    thread::sleep(Duration::from_millis(500) + hold.hold);
    let from = UNIX_EPOCH.elapsed()?;
    thread::sleep(hold.watched);
    let to = UNIX_EPOCH.elapsed()?;
    let events = recording.stop()?;
    stop(loads)?;
    let clients: Vec<_> = ground
        .noisy()
        .iter()
        .map(|host| host.addresses().v4.into())
        .collect();
    ground.down()?;

    let mut turns = Turns::of(&events, &clients, from, to);
    ensure!(!turns.waits.is_empty(), "no seat was given to the next one");
    turns.waits.sort_unstable();
    let seconds = (to - from).as_secs_f64();
    let seats = turns.seat_seconds.iter().map(|sum| sum / seconds);
    let wait = |share| Some(millis(quantile(&turns.waits, share)));
    let mut sample = vec![
        Some(turns.begun as f64),
        jain_index(turns.seat_seconds.iter().copied()),
        Some(turns.jain_seats),
        Some(seats.clone().sum()),
        Some(turns.most as f64),
    ];
    sample.extend(seats.map(Some));
    sample.extend([Some(turns.waits.len() as f64), wait(0.5), wait(0.99)]);
    Ok(sample)
}

/// What the endpoint's device shows within a time.
#[derive(Clone, Debug, Default, PartialEq)]
struct Turns {
    /// Connections that began.
    begun: u64,
    /// Of each client.
    seat_seconds: Vec<f64>,
    /// Jain's index of the seats that clients hold at one moment, averaged over time.
    jain_seats: f64,
    /// The most seats in use at one time.
    most: usize,
    /// From the end of a connection to the SYN that takes its seat. Seats are told apart by their order
    /// only: the one that has been free for longest is taken first.
    waits: Vec<Duration>,
}

impl Turns {
    /// Between two moments, of these clients, which all want more seats than they have.
    fn of(events: &[Event], clients: &[IpAddr], from: Duration, to: Duration) -> Self {
        let mut turns = Self {
            seat_seconds: vec![0.0; clients.len()],
            ..Self::default()
        };
        let mut open = Open::default();
        let mut free = VecDeque::new();
        let mut seats = vec![0_usize; clients.len()];
        let mut since = from;
        for event in events {
            let until = event.at.clamp(since, to);
            turns.pass((until - since).as_secs_f64(), &seats);
            since = until;
            let client = clients.iter().position(|ip| *ip == event.client.ip());
            let Some(client) = client else {
                continue;
            };
            let is_within = (from..to).contains(&event.at);
            match open.follow(event) {
                Some(Change::Begun) => {
                    seats[client] += 1;
                    let freed = free.pop_front();
                    if is_within {
                        turns.begun += 1;
                        turns.most = turns.most.max(seats.iter().sum());
                        turns.waits.extend(freed.map(|freed| event.at - freed));
                    }
                }
                Some(Change::Ended { is_free }) => {
                    seats[client] -= 1;
                    free.extend(is_free.then_some(event.at));
                }
                None => {}
            }
        }
        turns.pass((to - since).as_secs_f64(), &seats);
        turns.jain_seats /= (to - from).as_secs_f64();
        turns
    }

    /// Nothing happens for so many seconds.
    fn pass(&mut self, seconds: f64, seats: &[usize]) {
        for (sum, seats) in self.seat_seconds.iter_mut().zip(seats) {
            *sum += *seats as f64 * seconds;
        }
        let index = jain_index(seats.iter().map(|seats| *seats as f64));
        self.jain_seats += index.unwrap_or(0.0) * seconds;
    }
}

/// What a segment means for seats.
enum Change {
    Begun,
    /// Whether the seat is free at once.
    Ended {
        is_free: bool,
    },
}

/// The connections that are open, with which side has closed: the client, the endpoint.
#[derive(Default)]
struct Open(HashMap<SocketAddr, [bool; 2]>);

impl Open {
    /// A connection has its seat until both sides have closed it, or the endpoint has reset it. A client's
    /// RST may be forged, so node-lb gives the seat back some time after it.
    fn follow(&mut self, event: &Event) -> Option<Change> {
        match event.what {
            What::Begins if self.0.contains_key(&event.client) => None,
            What::Begins => {
                self.0.insert(event.client, [false; 2]);
                Some(Change::Begun)
            }
            What::Closes { by_client } => {
                let closed = self.0.get_mut(&event.client)?;
                closed[usize::from(!by_client)] = true;
                let ended = *closed == [true; 2];
                ended.then(|| self.end(event.client, true))?
            }
            What::Resets { by_client } => self.end(event.client, !by_client),
        }
    }

    fn end(&mut self, client: SocketAddr, is_free: bool) -> Option<Change> {
        self.0.remove(&client).map(|_| Change::Ended { is_free })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENTS: [[u8; 4]; 2] = [[172, 30, 77, 2], [172, 30, 77, 3]];

    fn event(at: u64, client: usize, port: u16, what: What) -> Event {
        Event {
            at: Duration::from_millis(at),
            client: SocketAddr::from((CLIENTS[client], port)),
            what,
        }
    }

    fn turns(events: &[Event]) -> Turns {
        let (from, to) = (Duration::from_millis(1000), Duration::from_millis(3000));
        Turns::of(events, &CLIENTS.map(IpAddr::from), from, to)
    }

    #[test]
    fn seats_are_those_of_open_connections() {
        let closes = |by_client| What::Closes { by_client };
        let turns = turns(&[
            event(500, 0, 1, What::Begins),
            event(1500, 1, 1, What::Begins),
            event(1600, 1, 1, What::Begins), // again
            event(2000, 0, 1, closes(true)),
            event(2000, 0, 1, closes(false)),
            event(2004, 1, 2, What::Begins),
            event(2500, 1, 1, What::Resets { by_client: true }),
            event(2500, 1, 1, closes(true)), // not there any more
            event(2510, 0, 3, What::Begins), // not in its seat
            event(2510, 0, 3, What::Resets { by_client: false }),
            event(3500, 0, 2, What::Begins), // too late
        ]);
        assert_eq!(turns.begun, 3);
        assert_eq!(turns.most, 2);
        assert_eq!(turns.waits, [Duration::from_millis(4)]);
        let seconds: Vec<_> = turns.seat_seconds.iter().map(|s| s * 1e3).collect();
        assert_eq!(
            seconds.iter().map(|s| s.round()).collect::<Vec<_>>(),
            [1000.0, 1996.0]
        );
        // Alone, then both, then alone again.
        let expected = (500.0 * 0.5 + 500.0 * 1.0 + 1000.0 * 0.5) / 2000.0;
        assert!((turns.jain_seats - expected).abs() < 1e-9, "{turns:?}");
    }

    #[test]
    fn a_connection_that_one_side_has_closed_is_still_open() {
        let closes = What::Closes { by_client: true };
        let turns = turns(&[event(1000, 0, 1, What::Begins), event(2000, 0, 1, closes)]);
        assert_eq!(turns.seat_seconds, [2.0, 0.0]);
    }
}
