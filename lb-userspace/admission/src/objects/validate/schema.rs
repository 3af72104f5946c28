//! Rules for flow schemas.

use std::time::Duration;

use lb_objects::{go_duration::Malformed, quoted};

use super::{Path, Valid, each, fixed, number, object_name, outcome, rule::rule};
use crate::{
    deadlines::{self, Bounds, CONNECT_PATIENCE, Deadlines, HALF_CLOSE, HANDSHAKE, IDLE, LIFETIME},
    level::{CATCH_ALL, EXEMPT},
    objects::{
        finding::{Finding, Findings},
        flow_schema::{DeadlinesSpec, DistinguisherMethodSpec, FlowSchemaSpec, RejectAnswerSpec},
    },
    schema::{
        DistinguisherMethod, EXEMPT_PRECEDENCE, LAST_PRECEDENCE, PrefixLengths, RejectAnswer,
        RejectAnswers, Schema,
    },
};

/// The supported distinguisher methods.
pub const DISTINGUISHERS: [&str; 6] = [
    "BySourceIP",
    "BySourcePrefix",
    "BySourceNamespace",
    "BySourceServiceAccount",
    "BySourceNode",
    "ByDestinationService",
];
/// The supported answers to a refused connection.
pub const ANSWERS: [&str; 3] = ["RST", "ICMP", "Drop"];

const MAX_WIDTH: i32 = 10;

/// The schema that an object describes. The priority level it names may be missing.
///
/// # Errors
/// Everything that is wrong with the object.
pub fn schema(name: &str, spec: &FlowSchemaSpec) -> Result<Valid<Schema>, Vec<Finding>> {
    let mut findings = Findings::default();
    object_name(name, &mut findings);
    let path = Path::spec();
    let precedence = precedence(name, &path.field("matchingPrecedence"), spec, &mut findings);
    level_name(&path, spec, &mut findings);

    let deadlines_path = path.field("deadlines");
    let value = Schema {
        distinguisher: spec.distinguisher_method.as_ref().and_then(|method| {
            distinguisher(&path.field("distinguisherMethod"), method, &mut findings)
        }),
        rules: each(&path.field("rules"), &spec.rules, rule, &mut findings),
        max_connections_per_flow: spec.max_connections_per_flow.map(|most| {
            let path = path.field("maxConnectionsPerFlow");
            number(&path, most, 1..=i32::MAX, &mut findings)
        }),
        width: number(
            &path.field("seats"),
            spec.seats,
            1..=MAX_WIDTH,
            &mut findings,
        ),
        linger: duration(
            &path.field("linger"),
            deadlines::LINGER,
            spec.linger.as_deref(),
            &mut findings,
        ),
        deadlines: deadlines(&deadlines_path, spec.deadlines.as_ref(), &mut findings),
        long_running: spec.long_running,
        answers: spec
            .reject_answer
            .as_ref()
            .map_or_else(RejectAnswers::default, |spec| {
                answers(&path.field("rejectAnswer"), spec, &mut findings)
            }),
        ..Schema::new(name, precedence, &spec.priority_level_configuration.name)
    };
    let Deadlines {
        client_idle,
        server_idle,
        lifetime,
        ..
    } = value.deadlines;
    if spec.max_connections_per_flow.is_some() && value.level == EXEMPT {
        let message = format!("must not be set at {EXEMPT}, which limits nothing");
        findings.error(&path.field("maxConnectionsPerFlow"), message);
    }
    if spec.long_running && (client_idle.or(server_idle).or(lifetime)).is_some() {
        let message = "must not be set beside idle deadlines or a lifetime";
        findings.error(&path.field("longRunning"), message);
    }
    match name {
        EXEMPT => fixed(name, &value, &Schema::exempt(), &mut findings),
        CATCH_ALL => fixed(name, &value, &Schema::catch_all(), &mut findings),
        _ => {}
    }
    outcome(value, findings)
}

fn precedence(name: &str, path: &Path, spec: &FlowSchemaSpec, findings: &mut Findings) -> u32 {
    // Both are small positive constants, so the casts are exact.
    let (first, last) = (EXEMPT_PRECEDENCE as i32, LAST_PRECEDENCE as i32);
    let precedence = number(path, spec.matching_precedence, first..=last, findings);
    if precedence == EXEMPT_PRECEDENCE && name != EXEMPT {
        findings.error(
            path,
            format!("{EXEMPT_PRECEDENCE} is for the schema {EXEMPT:?} alone"),
        );
    }
    precedence
}

fn level_name(path: &Path, spec: &FlowSchemaSpec, findings: &mut Findings) {
    let path = path.field("priorityLevelConfiguration").field("name");
    match spec.priority_level_configuration.name.as_str() {
        "" => findings.error(&path, "is required: the name of a PriorityLevel"),
        name => {
            findings.check(super::subdomain(&path, name));
        }
    }
}

fn distinguisher(
    path: &Path,
    spec: &DistinguisherMethodSpec,
    findings: &mut Findings,
) -> Option<DistinguisherMethod> {
    let prefix_path = path.field("sourcePrefix");
    if spec.source_prefix.is_some() && spec.type_ != "BySourcePrefix" {
        findings.error(
            &prefix_path,
            "must not be given except for type BySourcePrefix",
        );
    }
    Some(match spec.type_.as_str() {
        "BySourceIP" => DistinguisherMethod::SourceIp,
        "BySourcePrefix" => {
            let mut lengths = PrefixLengths::default();
            if let Some(spec) = &spec.source_prefix {
                let mut set = |name, value: Option<i32>, range, length: &mut u8| {
                    if let Some(value) = value {
                        let value = number(&prefix_path.field(name), value, range, findings);
                        *length = u8::try_from(value).unwrap_or_default();
                    }
                };
                set("ipv4", spec.ipv4, 24..=32, &mut lengths.ipv4);
                set("ipv6", spec.ipv6, 56..=64, &mut lengths.ipv6);
            }
            DistinguisherMethod::SourcePrefix(lengths)
        }
        "BySourceNamespace" => DistinguisherMethod::SourceNamespace,
        "BySourceServiceAccount" => DistinguisherMethod::SourceServiceAccount,
        "BySourceNode" => DistinguisherMethod::SourceNode,
        "ByDestinationService" => DistinguisherMethod::DestinationService,
        other => {
            findings.unsupported(&path.field("type"), other, &DISTINGUISHERS);
            return None;
        }
    })
}

fn deadlines(path: &Path, spec: Option<&DeadlinesSpec>, findings: &mut Findings) -> Deadlines {
    let Some(spec) = spec else {
        return Deadlines::default();
    };
    let at = |name: &str| path.field(name);
    Deadlines {
        connect_patience: duration(
            &at("connectPatience"),
            CONNECT_PATIENCE,
            spec.connect_patience.as_deref(),
            findings,
        ),
        handshake: duration(
            &at("handshake"),
            HANDSHAKE,
            spec.handshake.as_deref(),
            findings,
        ),
        client_idle: duration(
            &at("clientIdle"),
            IDLE,
            spec.client_idle.as_deref(),
            findings,
        ),
        server_idle: duration(
            &at("serverIdle"),
            IDLE,
            spec.server_idle.as_deref(),
            findings,
        ),
        half_close: duration(
            &at("halfClose"),
            HALF_CLOSE,
            spec.half_close.as_deref(),
            findings,
        ),
        lifetime: duration(
            &at("lifetime"),
            LIFETIME,
            spec.lifetime.as_deref(),
            findings,
        ),
    }
}

fn duration<T: Copy + From<Duration>>(
    path: &Path,
    bounds: Bounds<T>,
    text: Option<&str>,
    findings: &mut Findings,
) -> T {
    match bounds.read(text) {
        Ok(reading) => {
            if reading.clamped {
                let max = humantime::format_duration(bounds.max);
                findings.note(path, format!("is taken as {max}, the maximum"));
            }
            reading.value
        }
        Err(Malformed) => {
            let text = quoted(text.unwrap_or_default());
            findings.error(
                path,
                format!("{text} must be a duration like 1h30m or 500ms"),
            );
            bounds.default
        }
    }
}

fn answers(path: &Path, spec: &RejectAnswerSpec, findings: &mut Findings) -> RejectAnswers {
    let default = RejectAnswers::default();
    let mut answer = |name: &str, value: &Option<String>, default| match value.as_deref() {
        None => default,
        Some("RST") => RejectAnswer::Reset,
        Some("ICMP") => RejectAnswer::Icmp,
        Some("Drop") => RejectAnswer::Drop,
        Some(other) => {
            findings.unsupported(&path.field(name), other, &ANSWERS);
            default
        }
    };
    RejectAnswers {
        concurrency_limit: answer(
            "concurrencyLimit",
            &spec.concurrency_limit,
            default.concurrency_limit,
        ),
        queue_full: answer("queueFull", &spec.queue_full, default.queue_full),
        time_out: answer("timeOut", &spec.time_out, default.time_out),
    }
}
