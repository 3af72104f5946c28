//! How many connections there are within limits, for metrics and `status`.

use std::sync::Arc;

use lb_common::{
    abi::FlowSchema,
    flow::{
        Seats,
        limit::{LEVELS, NODE},
        queue::LevelQueues,
    },
};
use lb_datapath::bpf::MappedArray;
use lb_objects::ObjectName;

use crate::{
    flows::SeatTable,
    map_writer::{Limited, Numbered, NumberedLevel, NumberedSchema},
    metrics::{LevelCount, LimitCount, SchemaCount},
    waiting::{Counts, Line},
};

/// The limits in force and the connections within them. Can be read at any time.
pub struct Connections {
    seats: Arc<SeatTable>,
    limited: Arc<Limited>,
    numbered: Arc<Numbered>,
    schemas: MappedArray<FlowSchema>,
    /// Those who wait, if connection admission is on.
    line: Option<Arc<Line>>,
}

impl Connections {
    pub fn new(
        seats: Arc<SeatTable>,
        limited: Arc<Limited>,
        numbered: Arc<Numbered>,
        schemas: MappedArray<FlowSchema>,
        line: Option<Arc<Line>>,
    ) -> Self {
        Self {
            seats,
            limited,
            numbered,
            schemas,
            line,
        }
    }

    /// Without limits.
    #[cfg(test)]
    pub fn in_memory() -> Self {
        Self::new(
            Arc::new(SeatTable::in_memory()),
            Arc::default(),
            Arc::default(),
            MappedArray::in_memory(lb_common::entries::FLOW_SCHEMAS as u32),
            None,
        )
    }

    /// Every limit: first the node's, if there is one, then those of Services in the order of
    /// names. Services are there as well whose connections are only counted.
    pub fn all(&self) -> Vec<LimitCount> {
        let services = self.limited.all().into_iter();
        let services = services.map(|(name, limit)| {
            let counted = self.count(limit.index);
            LimitCount {
                service: Some(name),
                // As it is meant to be: the maps may be a moment behind.
                limit: limit.most,
                long_running: limit.long_running,
                ..counted
            }
        });
        self.node().into_iter().chain(services).collect()
    }

    /// The node's limit, if there is one, or if connections within an earlier one are left.
    pub fn node(&self) -> Option<LimitCount> {
        let node = self.count(NODE);
        (node.limit != 0 || node.in_use != 0).then_some(node)
    }

    /// Every priority level, in the order of names.
    pub fn levels(&self) -> Vec<LevelCount> {
        let known = self.numbered.known();
        let line = self.line.as_deref();
        let count = |known: &NumberedLevel| {
            let seats = self.seats.read_level(known.number);
            let queues = line.map_or_else(LevelQueues::default, |line| {
                line.queues.of_level(known.number)
            });
            LevelCount {
                is_exempt: known.level.limited().is_none(),
                name: known.level.name.clone(),
                limits: known.limits,
                limit: seats.limit,
                in_use: u32::try_from(seats.used()).unwrap_or(0),
                highest: self.seats.highest_of_level(known.number),
                refused: seats.refused,
                over: seats.over,
                recovered: seats.recovered,
                slow_handshakes: self.seats.slow_handshakes(LEVELS + known.number),
                is_pressed: seats.pressed != 0,
                exempted: seats.exempted,
                kept: queues.kept,
                lingering: self.seats.lingering(known.number),
                waiting: queues.waiting,
                queue_full: queues.refused,
            }
        };
        known.levels.iter().map(count).collect()
    }

    /// Every flow schema, in the order in which they are asked.
    pub fn schemas(&self) -> Vec<SchemaCount> {
        let known = self.numbered.known();
        let count = |known: &NumberedSchema| {
            let line = self.line.as_ref();
            let mut count = SchemaCount {
                name: known.name.clone(),
                level: known.level.clone(),
                seats: known.seats,
                ..SchemaCount::default()
            };
            for number in known.numbers() {
                let counted = self.schemas.read(number);
                let waited = line.map_or_else(Counts::default, |line| line.counts(number));
                count.admitted += counted.admitted;
                count.over += counted.over;
                count.refused += counted.refused;
                count.flow_limit += counted.refused_parties + waited.flow_limit;
                count.uncounted += counted.uncounted;
                for (expired, others) in count.expired.iter_mut().zip(counted.expired) {
                    *expired += others;
                }
                count.waited += waited;
            }
            count
        };
        known.schemas.iter().map(count).collect()
    }

    /// Addresses with connections that belong to the level `catch-all`, because there is no room to
    /// classify them.
    pub fn unclassified(&self) -> usize {
        self.numbered.known().unclassified
    }

    /// By how many seats the numbers in use have been corrected.
    pub fn corrected(&self) -> u64 {
        self.seats.corrected()
    }

    fn count(&self, index: u32) -> LimitCount {
        let seats = self.seats.read(index);
        let Seats {
            limit,
            refused,
            recovered,
            exempted,
            pressed,
            ..
        } = seats;
        LimitCount {
            service: None::<ObjectName>,
            limit,
            long_running: false,
            in_use: u32::try_from(seats.used()).unwrap_or(0),
            highest: self.seats.highest(index),
            refused,
            recovered,
            exempted,
            slow_handshakes: self.seats.slow_handshakes(index),
            is_pressed: pressed != 0,
        }
    }
}
