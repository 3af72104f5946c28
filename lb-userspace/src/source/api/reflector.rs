//! Keeps one resource up to date: lists it once, then watches for changes until the receiver is
//! gone.

mod recovery;

use std::{mem, sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::{
    super::{Batch, Event, health::SourceHealth},
    backoff::Backoff,
    body::{LineCutter, ListCutter},
    client::{Answer, ApiClient},
    event::WatchEvent,
    failure::Failure,
    known::{Known, is_older},
    resource::{Request, watch_time},
};
use lb_objects::{
    Kind,
    kubernetes::{Outcome, Versioned, translate_json},
};
use recovery::Step;

/// A page of a list must be complete after this long. An API server gives up after a minute, too.
const PAGE_TIME: Duration = Duration::from_secs(60);
/// After so long without any data, a watch counts as dead. API servers send a bookmark every
/// minute.
const SILENCE: Duration = Duration::from_secs(150);
/// How much longer than requested a watch may last.
const GRACE: Duration = Duration::from_secs(30);
/// A watch that ends sooner than this without any data counts as failed.
const TOO_SHORT: Duration = Duration::from_secs(1);
/// After a watch that lasted this long, earlier ones that broke off no longer lengthen the wait.
const STEADY: Duration = Duration::from_secs(10);
/// How many objects of the first list are passed on together.
const BATCH: usize = 500;

/// Resources that belong together.
#[derive(Clone, Debug)]
pub struct Group {
    /// The state of each of them.
    pub health: Arc<SourceHealth>,
    /// Sent once, when all of them have been listed.
    pub complete: Event,
}

/// Follows one resource.
pub struct Reflector {
    client: ApiClient,
    health: Arc<SourceHealth>,
    complete: Event,
    events: mpsc::Sender<Batch>,
    known: Known,
    /// Events that are not passed on yet.
    pending: Vec<Event>,
    /// When the last of them arrived.
    received: std::time::Instant,
    /// The newest version up to which everything is known.
    version: String,
    /// Whether there has been a complete list.
    listed: bool,
    /// Whether the server streams lists, as far as we know.
    streams: bool,
    /// Whether the latest request was, or became, a watch of changes that has lasted.
    followed: bool,
    /// For requests that came to nothing; starts again with each watch that lasts.
    backoff: Backoff,
    /// For watches that broke off.
    break_backoff: Backoff,
    /// Separate from the others, so that an earlier outage does not delay a new list. Starts again
    /// once a list has been followed by a watch.
    relist_backoff: Backoff,
}

impl Reflector {
    /// Of a resource of a group.
    pub fn new(client: ApiClient, group: Group, events: mpsc::Sender<Batch>) -> Self {
        let Group { health, complete } = group;
        Self {
            known: Known::new(client.resource.kind),
            client,
            health,
            complete,
            events,
            pending: Vec::new(),
            received: std::time::Instant::now(),
            version: String::new(),
            listed: false,
            streams: true,
            followed: false,
            backoff: Backoff::new(),
            break_backoff: Backoff::of_breaks(),
            relist_backoff: Backoff::steep(),
        }
    }

    /// Runs for ever. The future is to be dropped when the receiver is gone.
    pub async fn run(mut self) {
        let mut step = self.list(String::new());
        loop {
            if let Err(failure) = self.take(&mut step).await {
                let wait;
                (step, wait) = self.after_failure(step, &failure);
                sleep(wait).await;
            }
        }
    }

    /// Does a step. `step` becomes the next one, or stays if it is to be repeated.
    async fn take(&mut self, step: &mut Step) -> Result<(), Failure> {
        self.followed = false;
        let time = watch_time();
        match step {
            Step::Page { from, token } => {
                let request = Request::Page {
                    from,
                    token: token.as_deref(),
                };
                if token.is_none() {
                    self.known.begin_list();
                }
                match self.page(&request).await? {
                    Some(more) => *token = Some(more),
                    None => *step = Step::Watch,
                }
                Ok(())
            }
            Step::Stream { from } => {
                let from = mem::take(from);
                let request = Request::Stream { from: &from, time };
                self.known.begin_list();
                let mut initial = true;
                let ended = self.follow(&request, time, &mut initial).await;
                // After the initial events, the stream is an ordinary watch.
                *step = match initial {
                    true => Step::Stream { from },
                    false => Step::Watch,
                };
                ended
            }
            Step::Watch => {
                let from = self.version.clone();
                let request = Request::Watch { from: &from, time };
                self.follow(&request, time, &mut false).await
            }
        }
    }

    /// Reads a page. Returns the token of the next page, if there is one.
    async fn page(&mut self, request: &Request<'_>) -> Result<Option<String>, Failure> {
        let deadline = Instant::now() + PAGE_TIME;
        let mut answer = self.client.get(request).await?;
        let mut cutter = ListCutter::default();
        while let Some(bytes) = answer.next(deadline, PAGE_TIME).await? {
            self.received = std::time::Instant::now();
            cutter.push(&bytes, |item| {
                let object = translate_json(self.client.resource.kind, item);
                let object = object.map_err(|error| Failure::Broken(error.to_string()))?;
                self.count_refused(&object);
                self.known.listed(object, &mut self.pending);
                Ok(())
            })?;
            self.send_some().await;
        }
        let list = cutter.finish()?;
        if let Some(token) = list.continue_.filter(|token| !token.is_empty()) {
            return Ok(Some(token));
        }
        let version = list.resource_version.unwrap_or_default();
        self.complete_list(version);
        self.announce_list().await;
        Ok(None)
    }

    /// Reads a watch until it ends. `initial` says whether it starts with a list; it becomes false
    /// when that list is complete.
    async fn follow(
        &mut self,
        request: &Request<'_>,
        time: Duration,
        initial: &mut bool,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        let mut answer = self.client.get(request).await?;
        // When it became a watch of changes.
        let mut followed = None;
        if !*initial {
            self.note_current();
            followed = Some(Instant::now());
        }
        let mut cutter = LineCutter::default();
        let mut quiet = true;
        loop {
            let next = self.wait(&mut answer, began, time).await;
            self.note_followed(followed);
            let Some(bytes) = next? else {
                break;
            };
            quiet = false;
            self.received = std::time::Instant::now();
            let mut complete = false;
            let cut = cutter.push(&bytes, |line| {
                if line.trim_ascii().is_empty() {
                    return Ok(());
                }
                match WatchEvent::parse(self.client.resource.kind, line)? {
                    WatchEvent::Bookmark {
                        version,
                        initial_events_end: true,
                    } if *initial => {
                        *initial = false;
                        complete = true;
                        self.complete_list(version);
                    }
                    event => self.watched(event, *initial),
                }
                Ok(())
            });
            // What came before a fault is still valid.
            if complete {
                followed = Some(Instant::now());
                self.announce_list().await;
            }
            match *initial {
                true => self.send_some().await,
                false => {
                    self.note_current();
                    self.send_all().await;
                }
            }
            cut?;
        }
        cutter.finish()?;
        let fault = match *initial {
            true => "the watch ended before its initial events did",
            false if quiet && began.elapsed() < TOO_SHORT => "the watch ended at once",
            false => return Ok(()),
        };
        Err(Failure::Broken(fault.to_owned()))
    }

    /// The next bytes of a watch; `None` at its end, or if it has lasted longer than requested.
    async fn wait(
        &self,
        answer: &mut Answer,
        began: Instant,
        time: Duration,
    ) -> Result<Option<bytes::Bytes>, Failure> {
        let end = began + time + GRACE;
        let silent = Instant::now() + SILENCE;
        match answer.next(silent.min(end), SILENCE).await {
            Err(Failure::TimedOut(_)) if end <= silent => Ok(None),
            other => other,
        }
    }

    /// Applies an event of a watch.
    fn watched(&mut self, event: WatchEvent, initial: bool) {
        let version = match event {
            WatchEvent::Changed(object) => {
                self.count_refused(&object);
                let version = object.resource_version.clone();
                match initial {
                    true => self.known.listed(*object, &mut self.pending),
                    false => self.known.changed(*object, &mut self.pending),
                }
                version
            }
            WatchEvent::Removed { name, version } => {
                self.known.removed(name, &version, &mut self.pending);
                version
            }
            WatchEvent::Bookmark { version, .. } => {
                self.known.settled();
                version
            }
            WatchEvent::Unusable(event) => {
                self.client.metrics.refused(self.client.resource.name);
                tracing::warn!(resource = self.client.resource.name, "{event}");
                return;
            }
        };
        // Initial events come in no order, so no version is completely known before their end.
        if !initial && !version.is_empty() && !is_older(&version, &self.version) {
            self.version = version;
        }
    }

    fn count_refused(&self, object: &Versioned) {
        if object.translated.outcome == Outcome::Refuse {
            self.client.metrics.refused(self.client.resource.name);
        }
    }

    /// Treats the list as complete.
    fn complete_list(&mut self, version: String) {
        let name = self.client.resource.name;
        self.known.complete_list(&mut self.pending);
        self.version = version;
        self.listed = true;
        self.client.metrics.list_complete(name);
        tracing::info!(resource = name, objects = self.known.len(), "listed");
        if self.client.resource.kind == Kind::Node && self.known.len() == 0 {
            tracing::warn!(
                "the API server has no Node object of this node's name: is --node right? Until the \
                 object exists, the node's addresses, labels and pod networks are unknown"
            );
        }
    }

    /// Passes on what a complete list contained: all at once if an earlier list is already in use.
    async fn announce_list(&mut self) {
        self.send_all().await;
        if self.health.synced(self.client.resource.name) {
            self.pending.push(self.complete.clone());
        }
        self.send_all().await;
    }

    /// Notes that a watch, which began to follow changes at this moment, still does or has just
    /// ended. If it has lasted, whatever failed before is over.
    fn note_followed(&mut self, since: Option<Instant>) {
        let Some(lasted) = since.map(|since| since.elapsed()) else {
            return;
        };
        if lasted >= TOO_SHORT && !self.followed {
            self.followed = true;
            self.backoff = Backoff::new();
            self.relist_backoff = Backoff::steep();
        }
        if lasted >= STEADY {
            self.break_backoff = Backoff::of_breaks();
        }
    }

    fn note_current(&self) {
        let name = self.client.resource.name;
        self.client.metrics.in_sync(name);
        if self.health.current(name) {
            tracing::info!(resource = name, "following the API server again");
        }
    }

    /// Passes on a part of a list as it comes, if no earlier list is in use.
    async fn send_some(&mut self) {
        if !self.listed && self.pending.len() >= BATCH {
            self.send_all().await;
        }
    }

    async fn send_all(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let batch = Batch {
            events: mem::take(&mut self.pending),
            received: self.received,
        };
        // If the receiver is gone, this reflector is about to be dropped.
        let _ = self.events.send(batch).await;
    }
}
