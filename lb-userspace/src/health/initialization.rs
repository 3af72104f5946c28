//! Whether what the agent knows of the cluster is complete, resource by resource (KEP-4568).

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use crate::admission::retry_after::while_unready;

/// Whether each resource's cache holds everything. A cache that loses touch stays what it was; only one
/// that starts over is uninitialised again.
#[derive(Debug)]
pub struct Caches {
    /// Since when each is uninitialised; `None` while it is not.
    uninitialized_since: Mutex<BTreeMap<&'static str, Option<Instant>>>,
    all_initialized: watch::Sender<bool>,
}

impl Caches {
    /// All uninitialised as of now. The names are the API's, as in `endpointslices`.
    pub fn new(resources: impl IntoIterator<Item = &'static str>) -> Self {
        let now = Some(Instant::now());
        let since: BTreeMap<_, _> = resources.into_iter().map(|name| (name, now)).collect();
        Self {
            all_initialized: watch::Sender::new(since.is_empty()),
            uninitialized_since: Mutex::new(since),
        }
    }

    /// The cache of `resource` holds everything there is, and so does what is made from it.
    pub fn initialized(&self, resource: &str) {
        self.change(resource, |since| *since = None);
    }

    /// The cache of `resource` starts over.
    pub fn reinitializing(&self, resource: &str) {
        self.change(resource, |since| {
            since.get_or_insert_with(Instant::now);
        });
    }

    /// The resources.
    pub fn resources(&self) -> Vec<&'static str> {
        self.since().keys().copied().collect()
    }

    /// Those whose cache is not initialised.
    pub fn uninitialized(&self) -> Vec<&'static str> {
        let since = self.since();
        let missing = since.iter().filter(|(_, since)| since.is_some());
        missing.map(|(name, _)| *name).collect()
    }

    /// When to ask again, if not every cache is initialised: in whole seconds, the longer the longer it
    /// takes, from 1 to 30, as kube-apiserver has it.
    pub fn retry_after(&self) -> Option<Duration> {
        let since = self.since().values().copied().flatten().min()?;
        Some(Duration::from_secs(while_unready(since.elapsed())))
    }

    /// Follows whether every cache is initialised.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.all_initialized.subscribe()
    }

    /// Waits until every cache is initialised at the same time, at most for `limit`; whether they are.
    pub async fn wait(&self, limit: Duration) -> bool {
        let mut changes = self.subscribe();
        let all = changes.wait_for(|all| *all);
        timeout(limit, all).await.is_ok_and(|all| all.is_ok())
    }

    fn change(&self, resource: &str, change: impl FnOnce(&mut Option<Instant>)) {
        let mut since = self.since();
        if let Some(since) = since.get_mut(resource) {
            change(since);
        }
        let all = since.values().all(Option::is_none);
        // Under the lock, so that the last change is also the last one told.
        self.all_initialized
            .send_if_modified(|told| std::mem::replace(told, all) != all);
    }

    fn since(&self) -> MutexGuard<'_, BTreeMap<&'static str, Option<Instant>>> {
        self.uninitialized_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_to_retry_grows_from_1_to_30_seconds() {
        let caches = Caches::new(["services"]);
        // e^(0.06 t), truncated: 1 s until 11.6 s, 2 until 18.3, ..., 30 from 56.7 on.
        for (elapsed, seconds) in [
            (0, 1),
            (11, 1),
            (12, 2),
            (18, 2),
            (19, 3),
            (40, 11),
            (56, 28),
            (57, 30),
            (1000, 30),
        ] {
            let caches = Caches::new(["services"]);
            advance(Duration::from_secs(elapsed)).await;
            assert_eq!(
                caches.retry_after(),
                Some(Duration::from_secs(seconds)),
                "{elapsed}"
            );
        }
        caches.initialized("services");
        assert_eq!(caches.retry_after(), None);
        caches.reinitializing("services");
        assert_eq!(
            caches.retry_after(),
            Some(Duration::from_secs(1)),
            "counted anew"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn every_resource_is_waited_for_at_most_so_long() {
        let limit = Duration::from_secs(60);
        let caches = Caches::new(["nodes", "services"]);
        caches.initialized("nodes");
        assert_eq!(caches.uninitialized(), ["services"]);
        let begun = Instant::now();
        assert!(!caches.wait(limit).await);
        assert_eq!(begun.elapsed(), limit);

        let later = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            caches.initialized("services");
        };
        let (all, ()) = tokio::join!(caches.wait(limit), later);
        assert!(all);
        assert_eq!(begun.elapsed(), limit + Duration::from_secs(5));
        assert!(caches.wait(Duration::ZERO).await);
    }

    #[tokio::test]
    async fn a_cache_may_start_over() {
        let caches = Caches::new(["services"]);
        assert_eq!(caches.uninitialized(), ["services"]);
        caches.initialized("services");
        caches.reinitializing("services");
        assert_eq!(caches.uninitialized(), ["services"]);
        caches.initialized("pods"); // nobody's
        assert_eq!(caches.resources(), ["services"]);
    }
}
