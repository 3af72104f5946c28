//! What has been told already: one Event for each notice, with a count, and no more than a few
//! requests for it.

use std::{
    collections::HashMap,
    mem,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use super::{Notice, budget::Budgets};
use crate::source::api::up_to;

/// How often the count of an Event of ours is written. As in client-go.
const REFRESH: Duration = Duration::from_secs(30 * 60);
/// An Event that another node has written, or that could not be written, is left alone for so long,
/// and up to twice as long at random. Longer than API servers keep Events, an hour by default.
const LEAVE_ALONE: Duration = Duration::from_secs(2 * 3600);
/// Notices are forgotten when so many newer ones have come, or this time has passed; at the latest
/// when that has happened twice.
const NOTICES: usize = 4096;
const MEMORY: Duration = Duration::from_secs(4 * 3600);

/// The notices that may still be repeated.
#[derive(Debug)]
pub struct Series {
    /// Two generations: what is met again moves to the younger one, and the older one goes at once.
    recent: HashMap<Notice, Going>,
    older: HashMap<Notice, Going>,
    /// When the younger one began.
    began: Instant,
    budgets: Budgets,
}

/// A notice that may still be repeated.
#[derive(Clone, Debug)]
pub struct Going {
    pub first: SystemTime,
    pub last: SystemTime,
    /// How often it happened.
    pub count: u32,
    pub stage: Stage,
}

/// What is known of a notice's Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is to be created; somebody is about to do so.
    New,
    /// This node has created it, and has last written this count of it then.
    Ours {
        count: u32,
        at: Instant,
        /// Somebody is about to write the count.
        queued: bool,
    },
    /// It is left alone until then.
    LeftAlone(Instant),
}

/// What is to be done with a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Its Event is to be written: created, or its count.
    Write,
    /// It is counted, to be written later if at all.
    Count,
    /// It is dropped: the Service has had too many Events lately.
    Limit,
}

impl Series {
    pub fn new(now: Instant) -> Self {
        Self {
            recent: HashMap::new(),
            older: HashMap::new(),
            began: now,
            budgets: Budgets::default(),
        }
    }

    /// Takes in a notice.
    pub fn observe(&mut self, notice: &Notice, (now, time): (Instant, SystemTime)) -> Decision {
        if let Some(going) = self.get(notice) {
            going.count = going.count.saturating_add(1);
            going.last = time;
            return match &mut going.stage {
                Stage::LeftAlone(until) if now >= *until => {
                    going.stage = Stage::New;
                    Decision::Write
                }
                // The first repetition begins the series.
                Stage::Ours {
                    count: 1, queued, ..
                } if !*queued => {
                    *queued = true;
                    Decision::Write
                }
                _ => Decision::Count,
            };
        }
        if !self.budgets.take(&notice.service, now) {
            return Decision::Limit;
        }
        self.age(now);
        let going = Going {
            first: time,
            last: time,
            count: 1,
            stage: Stage::New,
        };
        self.recent.insert(notice.clone(), going);
        Decision::Write
    }

    /// What is known of a notice, for somebody who has met it again.
    pub fn get(&mut self, notice: &Notice) -> Option<&mut Going> {
        if let Some((notice, going)) = self.older.remove_entry(notice) {
            self.recent.insert(notice, going);
        }
        self.recent.get_mut(notice)
    }

    /// Notes that the API server has this count of an Event of ours.
    pub fn written(&mut self, notice: &Notice, count: u32, now: Instant) {
        let stage = Stage::Ours {
            count,
            at: now,
            queued: false,
        };
        self.set(notice, stage);
    }

    /// Has a notice's Event be created, once more: it has expired.
    pub fn expired(&mut self, notice: &Notice) {
        self.set(notice, Stage::New);
    }

    /// Has a notice's Event be left alone for some hours: there is one, or there can be none.
    pub fn leave_alone(&mut self, notice: &Notice, now: Instant) {
        let until = now + LEAVE_ALONE + up_to(LEAVE_ALONE);
        self.set(notice, Stage::LeftAlone(until));
    }

    fn set(&mut self, notice: &Notice, stage: Stage) {
        if let Some(going) = self.get(notice) {
            going.stage = stage;
        }
    }

    /// The Events of ours whose count is to be written now.
    pub fn due(&mut self, now: Instant) -> Vec<Notice> {
        let all = self.recent.iter_mut().chain(&mut self.older);
        let due = all.filter_map(|(notice, going)| match &mut going.stage {
            Stage::Ours { count, at, queued }
                if !*queued
                    && going.count != *count
                    && now.saturating_duration_since(*at) >= REFRESH =>
            {
                *queued = true;
                Some(notice.clone())
            }
            _ => None,
        });
        due.collect()
    }

    fn age(&mut self, now: Instant) {
        let old = now.saturating_duration_since(self.began) >= MEMORY;
        if old || self.recent.len() >= NOTICES {
            self.older = mem::take(&mut self.recent);
            self.began = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{EventType, Scope};
    use lb_objects::ObjectName;

    fn notice(service: usize, note: &str) -> Notice {
        Notice {
            service: ObjectName::new("default", format!("s{service}")),
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
        let decision = series.observe(notice, (now, SystemTime::now()));
        if decision == Decision::Write {
            let count = series.get(notice).unwrap().count;
            series.written(notice, count, now);
        }
        decision
    }

    #[test]
    fn repetitions_are_counted_and_written_seldom() {
        let start = Instant::now();
        let mut series = Series::new(start);
        let minute = Duration::from_secs(60);
        let a = notice(0, "a");
        assert_eq!(observe(&mut series, &a, start), Decision::Write);
        assert_eq!(observe(&mut series, &a, start), Decision::Write);
        for number in 1..29 {
            let now = start + minute * number;
            assert_eq!(observe(&mut series, &a, now), Decision::Count);
            assert!(series.due(now).is_empty());
        }
        let refresh = start + REFRESH;
        assert_eq!(observe(&mut series, &a, refresh), Decision::Count);
        assert_eq!(series.due(refresh), std::slice::from_ref(&a));
        assert_eq!(series.get(&a).unwrap().count, 31);
        assert!(series.due(refresh).is_empty(), "somebody is about to");
        series.written(&a, 31, refresh);
        assert!(series.due(refresh + REFRESH).is_empty(), "nothing is new");
        observe(&mut series, &a, refresh + REFRESH);
        assert_eq!(series.due(refresh + REFRESH), std::slice::from_ref(&a));
    }

    #[test]
    fn other_notes_are_other_events_until_the_budget_is_spent() {
        let now = Instant::now();
        let mut series = Series::new(now);
        let decisions: Vec<_> = (0..40)
            .map(|number| observe(&mut series, &notice(0, &number.to_string()), now))
            .collect();
        let of = |wanted| decisions.iter().filter(|d| **d == wanted).count();
        assert_eq!((of(Decision::Write), of(Decision::Limit)), (25, 15));
        assert_eq!(
            observe(&mut series, &notice(0, "3"), now),
            Decision::Write,
            "a repetition costs nothing"
        );
        assert_eq!(observe(&mut series, &notice(1, "3"), now), Decision::Write);
    }

    #[test]
    fn what_another_node_has_written_is_left_alone_for_hours() {
        let start = Instant::now();
        let mut series = Series::new(start);
        let a = notice(0, "a");
        assert_eq!(
            series.observe(&a, (start, SystemTime::now())),
            Decision::Write
        );
        series.leave_alone(&a, start);
        for minutes in 0..120 {
            let now = start + Duration::from_secs(60 * minutes);
            assert_eq!(observe(&mut series, &a, now), Decision::Count);
            assert!(series.due(now).is_empty());
        }
        let later = start + 2 * LEAVE_ALONE;
        assert_eq!(observe(&mut series, &a, later), Decision::Write);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_what_is_met_stays() {
        let start = Instant::now();
        let mut series = Series::new(start);
        let often = notice(0, "often");
        observe(&mut series, &often, start);
        for number in 1..5 * NOTICES {
            let now = start + Duration::from_millis(number as u64);
            observe(&mut series, &notice(number, "a"), now);
            if number % 1000 == 0 {
                observe(&mut series, &often, now);
            }
        }
        assert!(series.recent.len() + series.older.len() <= 2 * NOTICES);
        assert!(series.get(&notice(1, "a")).is_none());
        let often = series.get(&often).unwrap();
        assert_eq!(often.count as usize, 1 + 5 * NOTICES / 1000);
    }
}
