//! The thread that sweeps the flow tables.

use std::{
    io,
    mem::offset_of,
    net::SocketAddr,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use lb_common::{
    abi,
    addr::{Ip4, Ip6},
    flow::{Flow, Timeouts, limit::LEVELS},
};
use lb_datapath::{
    Jiffies, Loaded, TickRate,
    bpf::{MappedArray, synchronize_rcu},
};

use super::{
    Parties, Reset, SeatTable, Stale, Stats, UdpSockets,
    loads::LoadRecount,
    parties::PartyRecount,
    queues::QueueRecount,
    records::Records,
    reset::Sender,
    seats::Recount,
    sockets::SocketError,
    stale::Staleness,
    stats::{Counted, Removed, ServiceCounts},
    sweep::TableSweeper,
    under_pressure,
};

/// The shortest pause between passes. It bounds how soon ends of flows are noticed.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between passes. Timeouts are exact to within it, however large the tables are.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Between the two, passes take at most one part in so many of a CPU.
const SHARE: u32 = 200;
/// Requests to end stale flows that come faster than this are carried out together.
const LONGEST_REST: Duration = Duration::from_millis(50);
/// If more than this part of a table is occupied, or connections wait for a seat, passes are not delayed.
const FILLING: f64 = 0.5;

/// Sweeps the flow tables in a thread of its own, until it is dropped.
///
/// Two of them may sweep the same tables, as when one agent replaces another. The work is then only
/// done twice.
#[derive(Debug)]
pub struct FlowSweeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The memory of both tables: `FLOWS4` and `FLOWS6`.
pub struct FlowTables<R4 = MappedArray<Flow<Ip4>>, R6 = MappedArray<Flow<Ip6>>> {
    pub v4: R4,
    pub v6: R6,
}

/// What the sweeper needs from the kernel.
pub struct Kernel {
    /// The present tick of the clock that programs write into records.
    pub tick: Box<dyn Fn() -> io::Result<u32> + Send>,
    /// Returns when every program that was running at the call has returned.
    pub grace: Box<dyn Fn() + Send>,
    pub counters: Arc<dyn Counters>,
    pub seats: Arc<SeatTable>,
    pub parties: Arc<Parties>,
    /// Half-open flows of a service, at most, before newer ones replace the oldest.
    pub half_open_budget: u32,
    /// Tells programs how long flows may be silent from now on.
    pub set_timeouts: Box<dyn Fn(&Timeouts) + Send>,
    /// Tells programs which part of the tables one service may take from now on:
    /// [`abi::Limits::shares`].
    pub set_shares: Box<dyn Fn([u16; 2]) + Send>,
    /// Resets a side of a connection.
    pub reset: Sender,
    /// `None` if no sockets are translated.
    pub sockets: Option<Sockets>,
}

/// The sockets that programs have translated.
pub struct Sockets {
    pub udp: UdpSockets,
    /// Tells what each of them holds.
    pub seats: SeatLister,
}

/// Calls a function with what each socket holds.
pub type SeatLister = Box<dyn Fn(&mut dyn FnMut(&abi::SocketSeats)) -> io::Result<()> + Send>;

/// Numbers of flows by service, which programs change too.
pub trait Counters: Send + Sync {
    /// Adds to the numbers of a service.
    fn count(&self, service: u32, more: Counted);
    /// The present numbers, from service 0 on.
    fn read(&self) -> Vec<Counted>;
    /// Replaces a service's numbers if they are still those that were `read`.
    fn correct(&self, service: u32, read: Counted, counted: Counted);
}

/// The numbers in the kernel's maps.
pub struct ServiceCounters {
    /// `SERVICE_STATS`.
    stats: MappedArray<abi::ServiceStats>,
    /// `SERVICE_FLOWS`.
    flows: MappedArray<abi::ServiceFlows>,
}

impl ServiceCounters {
    /// Opens the counters of the programs in the kernel.
    ///
    /// # Errors
    ///
    /// If the maps cannot be opened or mapped into memory.
    pub fn open(loaded: &Loaded) -> anyhow::Result<Self> {
        Ok(Self {
            stats: MappedArray::new(&loaded.map("SERVICE_STATS")?)?,
            flows: MappedArray::new(&loaded.map("SERVICE_FLOWS")?)?,
        })
    }

    fn len(&self) -> u32 {
        self.stats.len().min(self.flows.len())
    }

    fn flows(&self, service: u32) -> &AtomicU32 {
        self.flows
            .u32_at(service, offset_of!(abi::ServiceFlows, flows))
    }

    fn half_open(&self, service: u32) -> &AtomicU32 {
        self.stats
            .u32_at(service, offset_of!(abi::ServiceStats, half_open))
    }
}

impl Counters for ServiceCounters {
    fn count(&self, service: u32, more: Counted) {
        if service < self.len() {
            self.flows(service).fetch_add(more.flows as u32, Relaxed);
            self.half_open(service)
                .fetch_add(more.half_open as u32, Relaxed);
        }
    }

    fn read(&self) -> Vec<Counted> {
        let services = 0..self.len();
        services
            .map(|service| Counted {
                flows: self.flows(service).load(Relaxed) as i32,
                half_open: self.half_open(service).load(Relaxed) as i32,
            })
            .collect()
    }

    fn correct(&self, service: u32, read: Counted, counted: Counted) {
        // If a program counts meanwhile, its number stays; the next agent checks again.
        let correct = |word: &AtomicU32, read: i32, counted: i32| {
            let _ = word.compare_exchange(read as u32, counted as u32, Relaxed, Relaxed);
        };
        correct(self.flows(service), read.flows, counted.flows);
        correct(self.half_open(service), read.half_open, counted.half_open);
    }
}

impl FlowSweeper {
    /// Starts to sweep the tables that programs use with these settings. `sockets` is `None` if no
    /// sockets are translated.
    ///
    /// # Errors
    ///
    /// If the settings do not fit the tables, or the kernel's clock cannot be read.
    pub fn start(
        tables: FlowTables,
        config: &abi::Config,
        limits: MappedArray<abi::Limits>,
        counters: ServiceCounters,
        seats: Arc<SeatTable>,
        parties: Parties,
        sockets: Option<Sockets>,
    ) -> io::Result<Self> {
        let limits = Arc::new(limits);
        let abi::Limits {
            timeouts,
            half_open_mask,
            ..
        } = limits.read(0);
        let rate = TickRate::of(config)
            .ok_or_else(|| misfit("CONFIG has no clock rate: hz is 0 or tick_shift above 31"))?;
        let jiffies = Jiffies::open().map_err(|error| {
            let message = format!("cannot load the program that reads the kernel's clock: {error}");
            io::Error::new(error.kind(), message)
        })?;
        let kernel = Kernel {
            tick: Box::new(move || Ok(rate.tick(jiffies.now()?))),
            grace: Box::new(synchronize_rcu),
            counters: Arc::new(counters),
            seats,
            parties: Arc::new(parties),
            half_open_budget: half_open_mask.saturating_add(1),
            set_timeouts: {
                let limits = limits.clone();
                Box::new(move |timeouts| set_timeouts(&limits, timeouts))
            },
            set_shares: Box::new(move |shares| set_shares(&limits, shares)),
            reset: Box::new(Reset::send),
            sockets,
        };
        Self::start_with(tables, config, timeouts, rate, kernel)
    }

    /// Like [`Self::start`], for any memory and clock.
    ///
    /// # Errors
    ///
    /// If the settings do not fit the tables.
    pub fn start_with<R4, R6>(
        tables: FlowTables<R4, R6>,
        config: &abi::Config,
        timeouts: Timeouts,
        rate: TickRate,
        kernel: Kernel,
    ) -> io::Result<Self>
    where
        R4: Records<Ip4> + 'static,
        R6: Records<Ip6> + 'static,
    {
        let shared = Arc::<Shared>::default();
        let count = || {
            let counters = kernel.counters.clone();
            Box::new(move |service, more| counters.count(service, more))
        };
        let give_back = || {
            let seats = kernel.seats.clone();
            Box::new(move |place, endpoint| seats.give_back(place, endpoint))
        };
        let sweep4 = TableSweeper::new(
            tables.v4,
            config.flow_mask4,
            config.secret,
            count(),
            give_back(),
            kernel.parties.clone(),
        );
        let sweep6 = TableSweeper::new(
            tables.v6,
            config.flow_mask6,
            config.secret,
            count(),
            give_back(),
            kernel.parties.clone(),
        );
        let worker = Worker {
            v4: sweep4
                .ok_or_else(|| misfit("FLOWS4 does not have as many records as CONFIG says"))?
                .with_half_open_budget(kernel.half_open_budget),
            v6: sweep6
                .ok_or_else(|| misfit("FLOWS6 does not have as many records as CONFIG says"))?
                .with_half_open_budget(kernel.half_open_budget),
            configured: timeouts,
            timeouts,
            rate,
            kernel,
            recount: Recount::default(),
            load_recount: LoadRecount::default(),
            party_recount: PartyRecount::default(),
            queue_recount: QueueRecount::default(),
            removed: Removed::default(),
            passes: 0,
            second_look: Stale::default(),
            told: false,
            told_of_seats: false,
            shared: shared.clone(),
        };
        let thread = thread::Builder::new()
            .name("flow-sweeper".to_owned())
            .spawn(|| worker.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// To be held while endpoints are published. Meanwhile no earlier request ends anything, so a
    /// flow to a new endpoint is safe from requests that do not know of the endpoint yet.
    pub fn publication(&self) -> Publication<'_> {
        Publication {
            inbox: self.shared.inbox(),
            wake: &self.shared.wake,
        }
    }

    /// What asks for a pass at once, for those who suspect that seats are held by handshakes which nobody
    /// completes.
    pub fn alarm(&self) -> impl Fn() + Send + use<> {
        let shared = self.shared.clone();
        move || {
            shared.inbox().is_urgent = true;
            shared.wake.notify_one();
        }
    }

    /// The numbers of the latest pass.
    pub fn stats(&self) -> Arc<Stats> {
        self.shared.stats().clone()
    }
}

/// A guard that is held while endpoints are published.
#[derive(Debug)]
pub struct Publication<'a> {
    inbox: MutexGuard<'a, Inbox>,
    wake: &'a Condvar,
}

impl Publication<'_> {
    /// Ends the flows, and the connected UDP sockets, of service ports if their endpoint is not
    /// among the remaining ones. To be called when the new endpoints are published. It is done
    /// within some milliseconds, and once more for flows that programs were opening meanwhile.
    pub fn end_stale(mut self, stale: Stale) {
        self.inbox.stale.merge(stale);
        self.wake.notify_one();
    }
}

impl Drop for FlowSweeper {
    fn drop(&mut self) {
        self.shared.inbox().stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported where it happened.
            let _ = thread.join();
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    inbox: Mutex<Inbox>,
    wake: Condvar,
    stats: Mutex<Arc<Stats>>,
}

#[derive(Debug, Default)]
struct Inbox {
    stale: Stale,
    /// Whether the next pass is due now.
    is_urgent: bool,
    stop: bool,
}

/// What the thread is to do next.
enum Task {
    Pass,
    EndStale(Stale),
    Stop,
}

impl Shared {
    // No step under these locks can leave the guarded state incomplete, so poison is ignored.
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stats(&self) -> MutexGuard<'_, Arc<Stats>> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for something to do, at most until the next pass is due.
    fn next_task(&self, due: Instant) -> Task {
        let pause = due.saturating_duration_since(Instant::now());
        if pause.is_zero() && !self.inbox().stop {
            return Task::Pass;
        }
        let idle = |inbox: &mut Inbox| !inbox.stop && !inbox.is_urgent && inbox.stale.is_empty();
        let (mut inbox, _) = self
            .wake
            .wait_timeout_while(self.inbox(), pause, idle)
            .unwrap_or_else(PoisonError::into_inner);
        if inbox.stop {
            Task::Stop
        } else if inbox.stale.is_empty() {
            inbox.is_urgent = false;
            Task::Pass
        } else {
            Task::EndStale(std::mem::take(&mut inbox.stale))
        }
    }

    /// Waits for `pause`, unless the thread is to stop.
    fn rest(&self, pause: Duration) {
        let going_on = |inbox: &mut Inbox| !inbox.stop;
        drop(self.wake.wait_timeout_while(self.inbox(), pause, going_on));
    }
}

/// A request that is being carried out, as long as no newer one contradicts it.
struct Newest<'a> {
    request: &'a Stale,
    shared: &'a Shared,
}

impl<'a> Staleness for Newest<'a> {
    type Hold = MutexGuard<'a, Inbox>;

    fn concerns(&self, service: u32) -> bool {
        self.request.concerns(service)
    }

    fn confirm(&self, service: u32, endpoint: SocketAddr) -> Option<Self::Hold> {
        if !self.request.contains(service, endpoint) {
            return None;
        }
        let inbox = self.shared.inbox();
        let spared = inbox.stale.concerns(service) && !inbox.stale.contains(service, endpoint);
        (!spared).then_some(inbox)
    }
}

struct Worker<R4, R6> {
    v4: TableSweeper<Ip4, R4>,
    v6: TableSweeper<Ip6, R6>,
    configured: Timeouts,
    /// The timeouts in force, which are shorter under pressure.
    timeouts: Timeouts,
    rate: TickRate,
    kernel: Kernel,
    recount: Recount,
    load_recount: LoadRecount,
    party_recount: PartyRecount,
    queue_recount: QueueRecount,
    removed: Removed,
    passes: u64,
    /// To be ended once more after a grace period, because a program may have been opening a flow
    /// to an old endpoint.
    second_look: Stale,
    /// Whether a failure to end sockets has been reported.
    told: bool,
    /// Whether it has been reported that sockets with seats cannot be listed.
    told_of_seats: bool,
    shared: Arc<Shared>,
}

impl<R4: Records<Ip4>, R6: Records<Ip6>> Worker<R4, R6> {
    fn run(mut self) {
        let mut due = Instant::now();
        loop {
            match self.shared.next_task(due) {
                Task::Stop => return,
                Task::EndStale(stale) => {
                    let start = Instant::now();
                    self.end_stale(&stale);
                    self.second_look.merge(stale);
                    Arc::make_mut(&mut *self.shared.stats()).removed = self.removed;
                    self.shared.rest((start.elapsed() * 4).min(LONGEST_REST));
                }
                Task::Pass => {
                    due = Instant::now() + SHORTEST_PAUSE;
                    match (self.kernel.tick)() {
                        Ok(now) => due += self.pass(now),
                        Err(error) => {
                            tracing::error!("flows are not aged: cannot read the clock: {error}");
                        }
                    }
                }
            }
        }
    }

    /// One pass over both tables. Returns by how much the next one may be delayed beyond the
    /// shortest pause.
    fn pass(&mut self, now: u32) -> Duration {
        let mut services = ServiceCounts::default();
        // The agent before may have been of a version that does not count flows.
        let counted_before = (self.passes == 0).then(|| self.kernel.counters.read());
        self.recount.begin(&self.kernel.seats);
        let seats = &self.kernel.seats;
        self.load_recount
            .begin(seats.loads(), seats.have_services());
        let counts_parties = self.party_recount.begin(&self.kernel.parties);
        self.queue_recount.begin(self.kernel.parties.queues());
        if counts_parties {
            services = services.with_parties();
        }
        let v4 = self
            .v4
            .scan(now, &self.timeouts, &mut services, &mut self.removed);
        let v6 = self
            .v6
            .scan(now, &self.timeouts, &mut services, &mut self.removed);
        let start = Instant::now();
        let knows_sockets = self.count_sockets(&mut services);
        let listing = start.elapsed();
        let (seats, parties) = (&self.kernel.seats, &self.kernel.parties);
        let counted = services.take_parties();
        if knows_sockets {
            self.recount.end(seats, |limit| services.seats(limit));
            self.load_recount.end(seats.loads(), services.open());
            self.party_recount.end(parties, &counted);
            self.queue_recount.end(parties.queues(), services.queues());
        }
        let some_limits = seats.press(now, |limit| services.slow_handshakes(limit));
        let is_level_pressed = |level| seats.is_pressed(LEVELS + level);
        let some_parties = counts_parties && parties.press(now, &counted, is_level_pressed);
        if some_limits || some_parties {
            self.v4.unseat_handshakes(|limit| seats.is_pressed(limit));
            self.v6.unseat_handshakes(|limit| seats.is_pressed(limit));
        }
        if v4.adopted + v6.adopted != 0 {
            let records = v4.adopted + v6.adopted;
            tracing::info!(records, "took over flow records of another version");
        }
        for (service, read) in (0..).zip(counted_before.into_iter().flatten()) {
            let counted = services.counted(service);
            if counted != read {
                self.kernel.counters.correct(service, read, counted);
            }
        }
        let second_look = std::mem::take(&mut self.second_look);
        if self.v4.needs_grace() || self.v6.needs_grace() || !second_look.is_empty() {
            (self.kernel.grace)();
            self.v4.release();
            self.v6.release();
        }
        if !second_look.is_empty() {
            self.end_stale(&second_look);
        }
        self.reset_expired();
        self.squeeze(v4.fill().max(v6.fill()));
        (self.kernel.set_shares)([v4.share(), v6.share()]);
        self.passes += 1;
        let filling = v4.fill() > FILLING || v6.fill() > FILLING;
        let wanted = (v4.scan + v6.scan + listing) * SHARE;
        *self.shared.stats() = Arc::new(Stats {
            v4,
            v6,
            services,
            removed: self.removed,
            passes: self.passes,
            at: Some(Instant::now()),
        });
        // While connections wait, seats may be held by handshakes that nobody completes.
        match filling || self.kernel.parties.queues().are_waited_in() {
            true => Duration::ZERO,
            false => wanted.clamp(SHORTEST_PAUSE, LONGEST_PAUSE) - SHORTEST_PAUSE,
        }
    }

    /// Counts the sockets that hold seats. Returns whether they are known.
    fn count_sockets(&mut self, services: &mut ServiceCounts) -> bool {
        let Some(sockets) = &self.kernel.sockets else {
            return true;
        };
        let queues = self.kernel.parties.queues();
        let listed = (sockets.seats)(&mut |socket| {
            let level = socket.place().level();
            let queue = (socket.party != 0 && level != 0)
                .then(|| queues.charged(level, socket.party, 0, socket.ports))
                .flatten();
            services.add_socket(socket, queue);
        });
        if let Err(error) = &listed
            && !self.told_of_seats
        {
            tracing::warn!(
                "numbers of connections within limits are not corrected any more if they are wrong: cannot list \
                 what sockets hold: {error}"
            );
        }
        self.told_of_seats = listed.is_err();
        listed.is_ok()
    }

    /// Resets both sides of connections that have run into a deadline. A side that cannot be reset now is
    /// when it sends.
    fn reset_expired(&mut self) {
        let resets = self.v4.resets().into_iter().chain(self.v6.resets());
        let mut failed = resets.filter_map(|reset| {
            let error = (self.kernel.reset)(&reset).err()?;
            Some((reset, error))
        });
        if let Some((Reset { from, to, .. }, error)) = failed.next() {
            let sides = 1 + failed.count();
            tracing::debug!(
                sides,
                "cannot reset sides of connections that have run into a deadline; first {to} for {from}: \
                 {error}"
            );
        }
    }

    /// Sets the timeouts that the fill of the tables allows.
    fn squeeze(&mut self, fill: f64) {
        let timeouts = under_pressure(&self.configured, fill, self.rate);
        // If the settings are written again meanwhile, they contain the configured timeouts.
        if timeouts != self.timeouts || timeouts != self.configured {
            (self.kernel.set_timeouts)(&timeouts);
            self.timeouts = timeouts;
        }
    }

    fn end_stale(&mut self, request: &Stale) {
        let shared = self.shared.clone();
        let stale = Newest {
            request,
            shared: &shared,
        };
        let before = self.removed;
        self.v4.end_stale(&stale, &mut self.removed);
        self.v6.end_stale(&stale, &mut self.removed);
        self.removed.stale_sockets += self.end_stale_sockets(&stale);
        if self.removed != before {
            tracing::debug!(
                udp = self.removed.stale_udp - before.stale_udp,
                sockets = self.removed.stale_sockets - before.stale_sockets,
                tcp = self.removed.reset_tcp - before.reset_tcp,
                "ended flows to endpoints that have left their service"
            );
        }
    }

    fn end_stale_sockets(&mut self, stale: &impl Staleness) -> u64 {
        let Some(sockets) = &self.kernel.sockets else {
            return 0;
        };
        match sockets.udp.end_stale(stale) {
            Ok(ended) => ended,
            Err(SocketError::Unsupported) if self.told => 0,
            Err(error) => {
                self.told |= matches!(error, SocketError::Unsupported);
                tracing::warn!("{error}");
                0
            }
        }
    }
}

/// Writes the timeouts into the settings word by word. Programs may read old and new ones together,
/// which does no harm.
fn set_timeouts(limits: &MappedArray<abi::Limits>, timeouts: &Timeouts) {
    let words = timeouts.tcp.into_iter().chain(timeouts.udp);
    let words = words.chain([timeouts.port_held, timeouts.shortest]);
    for (word, offset) in words.zip((offset_of!(abi::Limits, timeouts)..).step_by(4)) {
        limits.u32_at(0, offset).store(word, Relaxed);
    }
}

fn set_shares(limits: &MappedArray<abi::Limits>, [v4, v6]: [u16; 2]) {
    let offset = offset_of!(abi::Limits, shares);
    let [a, b] = v4.to_ne_bytes();
    let [c, d] = v6.to_ne_bytes();
    let word = u32::from_ne_bytes([a, b, c, d]);
    limits.u32_at(0, offset).store(word, Relaxed);
}

fn misfit(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}
