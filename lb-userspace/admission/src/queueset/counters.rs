//! What has happened at a level, and what is the case, in sum and for each flow schema.

use serde::Serialize;

use super::arrival::{Arrival, Rejection};

/// Schemas are counted apart up to this number, and others in the level's sums alone. There are no
/// more schemas in force.
const MAX_SCHEMAS: usize = 4096;

/// Connections without a seat, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Rejections {
    pub queue_full: u64,
    pub concurrency_limit: u64,
    pub flow_limit: u64,
    pub time_out: u64,
}

/// What has happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub dispatched: u64,
    pub rejections: Rejections,
    /// Connections that were admitted, and then could not be let in.
    pub aborted: u64,
    /// Attempts to dispatch that failed although there were free seats.
    pub no_accommodation: u64,
    pub epoch_advances: u64,
}

/// The connections of one flow schema at a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchemaCounters {
    pub waiting: u32,
    /// Seats that those wait for.
    pub waiting_seats: u64,
    /// Connections that are not over.
    pub executing: u32,
    /// Seats held, lingering ones included.
    pub executing_seats: u64,
    /// What has happened since the start.
    pub dispatched: u64,
    pub rejections: Rejections,
    pub aborted: u64,
}

/// The counters of a level.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub level: Counters,
    /// By number of the schema.
    pub schemas: Vec<SchemaCounters>,
}

impl Rejections {
    /// Counts one.
    pub fn add(&mut self, rejection: Rejection) {
        *match rejection {
            Rejection::QueueFull => &mut self.queue_full,
            Rejection::ConcurrencyLimit => &mut self.concurrency_limit,
            Rejection::FlowLimit => &mut self.flow_limit,
            Rejection::TimeOut => &mut self.time_out,
        } += 1;
    }

    /// All of them.
    pub fn all(&self) -> u64 {
        let Self {
            queue_full,
            concurrency_limit,
            flow_limit,
            time_out,
        } = self;
        queue_full + concurrency_limit + flow_limit + time_out
    }
}

impl Counts {
    /// The counters of an arrival's schema.
    fn schema(&mut self, arrival: &Arrival) -> Option<&mut SchemaCounters> {
        let number = arrival.schema as usize;
        if number >= self.schemas.len() {
            if number >= MAX_SCHEMAS {
                return None;
            }
            self.schemas.resize(number + 1, SchemaCounters::default());
        }
        self.schemas.get_mut(number)
    }

    pub fn wait(&mut self, arrival: &Arrival) {
        if let Some(schema) = self.schema(arrival) {
            schema.waiting += 1;
            schema.waiting_seats += u64::from(arrival.width());
        }
    }

    /// A connection no longer waits, for whatever reason.
    pub fn wait_no_more(&mut self, arrival: &Arrival) {
        if let Some(schema) = self.schema(arrival) {
            schema.waiting = schema.waiting.saturating_sub(1);
            schema.waiting_seats -= u64::from(arrival.width()).min(schema.waiting_seats);
        }
    }

    pub fn reject(&mut self, arrival: &Arrival, rejection: Rejection) {
        self.level.rejections.add(rejection);
        if let Some(schema) = self.schema(arrival) {
            schema.rejections.add(rejection);
        }
    }

    pub fn execute(&mut self, arrival: &Arrival) {
        self.level.dispatched += 1;
        if let Some(schema) = self.schema(arrival) {
            schema.dispatched += 1;
            schema.executing += 1;
            schema.executing_seats += u64::from(arrival.width());
        }
    }

    /// A connection is over. Its seats may linger.
    pub fn end(&mut self, arrival: &Arrival) {
        if let Some(schema) = self.schema(arrival) {
            schema.executing = schema.executing.saturating_sub(1);
        }
    }

    pub fn release(&mut self, arrival: &Arrival) {
        if let Some(schema) = self.schema(arrival) {
            schema.executing_seats -= u64::from(arrival.width()).min(schema.executing_seats);
        }
    }

    pub fn abort(&mut self, arrival: &Arrival) {
        self.level.aborted += 1;
        if let Some(schema) = self.schema(arrival) {
            schema.aborted += 1;
        }
    }
}
