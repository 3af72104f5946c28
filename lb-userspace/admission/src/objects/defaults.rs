//! Default values of fields that an object leaves out. As in APF, zero counts as left out where it
//! makes no sense, and is replaced before the object is validated. Zero shares do make sense.

use super::{FlowSchemaSpec, PriorityLevelSpec, Spec};

/// `nominalConcurrencyShares` of a limited level.
pub const SHARES: i32 = 30;
/// `nominalConcurrencyShares` of the level `exempt`.
pub const EXEMPT_SHARES: i32 = 0;
/// `lendablePercent` of any level.
pub const LENDABLE_PERCENT: i32 = 0;
/// `queues` of a level.
pub const QUEUES: i32 = 64;
/// `handSize` of a level.
pub const HAND_SIZE: i32 = 8;
/// `queueLengthLimit` of a level, in connections.
pub const QUEUE_LENGTH_LIMIT: i32 = 50;
/// `matchingPrecedence` of a flow schema.
pub const MATCHING_PRECEDENCE: i32 = 1000;
/// `seats` of one connection of a flow schema.
pub const SEATS: i32 = 1;

/// Replaces zeros that count as left out.
pub fn fill(spec: &mut Spec) {
    match spec {
        Spec::PriorityLevel(spec) => priority_level(spec),
        Spec::FlowSchema(spec) => flow_schema(spec),
        Spec::Namespace(_) => {}
    }
}

fn priority_level(spec: &mut PriorityLevelSpec) {
    let limited = spec.limited.as_mut();
    if let Some(queuing) = limited.and_then(|limited| limited.limit_response.queuing.as_mut()) {
        replace_zero(&mut queuing.queues, QUEUES);
        replace_zero(&mut queuing.hand_size, HAND_SIZE);
        replace_zero(&mut queuing.queue_length_limit, QUEUE_LENGTH_LIMIT);
    }
}

fn flow_schema(spec: &mut FlowSchemaSpec) {
    replace_zero(&mut spec.matching_precedence, MATCHING_PRECEDENCE);
    replace_zero(&mut spec.seats, SEATS);
}

fn replace_zero(field: &mut i32, default: i32) {
    if *field == 0 {
        *field = default;
    }
}
