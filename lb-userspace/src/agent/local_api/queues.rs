//! `/queues`: the queues in which connections wait for seats of priority levels.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::page;
use crate::{
    admission::levels::Count,
    http::{Request, Response, has_flag},
    map_writer::{Known, Numbered},
    waiting::Line,
};

/// How many are told of without `?limit=`.
const USUAL: usize = 1000;

/// A queue of a priority level. Its first three numbers have the meaning of `Index`, `SeatsInUse` and
/// `PendingRequests` in APF's `dump_queues`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LevelQueue {
    pub priority_level: String,
    /// Which of the level's queues it is, from 0 on.
    pub queue: u32,
    /// Seats that it is charged for.
    pub seats: u32,
    /// Connections that wait in it.
    pub waiting: u32,
    /// For how long the first of them has waited there, in milliseconds; absent if the agent has none in
    /// its keeping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_ms: Option<u64>,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// In the order of levels' names, and of the queues of each.
    pub items: Vec<LevelQueue>,
    /// Whether there are more.
    pub truncated: bool,
    /// How many queues all levels have together.
    pub queues: u32,
}

/// At most `?limit=` queues: those in which somebody waits or that are charged for seats, with `?all` all.
pub async fn list(request: &Request, line: Option<Arc<Line>>, numbered: Arc<Numbered>) -> Response {
    let is_all = has_flag(request.uri(), "all");
    page(request, USUAL, move |limit| {
        let line = line.as_deref();
        Ok(line.map_or_else(Page::default, |line| {
            read(line, &numbered.known(), is_all, limit)
        }))
    })
    .await
}

fn read(line: &Line, known: &Known, is_all: bool, limit: usize) -> Page {
    let levels = known.levels.iter();
    let levels: Vec<_> = levels
        .map(|known| (&*known.level.name, line.queues.of_level(known.number)))
        .filter(|(_, of)| of.number != 0)
        .collect();
    let mut queues = levels.iter().flat_map(|(level, of)| {
        let waits = line.longest_waits(level);
        let all = (0..).zip(line.queues.each(of));
        let all = all.map(move |(index, queue)| LevelQueue {
            priority_level: (*level).to_owned(),
            queue: index,
            seats: Count::of(queue.word).used,
            waiting: queue.waiting,
            oldest_ms: waits.get(&index).map(|wait| wait.as_millis() as u64),
        });
        all.filter(move |queue| is_all || queue.seats != 0 || queue.waiting != 0)
    });
    Page {
        items: queues.by_ref().take(limit).collect(),
        truncated: queues.next().is_some(),
        queues: levels.iter().map(|(_, of)| of.number).sum(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lb_admission::queueset::Arrival;
    use lb_common::flow::queue::{LevelQueues, Queue};
    use lb_datapath::bpf::MappedArray;

    use super::*;
    use crate::{
        admission::{levels::Levels, objects::Objects},
        flows::Queues,
        map_writer::NumberedLevel,
    };

    const SEATS: u32 = 1000;

    fn level(name: &str, response: &str) -> String {
        format!(
            "---\napiVersion: node-lb.io/v1alpha1\nkind: PriorityLevel\nmetadata: {{name: {name}}}\n\
             spec: {{type: Limited, limited: {{limitResponse: {{{response}}}}}}}\n"
        )
    }

    /// Levels `a` and `b` have four queues each. In the last one of `a` two wait, the first of whom has
    /// done so for three seconds; the second one of `b` is charged for five seats.
    fn line() -> (Line, Known) {
        let four = "type: Queue, queuing: {queues: 4, handSize: 2}";
        let text = level("b", four) + &level("a", four) + &level("none", "type: Reject");
        let mut objects = Objects::default();
        objects.read([("a.yaml".into(), Ok(text.into_bytes()))]);
        assert_eq!(objects.errors, []);
        let in_force = objects.configuration.in_force();
        let limits = in_force.limits(SEATS);
        let levels = in_force.levels.iter().zip(limits).zip(2..);
        let levels = levels.map(|((level, limits), number)| NumberedLevel {
            level: level.clone(),
            limits,
            number,
        });
        let mut known = Known::default();
        known.levels = levels.collect();

        let (of_levels, queues) = (MappedArray::in_memory(8), MappedArray::in_memory(8));
        for (name, first) in [("a", 0), ("b", 4)] {
            let level = known.levels.iter().find(|known| known.level.name == name);
            let of = LevelQueues {
                first,
                number: 4,
                ..LevelQueues::default()
            };
            of_levels.write(level.unwrap().number, &of);
        }
        let queue = |word, waiting| Queue {
            word,
            waiting,
            pad: 0,
        };
        queues.write(3, &queue(0, 2));
        queues.write(4, &queue(u64::MAX, 0)); // one less than none, for a moment
        queues.write(5, &queue(9 << 32 | 5, 0));

        let mut line = Line::new(Queues::new(of_levels, queues));
        let mut levels = Levels::new(&in_force, SEATS, line.now()).unwrap();
        let parked = levels.park("a", 3, Arrival::connection(7, 1, 0, None), line.now());
        assert!(parked.is_ok(), "{parked:?}");
        *line.levels() = Some(levels);
        line.origin -= Duration::from_secs(3);
        (line, known)
    }

    fn names(page: &Page) -> Vec<(&str, u32)> {
        let items = page.items.iter();
        items
            .map(|queue| (&*queue.priority_level, queue.queue))
            .collect()
    }

    #[test]
    fn queues_are_told_of_that_somebody_waits_in_or_that_are_charged() {
        let (line, known) = line();
        let page = read(&line, &known, false, USUAL);
        assert_eq!(names(&page), [("a", 3), ("b", 1)]);
        let [a, b] = &page.items[..] else {
            unreachable!()
        };
        assert_eq!((a.seats, a.waiting), (0, 2));
        let waited = a.oldest_ms.unwrap();
        assert!((3000..60_000).contains(&waited), "{waited}");
        assert_eq!((b.seats, b.waiting, b.oldest_ms), (5, 0, None));
        assert_eq!((page.truncated, page.queues), (false, 8));
    }

    #[test]
    fn all_queues_are_told_of_as_far_as_the_limit() {
        let (line, known) = line();
        let page = read(&line, &known, true, 8);
        assert_eq!((page.items.len(), page.truncated), (8, false));
        assert_eq!(names(&page)[3..5], [("a", 3), ("b", 0)]);
        assert_eq!(page.items[4].seats, 0);
        let page = read(&line, &known, true, 7);
        assert_eq!((page.items.len(), page.truncated), (7, true));
        assert_eq!(page.queues, 8);
    }
}
