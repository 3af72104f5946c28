//! What this node has seen in the last hour, for plots: `/history`.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::Serialize;
use tokio::{
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval},
};

use crate::health::readiness::Readiness;

/// How often numbers are taken.
const INTERVAL: Duration = Duration::from_secs(10);
/// How often readiness is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Moments that are kept: an hour.
const MOMENTS: usize = 360;
/// Changes of readiness that are kept.
const CHANGES: usize = 100;

/// The kernel's numbers, counted since its maps were made, but for those of this moment.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    /// Connections sent to an endpoint.
    pub opened: u64,
    /// Packets refused or dropped, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Flows in both tables now, as the latest pass over them saw it; `None` before the first pass.
    pub flows: Option<u64>,
    /// How many flows there is room for.
    pub room: u64,
    /// Connections that wait for a seat now.
    pub waiting: u32,
    /// Those that hold a seat of a priority level now.
    pub seats: u32,
}

/// Reads the kernel's numbers.
pub trait NumbersSource: Send + Sync + 'static {
    /// The numbers of now. Takes time.
    ///
    /// # Errors
    ///
    /// If a map cannot be read.
    fn numbers(&self) -> anyhow::Result<Numbers>;
}

/// What came between one moment and the one before, and what is there at its end.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Moment {
    /// Its end, in seconds since 1970.
    at: u64,
    /// How long it was.
    seconds: f64,
    /// As in [`Numbers`], but only of this time.
    opened: u64,
    /// Likewise; reasons without a packet are left out.
    refused: BTreeMap<&'static str, u64>,
    /// As in [`Numbers`].
    #[serde(skip_serializing_if = "Option::is_none")]
    flows: Option<u64>,
    room: u64,
    waiting: u32,
    seats: u32,
}

/// Which checks of `/readyz` fail from a time on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Change {
    /// Seconds since 1970.
    at: u64,
    /// With their reasons; empty if the agent is ready.
    failing: Vec<String>,
}

/// The last hour.
#[derive(Default)]
pub struct History(Mutex<Kept>);

#[derive(Default, Serialize)]
struct Kept {
    /// The oldest first.
    moments: VecDeque<Moment>,
    /// The oldest first.
    readiness: VecDeque<Change>,
    #[serde(skip)]
    before: Option<(Instant, Numbers)>,
}

impl History {
    /// Takes numbers and looks at readiness from now on, until it is dropped.
    pub async fn follow(
        self: Arc<Self>,
        source: Arc<dyn NumbersSource>,
        readiness: Arc<Readiness>,
    ) {
        let history = Arc::downgrade(&self);
        drop(self);
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut taken: Option<Instant> = None;
        loop {
            let now = looks.tick().await;
            let Some(history) = history.upgrade() else {
                return;
            };
            history.look(readiness.problems(), seconds_since_1970());
            if taken.is_none_or(|taken| now - taken >= INTERVAL) {
                taken = Some(now);
                let source = source.clone();
                match spawn_blocking(move || source.numbers()).await {
                    Ok(Ok(numbers)) => history.add(numbers, now, seconds_since_1970()),
                    Ok(Err(error)) => tracing::debug!("no numbers for the last hour: {error:#}"),
                    // The runtime ends.
                    Err(_) => return,
                }
            }
        }
    }

    /// The answer of `/history`, a JSON object.
    ///
    /// # Errors
    ///
    /// If it cannot be written as JSON.
    pub fn json(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&*self.lock())
    }

    fn add(&self, numbers: Numbers, now: Instant, at: u64) {
        let mut kept = self.lock();
        let before = kept.before.replace((now, numbers.clone()));
        let Some((since, before)) = before else {
            return;
        };
        // Counters begin anew with new maps.
        let more = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let refused = numbers.refused.iter().map(|(reason, packets)| {
            let before = before.refused.get(reason).copied().unwrap_or(0);
            (*reason, more(*packets, before))
        });
        let moment = Moment {
            at,
            seconds: (now - since).as_secs_f64(),
            opened: more(numbers.opened, before.opened),
            refused: refused.filter(|(_, packets)| *packets != 0).collect(),
            flows: numbers.flows,
            room: numbers.room,
            waiting: numbers.waiting,
            seats: numbers.seats,
        };
        push(&mut kept.moments, moment, MOMENTS);
    }

    fn look(&self, failing: Vec<String>, at: u64) {
        let mut kept = self.lock();
        let last = kept.readiness.back();
        if last.is_none_or(|last| last.failing != failing) {
            push(&mut kept.readiness, Change { at, failing }, CHANGES);
        }
    }

    // Whole at any time, so that a panic elsewhere has not spoiled it.
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds at the end; the oldest gives way.
fn push<T>(kept: &mut VecDeque<T>, new: T, most: usize) {
    if kept.len() >= most {
        kept.pop_front();
    }
    kept.push_back(new);
}

fn seconds_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn numbers(opened: u64, refused: u64) -> Numbers {
        Numbers {
            opened,
            refused: [("no-endpoints", refused), ("no-route", 0)].into(),
            flows: Some(opened),
            room: 1000,
            ..Numbers::default()
        }
    }

    fn shown(history: &History) -> Value {
        serde_json::from_slice(&history.json().unwrap()).unwrap()
    }

    #[test]
    fn a_moment_has_what_came_since_the_one_before() {
        let history = History::default();
        let start = Instant::now();
        history.add(numbers(100, 7), start, 1000);
        assert_eq!(shown(&history)["moments"], json!([]));
        history.add(numbers(130, 7), start + INTERVAL, 1010);
        history.add(numbers(130, 9), start + 3 * INTERVAL, 1030);
        // New maps.
        history.add(numbers(4, 2), start + 4 * INTERVAL, 1040);
        let moments = &shown(&history)["moments"];
        let told = |index: usize| {
            let moment = &moments[index];
            (
                moment["seconds"].clone(),
                moment["opened"].clone(),
                moment["refused"].clone(),
            )
        };
        assert_eq!(told(0), (json!(10.0), json!(30), json!({})));
        assert_eq!(told(1), (json!(20.0), json!(0), json!({"no-endpoints": 2})));
        assert_eq!(told(2), (json!(10.0), json!(4), json!({"no-endpoints": 2})));
        assert_eq!(moments[2]["at"], 1040);
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let history = History::default();
        let start = Instant::now();
        for moment in 0..=MOMENTS as u32 + 5 {
            history.add(numbers(1, 0), start + INTERVAL * moment, moment.into());
        }
        let shown = shown(&history);
        let moments = shown["moments"].as_array().unwrap();
        assert_eq!((moments.len(), &moments[0]["at"]), (MOMENTS, &json!(6)));
    }

    #[test]
    fn readiness_is_told_when_it_changes() {
        let history = History::default();
        let fails = || vec!["devices (eth0)".to_owned()];
        for (at, failing) in [vec![], vec![], fails(), fails(), vec![]]
            .into_iter()
            .enumerate()
        {
            history.look(failing, at as u64);
        }
        let expected = json!([
            {"at": 0, "failing": []},
            {"at": 2, "failing": ["devices (eth0)"]},
            {"at": 4, "failing": []},
        ]);
        assert_eq!(shown(&history)["readiness"], expected);
        for at in 0..=2 * CHANGES as u64 {
            history.look(vec![at.to_string()], at);
        }
        assert_eq!(
            shown(&history)["readiness"].as_array().unwrap().len(),
            CHANGES
        );
    }
}
