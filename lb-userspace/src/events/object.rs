//! Events as API objects.

use std::{hash::Hasher as _, time::SystemTime};

use serde_json::{Value, json};
use siphasher::sip::SipHasher13;

use super::{EventType, Notice, Scope, series::Going};

/// `reportingController`: the component, which is the same on every node.
const CONTROLLER: &str = "node-lb";
/// The API server's limit for `note`, in bytes.
const MAX_NOTE: usize = 1024;
/// The API server's limit for `reportingInstance`, in bytes.
const MAX_INSTANCE: usize = 128;

/// Name for the Event of a notice: the same on each node that has the same to say, so that only the
/// first one's is taken.
pub fn name(notice: &Notice) -> String {
    let mut hasher = SipHasher13::new();
    hasher.write(notice.uid.unwrap_or_default().as_bytes());
    hasher.write(notice.reason.as_bytes());
    hasher.write(notice.note.as_bytes());
    format!("{}.{:016x}", notice.service.name, hasher.finish())
}

/// The Event of a notice.
pub fn event(notice: &Notice, going: &Going, node: &str) -> Value {
    let service = &notice.service;
    let mut event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name(notice), "namespace": *service.namespace},
        "eventTime": micro_time(going.first),
        "reportingController": CONTROLLER,
        "reportingInstance": shortened(format!("{CONTROLLER}-{node}"), MAX_INSTANCE),
        "action": notice.action,
        "reason": notice.reason,
        "type": match notice.event_type {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        },
        "note": note(notice, node),
        "regarding": {
            "apiVersion": "v1",
            "kind": "Service",
            "namespace": *service.namespace,
            "name": service.name,
        },
    });
    if let Some(uid) = notice.uid {
        event["regarding"]["uid"] = uid.to_string().into();
    }
    if going.count > 1 {
        event["series"] = series(going);
    }
    event
}

/// A merge patch with what a repetition changes.
pub fn patch(going: &Going) -> Value {
    json!({ "series": series(going) })
}

fn series(going: &Going) -> Value {
    json!({"count": going.count, "lastObservedTime": micro_time(going.last)})
}

fn note(notice: &Notice, node: &str) -> String {
    let note = match notice.scope {
        // The first to tell is hardly the only one: a Service's cause is often the same everywhere.
        Scope::Node => format!("on {node}, perhaps on others: {}", notice.note),
        Scope::Cluster => notice.note.clone(),
    };
    shortened(note, MAX_NOTE)
}

fn micro_time(time: SystemTime) -> String {
    humantime::format_rfc3339_micros(time).to_string()
}

fn shortened(mut text: String, limit: usize) -> String {
    text.truncate(text.floor_char_boundary(limit));
    text
}
