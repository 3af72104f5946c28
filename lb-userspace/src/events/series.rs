//! Repetitions: one Event for each notice, with a count.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use super::{Notice, Scope, budget::Budgets};

/// After so long without a repetition, an Event is over, and the next one is new. As in client-go.
const OVER: Duration = Duration::from_secs(6 * 60);
/// How often the count of a series is written while it goes on. As in client-go.
const REFRESH: Duration = Duration::from_secs(30 * 60);
/// How many Events are remembered.
const EVENTS: usize = 1024;

/// The Events that may still be repeated.
#[derive(Debug, Default)]
pub struct Series {
    going: HashMap<Notice, Going>,
    budgets: Budgets,
}

/// An Event that may still be repeated.
#[derive(Clone, Debug)]
pub struct Going {
    /// `metadata.name`.
    pub name: String,
    pub first: SystemTime,
    pub last: SystemTime,
    /// How often it happened.
    pub count: u32,
    last_seen: Instant,
    /// The count that was last written, and when.
    written_count: u32,
    written: Instant,
}

/// What is to be done with a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is a new Event.
    Create,
    /// It is the first repetition: the series starts.
    Update,
    /// It is only counted; the count is written later.
    Count,
    /// It is dropped: the Service has had too many Events lately.
    Limit,
}

impl Series {
    /// Takes a notice. `name` is used if it is a new Event.
    pub fn observe(
        &mut self,
        notice: &Notice,
        name: impl FnOnce() -> String,
        (now, time): (Instant, SystemTime),
    ) -> Decision {
        if let Some(going) = self.going.get_mut(notice) {
            going.count = going.count.saturating_add(1);
            (going.last, going.last_seen) = (time, now);
            return match (notice.scope, going.written_count) {
                (Scope::Node, 1) => Decision::Update,
                // All nodes together have only one Event of Scope::Cluster, so that their counts
                // would overwrite each other.
                _ => Decision::Count,
            };
        }
        if !self.budgets.take(&notice.service, now) {
            return Decision::Limit;
        }
        if self.going.len() >= EVENTS
            && let Some((oldest, _)) = self.going.iter().min_by_key(|(_, going)| going.last_seen)
        {
            let oldest = oldest.clone();
            self.going.remove(&oldest);
        }
        let going = Going {
            name: name(),
            first: time,
            last: time,
            count: 1,
            last_seen: now,
            written_count: 0,
            written: now,
        };
        self.going.insert(notice.clone(), going);
        Decision::Create
    }

    /// The Event of a notice, if it is remembered.
    pub fn get(&self, notice: &Notice) -> Option<&Going> {
        self.going.get(notice)
    }

    /// Notes that the API server has this count.
    pub fn written(&mut self, notice: &Notice, count: u32, now: Instant) {
        if let Some(going) = self.going.get_mut(notice) {
            (going.written_count, going.written) = (count, now);
        }
    }

    /// Forgets an Event that could not be written, so that the next notice creates a new one.
    pub fn forget(&mut self, notice: &Notice) {
        self.going.remove(notice);
    }

    /// The Events with a count that must be written now. Events that are over and have nothing to
    /// write are forgotten.
    pub fn due(&mut self, now: Instant) -> Vec<Notice> {
        let is_over = |going: &Going| now.saturating_duration_since(going.last_seen) >= OVER;
        let is_ahead = |notice: &Notice, going: &Going| {
            notice.scope == Scope::Node && going.count != going.written_count
        };
        self.going
            .retain(|notice, going| !is_over(going) || is_ahead(notice, going));
        let due = self.going.iter().filter(|(notice, going)| {
            let stale = now.saturating_duration_since(going.written) >= REFRESH;
            is_ahead(notice, going) && (is_over(going) || stale)
        });
        due.map(|(notice, _)| notice.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::EventType;
    use lb_objects::ObjectName;

    fn notice(service: usize, note: &str) -> Notice {
        Notice {
            service: ObjectName {
                namespace: "default".to_owned(),
                name: format!("s{service}"),
            },
            uid: None,
            event_type: EventType::Warning,
            reason: "R",
            action: "A",
            note: note.to_owned(),
            scope: Scope::Node,
        }
    }

    /// Observes a notice, and writes what is to be written.
    fn observe(series: &mut Series, notice: &Notice, now: Instant) -> Decision {
        let decision = series.observe(notice, || "e".to_owned(), (now, SystemTime::now()));
        if matches!(decision, Decision::Create | Decision::Update) {
            let count = series.get(notice).unwrap().count;
            series.written(notice, count, now);
        }
        decision
    }

    #[test]
    fn repetitions_are_counted_and_written_seldom() {
        let mut series = Series::default();
        let (start, minute) = (Instant::now(), Duration::from_secs(60));
        let a = notice(0, "a");
        assert_eq!(observe(&mut series, &a, start), Decision::Create);
        assert_eq!(observe(&mut series, &a, start), Decision::Update);
        for number in 1..29 {
            let now = start + minute * number;
            assert_eq!(observe(&mut series, &a, now), Decision::Count);
            assert!(series.due(now).is_empty());
        }
        let refresh = start + REFRESH;
        assert_eq!(observe(&mut series, &a, refresh), Decision::Count);
        assert_eq!(series.due(refresh), std::slice::from_ref(&a));
        assert_eq!(series.get(&a).unwrap().count, 31);
        series.written(&a, 31, refresh);
        assert!(series.due(refresh).is_empty());

        observe(&mut series, &a, refresh);
        let over = refresh + OVER;
        assert_eq!(
            series.due(over),
            std::slice::from_ref(&a),
            "its end is written"
        );
        series.written(&a, 32, over);
        assert!(series.due(over).is_empty() && series.get(&a).is_none());
        assert_eq!(observe(&mut series, &a, over), Decision::Create);
    }

    #[test]
    fn other_notes_are_other_events_until_the_budget_is_spent() {
        let mut series = Series::default();
        let now = Instant::now();
        let decisions: Vec<_> = (0..40)
            .map(|number| observe(&mut series, &notice(0, &number.to_string()), now))
            .collect();
        let of = |wanted| decisions.iter().filter(|d| **d == wanted).count();
        assert_eq!((of(Decision::Create), of(Decision::Limit)), (25, 15));
        assert_eq!(
            observe(&mut series, &notice(0, "3"), now),
            Decision::Update,
            "a repetition costs nothing"
        );
        assert_eq!(observe(&mut series, &notice(1, "3"), now), Decision::Create);
    }

    #[test]
    fn events_of_all_nodes_have_no_count() {
        let mut series = Series::default();
        let now = Instant::now();
        let shared = Notice {
            scope: Scope::Cluster,
            ..notice(0, "a")
        };
        assert_eq!(observe(&mut series, &shared, now), Decision::Create);
        for _ in 0..3 {
            assert_eq!(observe(&mut series, &shared, now), Decision::Count);
        }
        assert!(series.due(now + REFRESH).is_empty());
        assert!(series.get(&shared).is_none(), "it is over");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut series = Series::default();
        let start = Instant::now();
        for number in 0..2 * EVENTS {
            let now = start + Duration::from_millis(number as u64);
            observe(&mut series, &notice(number, "a"), now);
        }
        assert_eq!(series.going.len(), EVENTS);
        assert!(series.get(&notice(0, "a")).is_none());
        assert!(series.get(&notice(2 * EVENTS - 1, "a")).is_some());
    }

    #[test]
    fn what_could_not_be_written_is_new_again() {
        let mut series = Series::default();
        let now = Instant::now();
        observe(&mut series, &notice(0, "a"), now);
        series.forget(&notice(0, "a"));
        assert_eq!(observe(&mut series, &notice(0, "a"), now), Decision::Create);
    }
}
