//! Requests that are still being worked on after their deadline: how long that lasts, and which
//! never end (KEP-4460).

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::{Duration, SystemTime},
};

use hyper::{Method, Uri};
use serde::Serialize;
use tokio::time::{Instant, interval};

use super::{SharedObserver, running::Running};

/// How often the list is swept.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// What has gone on for so long after its deadline is assumed never to end.
const HANGS_AFTER: Duration = Duration::from_secs(15 * 60);
/// The most requests on the list.
const CAPACITY: usize = 128;
/// The most bytes of a request's URI that are kept.
const URI_BYTES: usize = 256;

/// The list of requests that were still being worked on at their deadline.
pub struct PostTimeout {
    entries: Mutex<VecDeque<Arc<Entry>>>,
    observer: SharedObserver,
}

/// One request of the list, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub server: &'static str,
    pub method: String,
    pub uri: String,
    /// When the request arrived (RFC 3339).
    pub started: String,
    pub timeout_seconds: f64,
    /// How long something worked on it after its deadline, so far if it still does.
    pub overrun_seconds: f64,
    pub running: bool,
}

/// The properties of a request that the list keeps.
pub(super) struct Late {
    pub(super) server: &'static str,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) arrival: Instant,
    pub(super) deadline: Instant,
}

struct Entry {
    server: &'static str,
    method: String,
    uri: String,
    started: SystemTime,
    timeout: Duration,
    deadline: Instant,
    returned: OnceLock<Instant>,
}

impl PostTimeout {
    /// An empty list.
    pub fn new(observer: SharedObserver) -> Arc<Self> {
        Arc::new(Self {
            entries: Mutex::default(),
            observer,
        })
    }

    /// All requests on the list, the oldest first.
    pub fn list(&self) -> Vec<Report> {
        let now = Instant::now();
        self.entries().iter().map(|e| e.report(now)).collect()
    }

    /// Sweeps the list every few minutes until it is dropped.
    pub(super) async fn sweep_regularly(list: Weak<Self>) {
        let mut sweeps = interval(SWEEP_INTERVAL);
        loop {
            sweeps.tick().await;
            match list.upgrade() {
                Some(list) => list.sweep(),
                None => return,
            }
        }
    }

    /// Adds a request that is past its deadline. `running` tells when it really ends.
    pub(super) fn note(&self, running: &Running, late: Late) {
        let entry = Arc::new(Entry::new(late));
        let mut entries = self.entries();
        if entries.len() >= CAPACITY {
            entries.retain(|entry| entry.log_if_returned().is_none());
        }
        let has_room = entries.len() < CAPACITY;
        if has_room {
            entries.push_back(entry.clone());
        }
        drop(entries);
        self.observer.overran(has_room);
        let observer = self.observer.clone();
        running.at_end(move || {
            let now = Instant::now();
            let overrun = now.saturating_duration_since(entry.deadline);
            let _ = entry.returned.set(now);
            observer.returned(entry.server, overrun);
        });
    }

    /// Removes what has ended, and what is assumed never to end.
    fn sweep(&self) {
        let now = Instant::now();
        self.entries().retain(|entry| {
            if entry.log_if_returned().is_some() {
                return false;
            }
            let overrun = entry.overrun(now);
            if overrun >= HANGS_AFTER {
                tracing::error!(
                    server = entry.server,
                    method = entry.method,
                    uri = entry.uri,
                    "the work for an HTTP request goes on {overrun:?} after its deadline; it is \
                     assumed never to end"
                );
                self.observer.hangs(entry.server);
                return false;
            }
            true
        });
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn new(late: Late) -> Self {
        let mut uri = late.uri.to_string();
        let mut end = uri.len().min(URI_BYTES);
        while !uri.is_char_boundary(end) {
            end -= 1;
        }
        uri.truncate(end);
        Self {
            server: late.server,
            method: late.method.to_string(),
            uri,
            started: SystemTime::now() - late.arrival.elapsed(),
            timeout: late.deadline - late.arrival,
            deadline: late.deadline,
            returned: OnceLock::new(),
        }
    }

    fn overrun(&self, now: Instant) -> Duration {
        let end = self.returned.get().copied().unwrap_or(now);
        end.saturating_duration_since(self.deadline)
    }

    fn log_if_returned(&self) -> Option<()> {
        let returned = self.returned.get()?;
        tracing::info!(
            server = self.server,
            method = self.method,
            uri = self.uri,
            overrun = ?self.overrun(*returned),
            "the work for an HTTP request ended after its deadline"
        );
        Some(())
    }

    fn report(&self, now: Instant) -> Report {
        Report {
            server: self.server,
            method: self.method.clone(),
            uri: self.uri.clone(),
            started: humantime::format_rfc3339_millis(self.started).to_string(),
            timeout_seconds: self.timeout.as_secs_f64(),
            overrun_seconds: self.overrun(now).as_secs_f64(),
            running: self.returned.get().is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::http::observer::tests::Observed;

    #[tokio::test(start_paused = true)]
    async fn what_has_ended_is_listed_until_swept_with_its_exact_overrun() {
        let (observed, list) = list();
        let running = late(&list, "/slow");
        advance(Duration::from_secs(7)).await;
        let report = list.list().remove(0);
        assert!(report.running);
        assert_eq!((&*report.uri, report.overrun_seconds), ("/slow", 7.0));
        assert_eq!(observed.take(), ["overran, listed: true"]);

        drop(running);
        advance(Duration::from_secs(100)).await;
        let report = list.list().remove(0);
        assert!(!report.running);
        assert_eq!(
            (report.timeout_seconds, report.overrun_seconds),
            (10.0, 7.0)
        );
        assert_eq!(observed.take(), ["test returned after 7s"]);

        list.sweep();
        assert_eq!(list.list(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn what_never_ends_is_reported_once_and_dropped_from_the_list() {
        let (observed, list) = list();
        let sweeper = tokio::spawn(PostTimeout::sweep_regularly(Arc::downgrade(&list)));
        let running = late(&list, "/hangs");
        tokio::time::sleep(HANGS_AFTER - Duration::from_secs(1)).await;
        assert_eq!(list.list().len(), 1);
        tokio::time::sleep(SWEEP_INTERVAL).await;
        assert_eq!(list.list(), []);
        tokio::time::sleep(HANGS_AFTER).await;
        assert_eq!(observed.take(), ["overran, listed: true", "test hangs"]);

        drop(running);
        drop(list);
        tokio::time::sleep(SWEEP_INTERVAL).await;
        assert!(sweeper.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn the_list_is_bounded_and_prefers_what_still_runs() {
        let (observed, list) = list();
        drop(late(&list, "/returned"));
        let running: Vec<_> = (0..CAPACITY).map(|_| late(&list, "/runs")).collect();
        let listed = list.list();
        assert_eq!(listed.len(), CAPACITY);
        assert!(listed.iter().all(|report| report.running));
        let told = observed.take();
        assert!(!told.contains(&UNLISTED.to_owned()), "{told:?}");

        let unlisted = late(&list, "/too-many");
        assert_eq!(list.list().len(), CAPACITY);
        assert_eq!(observed.take(), [UNLISTED]);
        drop((running, unlisted));
        assert_eq!(observed.take().len(), CAPACITY + 1, "unlisted ones too");
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_uri_is_cut() {
        let (_, list) = list();
        let _running = late(&list, &format!("/{}", "a".repeat(10_000)));
        assert_eq!(list.list()[0].uri.len(), URI_BYTES);
    }

    const UNLISTED: &str = "overran, listed: false";

    fn list() -> (Arc<Observed>, Arc<PostTimeout>) {
        let observed = Arc::new(Observed::default());
        let list = PostTimeout::new(observed.clone());
        (observed, list)
    }

    /// A request that reaches its deadline of ten seconds now.
    fn late(list: &PostTimeout, uri: &str) -> Running {
        let running = Running::new();
        let deadline = Instant::now();
        let late = Late {
            server: "test",
            method: Method::GET,
            uri: uri.parse().unwrap(),
            arrival: deadline.checked_sub(Duration::from_secs(10)).unwrap(),
            deadline,
        };
        list.note(&running, late);
        running
    }
}
