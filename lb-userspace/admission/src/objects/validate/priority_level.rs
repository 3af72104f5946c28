//! Rules for priority levels.

use super::{Path, Valid, fixed, number, object_name, outcome};
use crate::{
    level::{
        self, CATCH_ALL, ConnectionLimits, EXEMPT, Level, LevelKind, LimitResponse, Limited,
        Queuing,
    },
    objects::{
        defaults,
        finding::{Finding, Findings},
        priority_level::{
            ConnectionsSpec, ExemptSpec, LimitResponseSpec, LimitedSpec, PriorityLevelSpec,
            QueuingSpec,
        },
    },
    shuffle::{MAX_HASH_BITS, required_entropy_bits},
};

/// The most queues of a level, as in objects.
pub const MAX_QUEUES: i32 = level::MAX_QUEUES as i32;
const MAX_QUEUE_LENGTH: i32 = level::MAX_QUEUE_LENGTH as i32;

const TYPES: [&str; 2] = ["Exempt", "Limited"];
const RESPONSES: [&str; 2] = ["Queue", "Reject"];
const MODES: [&str; 2] = ["Audit", "Enforce"];

/// The level that an object describes.
///
/// # Errors
/// Everything that is wrong with the object.
pub fn level(name: &str, spec: &PriorityLevelSpec) -> Result<Valid<Level>, Vec<Finding>> {
    let mut findings = Findings::default();
    object_name(name, &mut findings);
    let value = of_type(name, spec, &mut findings);
    if name == CATCH_ALL {
        fixed(name, &value, &Level::catch_all(), &mut findings);
    }
    outcome(value, findings)
}

fn of_type(name: &str, spec: &PriorityLevelSpec, findings: &mut Findings) -> Level {
    let path = Path::spec();
    let is_exempt = spec.type_ == "Exempt";
    if !TYPES.contains(&spec.type_.as_str()) {
        findings.unsupported(&path.field("type"), &spec.type_, &TYPES);
    } else if is_exempt != (name == EXEMPT) {
        let message = format!("must be Exempt if and only if the name is {EXEMPT:?}");
        findings.error(&path.field("type"), message);
    }

    let (limited_path, exempt_path) = (path.field("limited"), path.field("exempt"));
    let mut level = Level {
        name: name.to_owned(),
        ..Level::exempt()
    };
    match &spec.limited {
        Some(_) if is_exempt => findings.error(&limited_path, "must not be given for type Exempt"),
        Some(spec) => limited(&limited_path, spec, &mut level, findings),
        None if is_exempt => {}
        None => findings.error(&limited_path, "is required for type Limited"),
    }
    match &spec.exempt {
        Some(spec) if is_exempt => exempt(&exempt_path, spec, &mut level, findings),
        Some(_) => findings.error(&exempt_path, "must not be given for type Limited"),
        // APF would not use the object, although its documentation promises the defaults.
        None => {}
    }
    level
}

fn exempt(path: &Path, spec: &ExemptSpec, level: &mut Level, findings: &mut Findings) {
    let shares = spec.nominal_concurrency_shares;
    level.shares = shares_of(path, shares.unwrap_or(defaults::EXEMPT_SHARES), findings);
    level.lendable_percent = lendable_percent(path, spec.lendable_percent, findings);
}

fn limited(path: &Path, spec: &LimitedSpec, level: &mut Level, findings: &mut Findings) {
    let shares = spec.nominal_concurrency_shares;
    level.shares = shares_of(path, shares.unwrap_or(defaults::SHARES), findings);
    level.lendable_percent = lendable_percent(path, spec.lendable_percent, findings);
    let borrowing = path.field("borrowingLimitPercent");
    level.kind = LevelKind::Limited(Limited {
        borrowing_limit_percent: spec
            .borrowing_limit_percent
            .map(|percent| number(&borrowing, percent, 0..=i32::MAX, findings)),
        response: response(&path.field("limitResponse"), &spec.limit_response, findings),
        connections: spec
            .connections
            .as_ref()
            .map_or_else(ConnectionLimits::default, |spec| {
                connections(&path.field("connections"), spec, findings)
            }),
        audited: audited(path, spec, findings),
    });
}

fn audited(path: &Path, spec: &LimitedSpec, findings: &mut Findings) -> bool {
    let mode = spec.mode.as_deref().unwrap_or("Enforce");
    if !MODES.contains(&mode) {
        findings.unsupported(&path.field("mode"), mode, &MODES);
    }
    mode == "Audit"
}

fn shares_of(path: &Path, shares: i32, findings: &mut Findings) -> u32 {
    let path = path.field("nominalConcurrencyShares");
    number(&path, shares, 0..=i32::MAX, findings)
}

fn lendable_percent(path: &Path, percent: Option<i32>, findings: &mut Findings) -> u32 {
    let path = path.field("lendablePercent");
    number(
        &path,
        percent.unwrap_or(defaults::LENDABLE_PERCENT),
        0..=100,
        findings,
    )
}

fn response(path: &Path, spec: &LimitResponseSpec, findings: &mut Findings) -> LimitResponse {
    let queuing_path = path.field("queuing");
    match (spec.type_.as_str(), &spec.queuing) {
        ("Queue", Some(spec)) => LimitResponse::Queue(queuing(&queuing_path, spec, findings)),
        ("Queue", None) => {
            findings.error(&queuing_path, "is required for type Queue");
            LimitResponse::Reject
        }
        ("Reject", Some(_)) => {
            findings.error(&queuing_path, "must not be given for type Reject");
            LimitResponse::Reject
        }
        ("Reject", None) => LimitResponse::Reject,
        (other, _) => {
            findings.unsupported(&path.field("type"), other, &RESPONSES);
            LimitResponse::Reject
        }
    }
}

fn queuing(path: &Path, spec: &QueuingSpec, findings: &mut Findings) -> Queuing {
    let queues = number(&path.field("queues"), spec.queues, 1..=MAX_QUEUES, findings);
    let length_path = path.field("queueLengthLimit");
    Queuing {
        queues,
        hand_size: hand_size(&path.field("handSize"), spec, findings),
        queue_length_limit: number(
            &length_path,
            spec.queue_length_limit,
            1..=MAX_QUEUE_LENGTH,
            findings,
        ),
    }
}

/// Reports only the first of several errors of a hand size.
fn hand_size(path: &Path, spec: &QueuingSpec, findings: &mut Findings) -> u32 {
    let QueuingSpec {
        queues, hand_size, ..
    } = *spec;
    if hand_size < 1 {
        findings.error(path, format!("{hand_size} must be positive"));
    } else if hand_size > queues {
        findings.error(
            path,
            format!("{hand_size} must not be greater than queues, {queues}"),
        );
    } else {
        let bits = required_entropy_bits(queues, hand_size);
        if bits > MAX_HASH_BITS {
            findings.error(
                path,
                format!(
                    "{hand_size} of {queues} queues take {bits} bits of a flow's hash, \
                     and must take no more than {MAX_HASH_BITS}"
                ),
            );
        }
    }
    u32::try_from(hand_size).unwrap_or_default()
}

fn connections(path: &Path, spec: &ConnectionsSpec, findings: &mut Findings) -> ConnectionLimits {
    let mut positive = |name: &str, value: Option<i32>| {
        value.map(|value| number(&path.field(name), value, 1..=i32::MAX, findings))
    };
    let default = ConnectionLimits::default();
    ConnectionLimits {
        max_connections_per_flow: positive("maxConnectionsPerFlow", spec.max_connections_per_flow),
        max_half_open_seats: positive("maxHalfOpenSeats", spec.max_half_open_seats),
        first_seat_reserve_percent: match spec.first_seat_reserve_percent {
            None => default.first_seat_reserve_percent,
            Some(percent) => number(
                &path.field("firstSeatReservePercent"),
                percent,
                0..=50,
                findings,
            ),
        },
    }
}
