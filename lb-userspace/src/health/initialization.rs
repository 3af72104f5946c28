//! The time until the agent knows the whole cluster (KEP-4568).

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use crate::{http::Unready, source::health::SourceHealth};

/// The longest advice when to ask again, in seconds.
const LONGEST_ADVICE: f64 = 30.0;
/// How fast the advice grows: by about this part of itself per second.
const GROWTH: f64 = 0.06;

/// Starts with the agent, and is over once the maps have the first complete state. It never starts
/// again: while a source has trouble, what it delivered stays in force, and only something as
/// complete replaces it.
#[derive(Debug)]
pub struct Initialization {
    since: Instant,
    source: Arc<SourceHealth>,
    over: watch::Sender<bool>,
}

impl Initialization {
    /// Starts now. `source` says what is still to be delivered.
    pub fn new(source: Arc<SourceHealth>) -> Self {
        Self {
            since: Instant::now(),
            source,
            over: watch::Sender::new(false),
        }
    }

    /// Ends it: the maps have the first complete state.
    pub fn finish(&self) {
        self.over.send_replace(true);
    }

    /// Whether the maps have the first complete state.
    pub fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// What is missing and when to ask again; `None` once it is over.
    pub fn unready(&self) -> Option<Unready> {
        (!self.is_over()).then(|| Unready {
            missing: self.missing(),
            retry_after: retry_after(self.since.elapsed()),
        })
    }

    /// What it waits for: the resources that have not arrived, or the maps that are made from them.
    pub fn missing(&self) -> String {
        let unsynced = self.source.unsynced();
        match unsynced.is_empty() {
            true => "the kernel's maps".to_owned(),
            false => unsynced.join(", "),
        }
    }

    /// Waits until it is over, at most for `limit`. Returns whether it is over.
    pub async fn wait(&self, limit: Duration) -> bool {
        let mut changes = self.over.subscribe();
        let over = changes.wait_for(|over| *over);
        timeout(limit, over).await.is_ok_and(|over| over.is_ok())
    }
}

/// When to ask again for something that has been unready for so long: in whole seconds, from 1 to
/// 30, the longer it takes the longer, as in kube-apiserver.
fn retry_after(unready_for: Duration) -> Duration {
    let advice = (GROWTH * unready_for.as_secs_f64()).exp();
    Duration::from_secs(advice.clamp(1.0, LONGEST_ADVICE) as u64)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::Value;
    use tokio::time::advance;

    use super::*;

    #[derive(Deserialize)]
    struct UnreadyCase {
        #[serde(rename = "downtime_s")]
        downtime: u64,
        #[serde(rename = "retryAfter")]
        retry_after: u64,
    }

    #[test]
    fn the_longer_it_takes_the_later_clients_come_back() {
        let data = include_str!("../../admission/tests/data/apf.json");
        let data: Value = serde_json::from_str(data).unwrap();
        let cases = data.pointer("/g_extras/unreadyCacheRetryAfter/cases");
        let cases: Vec<UnreadyCase> = serde_json::from_value(cases.unwrap().clone()).unwrap();
        assert!(!cases.is_empty());
        for case in cases {
            let advice = retry_after(Duration::from_secs(case.downtime)).as_secs();
            assert_eq!(advice, case.retry_after, "after {} s", case.downtime);
        }
        assert_eq!(retry_after(Duration::MAX).as_secs(), 30);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_to_retry_grows_from_1_to_30_seconds() {
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
            let initialization = Initialization::new(source());
            advance(Duration::from_secs(elapsed)).await;
            let unready = initialization.unready().unwrap();
            assert_eq!(unready.retry_after.as_secs(), seconds, "{elapsed}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_waited_for_at_most_so_long() {
        let limit = Duration::from_secs(60);
        let initialization = Initialization::new(source());
        let begun = Instant::now();
        assert!(!initialization.wait(limit).await);
        assert_eq!(begun.elapsed(), limit);

        let later = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            initialization.finish();
        };
        let (over, ()) = tokio::join!(initialization.wait(limit), later);
        assert!(over);
        assert_eq!(begun.elapsed(), limit + Duration::from_secs(5));
        assert!(initialization.wait(Duration::ZERO).await);
    }

    #[tokio::test]
    async fn it_says_what_is_missing_until_it_is_over() {
        let source = source();
        let initialization = Initialization::new(source.clone());
        assert_eq!(initialization.missing(), "nodes, services");
        source.synced("nodes");
        assert_eq!(initialization.unready().unwrap().missing, "services");
        source.synced("services");
        assert_eq!(initialization.missing(), "the kernel's maps");
        assert!(!initialization.is_over());
        initialization.finish();
        assert_eq!(initialization.unready(), None);
    }

    fn source() -> Arc<SourceHealth> {
        Arc::new(SourceHealth::new(["nodes", "services"]))
    }
}
