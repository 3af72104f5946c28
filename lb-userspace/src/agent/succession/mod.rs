//! How agents of a node follow each other without a refused health check.
//!
//! One agent is *in charge*: it has the pins' [`Lock`], writes the maps and answers health checks.
//! Others *stand by*. One that stands by has duplicates of all sockets on which the one in charge
//! listens, so these go on to exist when it ends in whatever way.
//!
//! | the standby | the agent in charge |
//! |---|---|
//! | connects ([`Incumbent`]) | sends its listening sockets ([`Offer`]), and later ones as they are opened |
//! | loads programs ([`Preparation`]), and reads all objects, if it is to take over; then it asks | |
//! | | writes nothing any more, releases the lock, goes on to answer with what it knows ([`Retired`]) |
//! | takes the lock, adopts the maps, writes the difference | |
//! | says that it serves | accepts no more connections, and says so |
//! | accepts connections; it is in charge now | stands by, or ends if it was told to |
//!
//! If the standby ends on the way, the agent before takes the lock again. An agent that is told to
//! stop gives way to one that stands by, asked or not.

use std::{
    os::fd::OwnedFd,
    path::PathBuf,
    time::{Duration, Instant},
};

use lb_datapath::pins::{HANDOVER, Lock, PinError};
use tokio::time::{sleep, sleep_until};

pub use self::{
    incumbent::{Incumbent, News},
    offer::{Offer, Standby},
    retired::{Next, Retired},
};
use self::{preparation::Preparation, retired::Clients};
use super::{feed::Feed, process::Process, resize::Ahead, vitals::Phase};
use crate::config::Config;

mod incumbent;
pub mod offer;
mod preparation;
mod retired;
mod wire;

/// How often a lock is tried that should be free soon.
const LOOK: Duration = Duration::from_millis(20);

/// The place of the agent in charge.
pub struct Place {
    pub lock: Lock,
    /// Programs that need not be loaded any more.
    pub ahead: Option<Ahead>,
    /// Sockets on which the agent before listens or has listened.
    pub sockets: Vec<OwnedFd>,
    pub predecessor: Option<Predecessor>,
}

/// What an agent keeps that stands by.
#[derive(Debug, Default)]
pub struct Kept {
    /// Those on which it has listened.
    pub sockets: Vec<OwnedFd>,
    pub programs: Option<Ahead>,
    /// Whom it has not answered yet.
    pub clients: Clients,
}

/// An agent that answers until the next one serves.
pub enum Predecessor {
    /// In another process.
    Other(Incumbent),
    /// In this one: another agent was to take over, and has not.
    Own(Retired),
}

impl Predecessor {
    /// Returns when it is gone, and nobody answers.
    pub async fn gone(&mut self) {
        match self {
            Self::Other(incumbent) => while !matches!(incumbent.news().await, News::Gone) {},
            Self::Own(_) => std::future::pending().await,
        }
    }

    /// Has it accept no more connections. When this returns, it does not.
    pub async fn stop(self) {
        match self {
            Self::Other(incumbent) => incumbent.stop().await,
            Self::Own(mut retired) => drop(retired.leave().await),
        }
    }
}

/// Waits for the place, as an agent that has just started. `None` if the process is to end.
///
/// # Errors
///
/// If another agent keeps the place, the source has ended, or the lock cannot be opened.
pub async fn enter(
    config: &Config,
    process: &Process,
    feed: &mut Feed,
) -> anyhow::Result<Option<Place>> {
    let stop = process.stop();
    let mut waiting = Waiting::new(config, Vec::new());
    let mut programs = Preparation::default();
    let (mut asked, mut deadline) = (false, Instant::now() + HANDOVER);
    loop {
        // Only one that can go on at once takes the place of one that works.
        let is_second = waiting.incumbent.is_some();
        if is_second {
            programs.begin(config);
        }
        let is_prepared = feed.is_complete() && programs.is_over();
        let prepares = config.take_over && is_second && !is_prepared;
        process
            .vitals
            .set(Phase::Waiting(match (is_second, prepares) {
                (false, _) => "the agent starts",
                (true, false) => "another agent is in charge",
                (true, true) => "another agent is in charge until this one knows the cluster",
            }));
        tokio::select! {
            () = stop.told() => return Ok(None),
            lock = waiting.step() => if let Some(lock) = lock? {
                return Ok(Some(waiting.place(lock, programs.end().await)));
            },
            read = feed.read_ahead(), if prepares && !feed.is_complete() => read?,
            () = programs.go_on() => {}
            () = sleep_until(deadline.into()), if !prepares => {
                let root = config.datapath.bpf_root.clone();
                return Err(PinError::InUse { root }.into());
            }
        }
        match &waiting.incumbent {
            Some(incumbent)
                if config.take_over && feed.is_complete() && programs.is_over() && !asked =>
            {
                tracing::info!("taking over from the agent in charge");
                // If it is gone, that shows.
                asked = incumbent.ask().await.is_ok();
                deadline = Instant::now() + HANDOVER;
            }
            Some(_) => {}
            None => asked = false,
        }
    }
}

/// Waits until the place is free again. `None` if the process is to end.
///
/// # Errors
///
/// If the lock cannot be opened.
pub async fn stand_by(
    kept: Kept,
    config: &Config,
    process: &Process,
) -> anyhow::Result<Option<Place>> {
    tracing::info!("another agent has taken over; standing by");
    process.vitals.set(Phase::StandingBy);
    let stop = process.stop();
    // Those for maps that have been exchanged would only keep these alive.
    let pins = preparation::pins(config);
    let programs = kept.programs.filter(|programs| programs.fits(&pins));
    let mut waiting = Waiting::new(config, kept.sockets);
    loop {
        tokio::select! {
            () = stop.told() => {
                kept.clients.served().await;
                return Ok(None);
            }
            lock = waiting.step() => if let Some(lock) = lock? {
                tracing::info!("the agent in charge has gone; taking its place");
                return Ok(Some(waiting.place(lock, programs)));
            },
        }
    }
}

/// An agent that is not in charge.
struct Waiting {
    root: PathBuf,
    offer: PathBuf,
    incumbent: Option<Incumbent>,
    /// What it listens on, or, until it says so, what the one before did.
    sockets: Vec<OwnedFd>,
    has_news: bool,
    gave_way: Option<Instant>,
}

impl Waiting {
    fn new(config: &Config, sockets: Vec<OwnedFd>) -> Self {
        Self {
            root: config.datapath.bpf_root.clone(),
            offer: offer::path(&config.socket),
            incumbent: None,
            sockets,
            has_news: false,
            gave_way: None,
        }
    }

    /// Waits for the next thing to happen; returns the lock once it is free. May be given up at any
    /// time.
    async fn step(&mut self) -> Result<Option<Lock>, PinError> {
        if let (Some(incumbent), None) = (&mut self.incumbent, self.gave_way) {
            match incumbent.news().await {
                News::Listeners(sockets) => {
                    if !std::mem::replace(&mut self.has_news, true) {
                        self.sockets.clear();
                    }
                    self.sockets.extend(sockets);
                }
                News::GaveWay => self.gave_way = Some(Instant::now()),
                News::Gone => self.incumbent = None,
            }
            return Ok(None);
        }
        if let Some(lock) = Lock::try_take(&self.root)? {
            return Ok(Some(lock));
        }
        if self.gave_way.is_some_and(|at| at.elapsed() > HANDOVER) {
            // It was faster, or yet another one was.
            (self.incumbent, self.gave_way) = (None, None);
        }
        if self.incumbent.is_none()
            && let Ok(incumbent) = Incumbent::find(&self.offer).await
        {
            self.incumbent = Some(incumbent);
            self.has_news = false;
            return Ok(None);
        }
        sleep(LOOK).await;
        Ok(None)
    }

    fn place(self, lock: Lock, ahead: Option<Ahead>) -> Place {
        let predecessor = self.incumbent.filter(|_| self.gave_way.is_some());
        Place {
            lock,
            ahead,
            sockets: self.sockets,
            predecessor: predecessor.map(Predecessor::Other),
        }
    }
}
