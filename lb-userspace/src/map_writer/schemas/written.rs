//! What a configuration says in the elements of its levels and flow schemas. The rest of them is for programs, and for
//! whoever looks after those who wait.

use std::{collections::BTreeMap, mem::offset_of};

use lb_common::{
    abi::FlowSchema,
    flow::{Seats, party::PartyRule, queue::LevelQueues},
};
use lb_datapath::maps::Maps;

use crate::map_writer::{
    owners::owner,
    verify::{Findings, wrong},
};

/// By number, beside the name of each.
#[derive(Debug, Default)]
pub struct Written {
    levels: BTreeMap<u32, (String, Level)>,
    schemas: BTreeMap<u32, (String, FlowSchema)>,
}

/// Of a priority level. Its limit is not here, because it is set anew all the time.
#[derive(Debug, PartialEq, Eq)]
struct Level {
    flags: u32,
    owner: u64,
    queues: LevelQueues,
}

impl Level {
    fn read(number: u32, maps: &Maps) -> Self {
        let Seats { flags, owner, .. } = maps.levels.read(number);
        Self {
            flags,
            owner,
            queues: LevelQueues {
                waiting: 0,
                until: 0,
                refused: 0,
                kept: 0,
                overrun: 0,
                ..maps.level_queues.read(number)
            },
        }
    }

    fn write(&self, number: u32, maps: &Maps) {
        let publish = |offset, value| maps.level_queues.publish(number, offset, value);
        publish(offset_of!(LevelQueues, first), self.queues.first);
        publish(offset_of!(LevelQueues, hand), self.queues.hand);
        publish(offset_of!(LevelQueues, length), self.queues.length);
        publish(offset_of!(LevelQueues, number), self.queues.number);
        maps.levels
            .write_word(number, offset_of!(Seats, owner), self.owner);
        maps.levels
            .publish(number, offset_of!(Seats, flags), self.flags);
    }
}

/// What of an element of `FLOW_SCHEMAS` its schema says: all but what is counted there.
fn said(element: FlowSchema) -> FlowSchema {
    FlowSchema {
        admitted: 0,
        over: 0,
        refused: 0,
        refused_parties: 0,
        uncounted: 0,
        expired: <_>::default(),
        ..element
    }
}

fn write_schema(number: u32, element: &FlowSchema, maps: &Maps) {
    let schemas = &maps.flow_schemas;
    schemas.write_word(number, offset_of!(FlowSchema, owner), element.owner);
    let publish = |offset, value| schemas.publish(number, offset, value);
    publish(offset_of!(FlowSchema, answers), element.answers);
    publish(offset_of!(FlowSchema, seats), element.seats.to_u32());
    let PartyRule { by, most } = element.rule;
    publish(offset_of!(FlowSchema, rule.by), by);
    publish(offset_of!(FlowSchema, rule.most), most);
    publish(offset_of!(FlowSchema, is_audited), element.is_audited);
    for (ticks, place) in element.deadlines.into_iter().zip(0..) {
        publish(offset_of!(FlowSchema, deadlines) + 4 * place, ticks);
    }
}

impl Written {
    /// Writes what a schema says in the element of this number, be it the schema's or one of its tenants'.
    pub fn add_schema(&mut self, number: u32, name: String, element: FlowSchema, maps: &Maps) {
        write_schema(number, &element, maps);
        self.schemas.insert(number, (name, element));
    }

    /// Notes what has been written of a level: its flags, and where its queues are.
    pub fn add_level(&mut self, number: u32, name: String, flags: u32, maps: &Maps) {
        let level = Level {
            flags,
            owner: owner(&name),
            ..Level::read(number, maps)
        };
        self.levels.insert(number, (name, level));
    }

    /// Compares all levels with what was written, and writes it again where it differs.
    pub fn verify_levels(&self, maps: &Maps, findings: &mut Findings) {
        for (number, (name, written)) in &self.levels {
            let found = Level::read(*number, maps);
            if found != *written {
                written.write(*number, maps);
            }
            let own = |level: &Level| (level.flags, level.owner);
            let level = wrong(Some(&own(&found)), Some(&own(written)));
            let queues = wrong(Some(&found.queues), Some(&written.queues));
            let whose = || format!("{number} of PriorityLevel {name}");
            findings.compared("LEVELS", level, whose);
            findings.compared("LEVEL_QUEUES", queues, whose);
        }
    }

    /// Does the same with so many flow schemas from this number on. Returns the number of the next one, if there are
    /// more.
    pub fn verify_schemas(
        &self,
        from: u32,
        most: usize,
        maps: &Maps,
        findings: &mut Findings,
    ) -> Option<u32> {
        let mut schemas = self.schemas.range(from..);
        for (number, (name, written)) in schemas.by_ref().take(most) {
            let found = said(maps.flow_schemas.read(*number));
            let wrong = wrong(Some(&found), Some(written));
            if wrong.is_some() {
                write_schema(*number, written, maps);
            }
            findings.compared("FLOW_SCHEMAS", wrong, || {
                format!("{number} of FlowSchema {name}")
            });
        }
        schemas.next().map(|(number, _)| *number)
    }
}
