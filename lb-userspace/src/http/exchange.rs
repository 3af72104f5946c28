//! A request and its answer from the connection's point of view: when the client must act, and when
//! the connection stops waiting for it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hyper::Version;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{Limits, SharedObserver};

/// One request and its answer. The server puts it into the request's extensions.
#[derive(Clone)]
pub struct Exchange {
    arrival: Instant,
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    /// When the client must have taken the answer; `None` for streams.
    deadline: Option<Instant>,
    /// Since when there has been something for the client to take.
    offered: Option<Instant>,
    /// Who is told if the answer is broken off, and the name of its server.
    aborts: Option<(&'static str, SharedObserver)>,
}

impl Exchange {
    /// When the end of the request's headers arrived.
    pub fn arrival(&self) -> Instant {
        self.arrival
    }

    /// Sets when the client must have taken the answer. Without a deadline, the answer may last,
    /// but what is offered must be taken within [`Limits::write_timeout`].
    pub fn set_deadline(&self, deadline: Instant) {
        self.state().deadline = Some(deadline);
        self.changed.notify_one();
    }

    /// Tells `observer` if the answer is broken off.
    pub(super) fn tell_of_abort(&self, server: &'static str, observer: SharedObserver) {
        self.state().aborts = Some((server, observer));
    }

    /// Reports, only once, that the answer was broken off.
    pub(super) fn aborted(&self) {
        let told = self.state().aborts.take();
        if let Some((server, observer)) = told {
            observer.aborted(server);
        }
    }

    /// When a write that has waited for the client since `since` is given up.
    pub(super) fn patience(&self, since: Instant, write_timeout: Duration) -> Instant {
        self.state().deadline.unwrap_or(since + write_timeout)
    }

    /// When the client must have taken what it is offered; `None` if it is offered nothing.
    fn due(&self, write_timeout: Duration) -> Option<Instant> {
        let state = self.state();
        let since = state.offered?;
        Some(state.deadline.unwrap_or(since + write_timeout))
    }

    fn offer(&self, offered: bool) {
        self.state().offered = offered.then(Instant::now);
        self.changed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is a single assignment, so the state is valid even after a holder has
        // panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The exchanges of a connection that are not over.
pub(super) struct Exchanges {
    open: Mutex<Open>,
    changed: Arc<Notify>,
}

struct Open {
    exchanges: Vec<Exchange>,
    /// When the last exchange ended, or when the connection began.
    idle_since: Instant,
    /// `None` before the first request.
    version: Option<Version>,
    evicted: bool,
}

impl Exchanges {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            open: Mutex::new(Open {
                exchanges: Vec::new(),
                idle_since: Instant::now(),
                version: None,
                evicted: false,
            }),
            changed: Arc::default(),
        })
    }

    /// Notes that a request has arrived. The exchange lasts until the returned value is dropped.
    pub(super) fn begin(self: &Arc<Self>, version: Version) -> OpenExchange {
        let exchange = Exchange {
            arrival: Instant::now(),
            state: Arc::default(),
            changed: self.changed.clone(),
        };
        let mut open = self.open();
        open.exchanges.push(exchange.clone());
        open.version = Some(version);
        drop(open);
        self.changed.notify_one();
        OpenExchange {
            exchange,
            connection: self.clone(),
        }
    }

    /// Since when the connection has waited for its client: to send a request, of which half does
    /// not count, or to take an answer. While the server works on a request, since when it has, as
    /// an error.
    pub(super) fn waiting_since(&self) -> Result<Instant, Instant> {
        let open = self.open();
        let mut since = Ok(open.idle_since);
        for exchange in &open.exchanges {
            let offered = exchange.state().offered.ok_or(exchange.arrival);
            since = match (since, offered) {
                (Ok(before), Ok(offered)) => Ok(before.max(offered)),
                (Err(before), Err(arrival)) => Err(before.min(arrival)),
                (Err(busy), Ok(_)) | (Ok(_), Err(busy)) => Err(busy),
            };
        }
        since
    }

    /// The exchange under way on an HTTP/1 connection, of which there is at most one.
    pub(super) fn only(&self) -> Option<Exchange> {
        let open = self.open();
        let multiplexed = open.version == Some(Version::HTTP_2);
        open.exchanges.last().filter(|_| !multiplexed).cloned()
    }

    /// Returns when the connection must be cut because its client does not do its part: send a
    /// first request, take what it is offered or, over HTTP/2, use the connection at all. Over
    /// HTTP/1, hyper's header timeout and the stream's deadline handle the rest.
    pub(super) async fn overdue(&self, limits: &Limits) {
        loop {
            match self.due(limits) {
                None => self.changed.notified().await,
                Some(due) => tokio::select! {
                    () = sleep_until(due) => {
                        if self.due(limits).is_some_and(|due| due <= Instant::now()) {
                            break;
                        }
                    }
                    () = self.changed.notified() => {}
                },
            }
        }
    }

    /// Notes that the connection has to go.
    pub(super) fn evict(&self) {
        self.open().evicted = true;
    }

    pub(super) fn is_evicted(&self) -> bool {
        self.open().evicted
    }

    /// Notes that what goes on is broken off.
    pub(super) fn abort(&self) {
        for exchange in &self.open().exchanges {
            exchange.aborted();
        }
    }

    fn due(&self, limits: &Limits) -> Option<Instant> {
        let open = self.open();
        match open.version {
            Some(Version::HTTP_2) if !open.exchanges.is_empty() => {
                let exchanges = open.exchanges.iter();
                exchanges
                    .filter_map(|exchange| exchange.due(limits.write_timeout))
                    .min()
            }
            None | Some(Version::HTTP_2) => Some(open.idle_since + limits.header_timeout),
            Some(_) => None,
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends its exchange when dropped.
pub(super) struct OpenExchange {
    exchange: Exchange,
    connection: Arc<Exchanges>,
}

impl OpenExchange {
    pub(super) fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// Notes whether there is something for the client to take.
    pub(super) fn offer(&self, offered: bool) {
        self.exchange.offer(offered);
    }
}

impl Drop for OpenExchange {
    fn drop(&mut self) {
        let mut open = self.connection.open();
        let state = &self.exchange.state;
        open.exchanges
            .retain(|other| !Arc::ptr_eq(&other.state, state));
        open.idle_since = Instant::now();
        drop(open);
        self.connection.changed.notify_one();
    }
}
