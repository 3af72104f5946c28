//! How many connections the agent's servers hold open, and which one goes when there are too many.
//!
//! Whoever comes last is always let in; the connection that has to go is, in this order,
//!
//! 1. not among the few that the node itself may always have,
//! 2. one whose client has to do something, not the server,
//! 3. of a caller that has not been answered before,
//! 4. of the caller with the most connections to that server,
//! 5. the one that has waited for its client the longest.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{sync::Notify, time::Instant};

use super::{
    Limits, SharedObserver,
    caller::{Caller, Known},
    exchange::Exchanges,
};

/// Connections of the node itself to one server that go last: probes of its kubelet, a Prometheus
/// on it.
const RESERVED: usize = 32;
/// Connections that have been told to go and are not gone yet; beyond that nobody is let in, so
/// that there are never more descriptors than the budget and these.
const LEAVING: usize = 64;

/// Why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// By its client, or by the server after the last answer.
    Ended,
    /// The client did not send a request, or take an answer, in time.
    Timeout,
    /// Its caller had as many as one may have, and opened another one.
    CallerLimit,
    /// Its server, or all servers together, had as many as they may have.
    Full,
    /// The process was out of file descriptors.
    Descriptors,
    /// Its server was.
    Stopped,
}

impl Closed {
    /// For metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Timeout => "timeout",
            Self::CallerLimit => "caller-limit",
            Self::Full => "full",
            Self::Descriptors => "descriptors",
            Self::Stopped => "stopped",
        }
    }
}

/// The connections that all servers of the process may have open together.
pub struct ConnectionBudget {
    most: usize,
    table: Mutex<Table>,
    /// A connection that had to go is gone.
    gone: Notify,
    last_server: AtomicU64,
    observer: SharedObserver,
}

#[derive(Default)]
struct Table {
    servers: HashMap<u64, OnServer>,
    /// Of all servers.
    open: usize,
    /// Told to go, and not in `servers` any more.
    leaving: usize,
    known: Known,
}

/// The connections to one server.
#[derive(Default)]
struct OnServer {
    open: usize,
    callers: HashMap<Caller, Vec<Arc<Line>>>,
}

/// An open connection, as the table sees it.
struct Line {
    exchanges: Arc<Exchanges>,
    /// Set once it has to go.
    evicted: OnceLock<Closed>,
    told: Notify,
}

impl Line {
    fn evict(&self, why: Closed) {
        let _ = self.evicted.set(why); // once only: it is not in the table any more
        self.exchanges.evict();
        self.told.notify_one();
    }
}

/// How soon a connection goes: the least does first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    reserved: bool,
    busy: bool,
    known: bool,
    of_caller: Reverse<usize>,
    /// Since when it waits for its client.
    since: Instant,
}

/// Where a connection is in the table.
struct Position {
    server: u64,
    caller: Caller,
    index: usize,
}

impl ConnectionBudget {
    /// Of so many connections.
    pub fn new(most: usize, observer: SharedObserver) -> Arc<Self> {
        Arc::new(Self {
            most,
            table: Mutex::default(),
            gone: Notify::new(),
            last_server: AtomicU64::new(0),
            observer,
        })
    }

    /// The part of a server, which metrics call `name`.
    pub fn share(self: &Arc<Self>, name: &'static str, limits: &Limits) -> Arc<Share> {
        Arc::new(Share {
            budget: self.clone(),
            server: self.last_server.fetch_add(1, Ordering::Relaxed),
            name,
            most: limits.connections,
            most_of_caller: limits.connections_of_caller,
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No step in between can panic but for want of memory, which ends the process.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One server's part of the [`ConnectionBudget`].
pub struct Share {
    budget: Arc<ConnectionBudget>,
    server: u64,
    name: &'static str,
    most: usize,
    most_of_caller: usize,
}

impl Share {
    /// Returns once another connection may be accepted.
    pub(super) async fn room(&self) {
        let mut gone = std::pin::pin!(self.budget.gone.notified());
        loop {
            gone.as_mut().enable();
            if self.budget.table().leaving < LEAVING {
                return;
            }
            gone.as_mut().await;
            gone.set(self.budget.gone.notified());
        }
    }

    /// Lets a connection in. If there is no room for it, another one goes.
    pub(super) fn admit(self: &Arc<Self>, caller: Caller) -> Arc<Place> {
        let line = Arc::new(Line {
            exchanges: Exchanges::new(),
            evicted: OnceLock::new(),
            told: Notify::new(),
        });
        let mut table = self.budget.table();
        let open = table.open_on(self.server);
        let of_caller = table.lines(self.server, caller).len();
        if caller != Caller::Node && of_caller >= self.most_of_caller {
            let of_caller = |server, other| server == self.server && other == caller;
            table.evict(of_caller, Closed::CallerLimit);
        } else if open >= self.most {
            table.evict(|server, _| server == self.server, Closed::Full);
        } else if table.open >= self.budget.most {
            table.evict(|_, _| true, Closed::Full);
        }
        let server = table.servers.entry(self.server).or_default();
        server.open += 1;
        let lines = server.callers.entry(caller).or_default();
        lines.push(line.clone());
        table.open += 1;
        drop(table);
        self.budget.observer.connection_opened(self.name);
        Arc::new(Place {
            share: self.clone(),
            caller,
            line,
            crowded: open >= self.most / 2,
            closed: OnceLock::new(),
        })
    }

    /// Notes that a connection could not be accepted for want of descriptors or memory. Has another
    /// one go, if there is one.
    pub(super) fn cannot_accept(&self) {
        self.budget.observer.accept_failed(self.name);
        let mut table = self.budget.table();
        if table.leaving == 0 {
            table.evict(|_, _| true, Closed::Descriptors);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // Its connections are gone: each has a clone.
        self.budget.table().servers.remove(&self.server);
    }
}

/// A connection's place, until dropped.
pub(super) struct Place {
    share: Arc<Share>,
    caller: Caller,
    line: Arc<Line>,
    crowded: bool,
    closed: OnceLock<Closed>,
}

impl Place {
    /// Whether half of the server's places were taken before this one.
    pub(super) fn crowded(&self) -> bool {
        self.crowded
    }

    pub(super) fn exchanges(&self) -> &Arc<Exchanges> {
        &self.line.exchanges
    }

    /// Returns why the connection has to go, once it has to.
    pub(super) async fn evicted(&self) -> Closed {
        loop {
            if let Some(why) = self.line.evicted.get() {
                return *why;
            }
            self.line.told.notified().await;
        }
    }

    /// Notes an answer to its caller. Of the node itself nothing has to be known.
    pub(super) fn note_answer(&self) {
        if self.caller != Caller::Node {
            self.share.budget.table().known.answered(self.caller);
        }
    }

    /// Says why the connection is closed; of one that is cut, [`Closed::Stopped`] is counted.
    pub(super) fn close(&self, why: Closed) {
        let _ = self.closed.set(why);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let budget = &self.share.budget;
        if budget
            .table()
            .leave(self.share.server, self.caller, &self.line)
        {
            budget.gone.notify_waiters();
        }
        let why = self.closed.get().copied().unwrap_or(Closed::Stopped);
        budget.observer.connection_closed(self.share.name, why);
    }
}

impl Table {
    fn open_on(&self, server: u64) -> usize {
        self.servers.get(&server).map_or(0, |server| server.open)
    }

    fn lines(&self, server: u64, caller: Caller) -> &[Arc<Line>] {
        let server = self.servers.get(&server);
        let lines = server.and_then(|server| server.callers.get(&caller));
        lines.map_or(&[], Vec::as_slice)
    }

    /// Has one connection of those that are `meant` go, if there are any.
    fn evict(&mut self, meant: impl Fn(u64, Caller) -> bool, why: Closed) {
        let Some(position) = self.first_to_go(meant) else {
            return;
        };
        self.remove(&position).evict(why);
        self.leaving += 1;
    }

    fn first_to_go(&self, meant: impl Fn(u64, Caller) -> bool) -> Option<Position> {
        let mut first: Option<(Rank, Position)> = None;
        for (&server, on_server) in &self.servers {
            let callers = on_server.callers.iter();
            for (&caller, lines) in callers.filter(|(caller, _)| meant(server, **caller)) {
                let reserved = caller == Caller::Node && lines.len() <= RESERVED;
                let known = self.known.contains(caller);
                for (index, line) in lines.iter().enumerate() {
                    let waiting = line.exchanges.waiting_since();
                    let rank = Rank {
                        reserved,
                        busy: waiting.is_err(),
                        known,
                        of_caller: Reverse(lines.len()),
                        since: waiting.unwrap_or_else(|since| since),
                    };
                    if first.as_ref().is_none_or(|(least, _)| rank < *least) {
                        let position = Position {
                            server,
                            caller,
                            index,
                        };
                        first = Some((rank, position));
                    }
                }
            }
        }
        first.map(|(_, position)| position)
    }

    /// A connection is gone; whether it had been told to go.
    fn leave(&mut self, server: u64, caller: Caller, line: &Arc<Line>) -> bool {
        let mut lines = self.lines(server, caller).iter();
        match lines.position(|other| Arc::ptr_eq(other, line)) {
            Some(index) => {
                self.remove(&Position {
                    server,
                    caller,
                    index,
                });
                false
            }
            None => {
                self.leaving -= 1;
                true
            }
        }
    }

    fn remove(&mut self, position: &Position) -> Arc<Line> {
        let server = self.servers.get_mut(&position.server);
        let server = server.expect("a server that has connections");
        let lines = server.callers.get_mut(&position.caller);
        let lines = lines.expect("a caller that has connections");
        let line = lines.swap_remove(position.index);
        if lines.is_empty() {
            server.callers.remove(&position.caller);
        }
        server.open -= 1;
        self.open -= 1;
        line
    }
}
