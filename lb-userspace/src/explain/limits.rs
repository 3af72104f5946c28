//! The limits of connections that a packet's connection counts against, and how many there are.

use std::collections::HashMap;

use lb_common::{
    abi::{Plan, plan_flag},
    flow::{
        Seats,
        limit::{LEVELS, NODE, limit_flag},
        place::LevelSeats,
        queue::LevelQueues,
        seats::Start,
    },
    pipeline,
};

use crate::{map_writer::NumberedSchema, memory::ProgrammedTables};

/// A limit that a connection counts against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub whose: Whose,
    /// The most connections; `None` means that they are only counted.
    pub most: Option<u32>,
    /// Whether connections above it are let in, and counted.
    pub is_audited: bool,
    /// How many there are now; `None` if no agent says.
    pub in_use: Option<u32>,
    /// Whether connections are let in when there are as many.
    pub exempt: bool,
    /// How many a connection counts for: of a priority level, the seats that it takes.
    pub width: u32,
}

/// Whose limit it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    Node,
    /// `namespace/name`.
    Service(String),
    /// A priority level's, by its name.
    Level(String),
}

/// How many connections there are within limits at one moment, if an agent says so.
#[derive(Clone, Debug, Default)]
pub struct InUse(Option<Numbers>);

/// What an agent says of connections within limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Those within the node's limit.
    pub node: u32,
    /// Those of Services, by `namespace/name`.
    pub services: HashMap<String, u32>,
    /// Priority levels, by name.
    pub levels: HashMap<String, Level>,
}

/// A priority level at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    pub in_use: u32,
    /// The most connections at the moment.
    pub limit: u32,
    /// Connections that wait for a seat.
    pub waiting: u32,
    /// Free seats that are kept for flows without any.
    pub kept: u32,
}

impl From<Numbers> for InUse {
    fn from(numbers: Numbers) -> Self {
        Self(Some(numbers))
    }
}

impl InUse {
    /// Of the node, or of a Service.
    fn of(&self, service: Option<&str>) -> Option<u32> {
        let numbers = self.0.as_ref()?;
        Some(match service {
            None => numbers.node,
            // A limit that the agent does not know has let nobody in.
            Some(service) => numbers.services.get(service).copied().unwrap_or(0),
        })
    }

    fn of_level(&self, name: &str) -> Option<&Level> {
        self.0.as_ref()?.levels.get(name)
    }

    /// Writes the numbers, the node's limit, and the levels' limits of this moment, where the
    /// pipeline looks for them.
    pub(super) fn write(&self, tables: &ProgrammedTables, node_limit: u32) {
        let used = |service: Option<&str>| u64::from(self.of(service).unwrap_or(0));
        tables.set_seats(
            NODE,
            &Seats {
                word: used(None),
                limit: node_limit,
                ..tables.seats(NODE)
            },
        );
        for (name, limit) in tables.limited().all() {
            let seats = Seats {
                word: used(Some(&name.to_string())),
                ..tables.seats(limit.index)
            };
            tables.set_seats(limit.index, &seats);
        }
        for known in &tables.numbered().known().levels {
            let index = LEVELS + known.number;
            let queues = tables.level_queues();
            let level = self.of_level(&known.level.name);
            let of_level = LevelQueues {
                waiting: level.map_or(0, |level| level.waiting),
                kept: level.map_or(0, |level| level.kept),
                // As with an agent that looks after those who wait.
                until: 1,
                ..queues.read(known.number)
            };
            queues.write(known.number, &of_level);
            if let Some(level) = level {
                let seats = Seats {
                    word: level.in_use.into(),
                    limit: level.limit,
                    ..tables.seats(index)
                };
                tables.set_seats(index, &seats);
            }
        }
    }

    /// The limits that a new connection counts against; `service` is `namespace/name`, `schema` the
    /// flow schema that takes it.
    pub(super) fn limits(
        &self,
        tables: &ProgrammedTables,
        plan: &Plan,
        service: &str,
        schema: Option<&NumberedSchema>,
    ) -> Vec<Limit> {
        let seats = schema.map_or_else(LevelSeats::default, |schema| {
            tables.flow_schema(schema.number).seats
        });
        let place = pipeline::asks(&tables.config, plan, seats, Start::Datagram).place();
        let exempt = plan.has(plan_flag::EXEMPT);
        let limit = |whose, index, in_use| {
            let Seats { limit, flags, .. } = tables.seats(index);
            let is_limit = limit != 0 || flags & limit_flag::STRICT != 0;
            Limit {
                whose,
                most: is_limit.then_some(limit),
                is_audited: is_limit && flags & limit_flag::AUDIT != 0,
                in_use,
                exempt,
                width: 1,
            }
        };
        let of_service = (place.service() != 0).then(|| {
            let whose = Whose::Service(service.to_owned());
            limit(whose, place.service(), self.of(Some(service)))
        });
        let of_level = schema.filter(|_| place.level() != 0).map(|schema| {
            let in_use = self.of_level(&schema.level).map(|level| level.in_use);
            let whose = Whose::Level(schema.level.clone());
            Limit {
                width: place.width(),
                ..limit(whose, place.shared(), in_use)
            }
        });
        let of_node = (place.has_node()).then(|| limit(Whose::Node, NODE, self.of(None)));
        let limits = of_service.into_iter().chain(of_level).chain(of_node);
        limits.collect()
    }
}
