//! Which connections come and go, as the flow tables show them: each is found when its records
//! appear, and ends when they say that it has closed, or are gone.

use std::{collections::HashMap, net::SocketAddr, sync::atomic::Ordering::Relaxed, time::Duration};

use lb_common::{
    addr::Address,
    flow::{Flow, Stage, flow_flag, stage::idle, tag},
};
use lb_datapath::TickRate;
use lb_objects::Protocol;

use super::{
    Connection, Records,
    records::{protocol, socket_addr, which},
};

/// A connection that has ended. Times count from the moment when [`Arrivals`] began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// When it was opened; zero if that was before.
    pub opened: Duration,
    pub ended: Duration,
    pub client: SocketAddr,
    pub frontend: SocketAddr,
    pub protocol: Protocol,
}

/// Watches one flow table.
#[derive(Debug)]
pub struct Arrivals<A> {
    rate: TickRate,
    /// Which flow each record was of at the latest look; see [`which`].
    seen: Vec<u32>,
    /// Connections that are open, by the index of the client's direction.
    open: HashMap<u32, Open<A>>,
    looked: Duration,
}

/// A connection that is open. A flood may open as many as there is room for in the table, so it is
/// small.
#[derive(Clone, Copy, Debug)]
struct Open<A> {
    /// In nanoseconds.
    opened: u64,
    client: A,
    frontend: A,
    client_port: u16,
    frontend_port: u16,
    protocol: Protocol,
}

impl<A: Address> Open<A> {
    /// With the client's direction of a flow.
    fn new(forward: &Flow<A>, opened: Duration) -> Self {
        Self {
            opened: u64::try_from(opened.as_nanos()).unwrap_or(u64::MAX),
            client: forward.source,
            frontend: forward.destination,
            client_port: forward.source_port,
            frontend_port: forward.destination_port,
            protocol: protocol(forward),
        }
    }

    fn ends(self, ended: Duration) -> Past {
        let opened = Duration::from_nanos(self.opened);
        Past {
            opened,
            ended: ended.max(opened),
            client: socket_addr(self.client, self.client_port),
            frontend: socket_addr(self.frontend, self.frontend_port),
            protocol: self.protocol,
        }
    }
}

impl<A: Address> Arrivals<A> {
    /// Begins with the connections that are open now.
    pub fn new(records: &impl Records<A>, rate: TickRate) -> Self {
        let mut arrivals = Self {
            rate,
            seen: vec![0; records.len() as usize],
            open: HashMap::new(),
            looked: Duration::ZERO,
        };
        let now = Duration::ZERO;
        arrivals.look(records, now, 0, |_| {});
        // Those that are over but remembered are nothing to record.
        let open = arrivals.open.keys().copied();
        let over: Vec<_> = open
            .filter(|index| arrivals.ended(records, *index, now, 0).is_some())
            .collect();
        for index in over {
            arrivals.open.remove(&index);
        }
        arrivals
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Looks at all records, at this time and tick of the records' clock. `over` gets each
    /// connection that has ended since the look before.
    ///
    /// Of those that are new, it is only known that they were opened between the two looks: they
    /// count as opened one after the other, at even distances.
    pub fn look(
        &mut self,
        records: &impl Records<A>,
        now: Duration,
        tick: u32,
        mut over: impl FnMut(Past),
    ) {
        let mut new = Vec::new();
        for index in 0..records.len() {
            let found = which(records.tag(index).load(Relaxed));
            let known = &mut self.seen[index as usize];
            if *known != found {
                *known = found;
                if let Some(open) = self.open.remove(&index) {
                    over(open.ends(now));
                }
                if found != 0 && is_forward(records, index) {
                    new.push(index);
                }
            } else if found != 0
                && records.flags(index).load(Relaxed) & MAY_BE_OVER != 0
                && let Some((index, ended)) = self.ended(records, index, now, tick)
                && let Some(open) = self.open.remove(&index)
            {
                over(open.ends(ended));
            }
        }
        let (window, count) = (now - self.looked, new.len() as u32);
        for (number, index) in (0..).zip(new) {
            let since = window * (2 * number + 1) / (2 * count);
            let forward = records.read(index);
            if tag::in_use(forward.tag) && !forward.has(flow_flag::REPLY) {
                let open = Open::new(&forward, self.looked + since);
                self.open.insert(index, open);
            }
        }
        self.looked = now;
    }

    /// The connections that are still open, as if they ended now. Afterwards none is known.
    pub fn end(&mut self, now: Duration) -> impl Iterator<Item = Past> {
        let open = std::mem::take(&mut self.open).into_values();
        open.map(move |open| open.ends(now))
    }

    /// If a connection is over, of which the record at `index` is one direction: the index of the
    /// client's direction, and when its last packet came.
    fn ended(
        &self,
        records: &impl Records<A>,
        index: u32,
        now: Duration,
        tick: u32,
    ) -> Option<(u32, Duration)> {
        let flow = records.read(index);
        let forward = match flow.has(flow_flag::REPLY) {
            true => flow.peer,
            false => index,
        };
        if !self.open.contains_key(&forward) {
            return None;
        }
        let connection = Connection::new(records, index, &flow)?;
        let back = &connection.reply;
        let is_answered = back.has(flow_flag::UDP) && back.has(flow_flag::SEEN) && back.is_dns();
        if connection.stage() != Stage::Closed && !is_answered {
            return None;
        }
        let silent = self.rate.duration(idle(connection.last_seen(), tick));
        Some((forward, now.saturating_sub(silent)))
    }
}

/// A record with none of these is not one of a connection that is over.
const MAY_BE_OVER: u32 = flow_flag::RST | flow_flag::FIN_ACKED | flow_flag::UDP;

fn is_forward<A: Address>(records: &impl Records<A>, index: u32) -> bool {
    records.flags(index).load(Relaxed) & flow_flag::REPLY == 0
}
