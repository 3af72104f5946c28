//! What the status of PriorityLevels and FlowSchemas is to say, and when this node writes it.
//!
//! All agents of a cluster find the same about the same objects, and one has to write it. So each waits
//! for a random time, looks again, and finds that another one has written it, or does so. The
//! API server refuses a second writer, whose object is not the latest any more.
//!
//! Only what does not depend on the node is written. Where agents of several versions disagree, each of them
//! writes the same about an object once in [`AGAIN`].

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use lb_admission::{
    configuration::Configuration,
    objects::{
        Kind, ObjectRef,
        status::{ACCEPTED, Condition, DANGLING, StatusCondition},
    },
};
use lb_objects::{AsWritten, Standing};
use serde_json::{Value, json};

/// Agents write from some moment within this time.
const SPREAD: Duration = Duration::from_secs(10);
/// How long another agent's word about an object stands against this one's.
const AGAIN: Duration = Duration::from_secs(600);
/// What a node may not find otherwise than others: the number of its seats does not matter for these.
const WRITTEN: [&str; 2] = [ACCEPTED, DANGLING];
/// So [`Configuration::conditions`] is asked for a node with any number.
const ANY_SEATS: u32 = 1;

/// A status to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusWrite {
    pub reference: lb_objects::ObjectRef,
    /// A merge patch of the object's `status`.
    pub patch: Value,
}

/// What this node intends to write about objects whose status says something else.
#[derive(Debug, Default)]
pub struct Conditions {
    intended: HashMap<ObjectRef, Intended>,
}

#[derive(Debug)]
struct Intended {
    /// The object's generation, and the conditions in short.
    what: (i64, Vec<(&'static str, bool, &'static str)>),
    at: Instant,
    /// Whether the status does not say so yet.
    is_missing: bool,
}

impl Conditions {
    /// What is to be written now, given these objects, which `configuration` has been read from.
    pub fn due(
        &mut self,
        configuration: &Configuration,
        objects: &[Arc<AsWritten>],
        now: Instant,
    ) -> Vec<StatusWrite> {
        let mut wanted = configuration.conditions(ANY_SEATS);
        for conditions in wanted.values_mut() {
            conditions.retain(|condition| WRITTEN.contains(&condition.type_));
        }
        self.intended
            .retain(|object, _| wanted.contains_key(object));
        let writes = objects.iter().filter_map(|object| {
            let reference = reference(object)?;
            let wanted = wanted.get(&reference)?;
            let is_due = self.is_due(reference, wanted, &object.standing, now);
            is_due.then(|| StatusWrite {
                reference: object.reference.clone(),
                patch: patch(wanted, &object.standing, SystemTime::now()),
            })
        });
        writes.collect()
    }

    /// When to look again, if objects do not change before.
    pub fn next(&self) -> Option<Instant> {
        let missing = self.intended.values().filter(|one| one.is_missing);
        missing.map(|one| one.at).min()
    }

    /// Whether this agent is to write these conditions of an object at this moment.
    fn is_due(
        &mut self,
        reference: ObjectRef,
        wanted: &[Condition],
        standing: &Standing,
        now: Instant,
    ) -> bool {
        let is_said = |wanted| says(standing, wanted);
        let is_missing = !wanted.iter().all(is_said);
        if !is_missing {
            if let Some(intended) = self.intended.get_mut(&reference) {
                intended.is_missing = false;
            }
            return false;
        }
        let in_short = wanted.iter();
        let in_short = in_short.map(|wanted| (wanted.type_, wanted.status, wanted.reason));
        let what = (standing.generation, in_short.collect::<Vec<_>>());
        match self.intended.get_mut(&reference) {
            Some(intended) if intended.what == what => {
                let is_due = now >= intended.at;
                intended.is_missing = true;
                if is_due {
                    intended.at = now + AGAIN;
                }
                is_due
            }
            _ => {
                let at = now + SPREAD.mul_f64(fastrand::f64());
                let intended = Intended {
                    what,
                    at,
                    is_missing,
                };
                self.intended.insert(reference, intended);
                false
            }
        }
    }
}

/// What the configuration calls an object.
fn reference(object: &AsWritten) -> Option<ObjectRef> {
    let kind = match object.reference.kind {
        lb_objects::Kind::PriorityLevel => Kind::PriorityLevel,
        lb_objects::Kind::FlowSchema => Kind::FlowSchema,
        _ => return None,
    };
    let name = object.reference.name.name.to_string();
    Some(ObjectRef { kind, name })
}

/// Whether an object's status says this of its present generation.
fn says(standing: &Standing, wanted: &Condition) -> bool {
    let mut known = standing.conditions.iter().filter_map(read);
    known.any(|known| {
        known.type_ == wanted.type_
            && known.status == text(wanted.status)
            && known.reason == wanted.reason
            && known.observed_generation == standing.generation
    })
}

/// The status with these conditions; others in it stay as they are.
fn patch(wanted: &[Condition], standing: &Standing, now: SystemTime) -> Value {
    let is_wanted = |known: &StatusCondition| wanted.iter().any(|new| new.type_ == known.type_);
    let others = standing.conditions.iter();
    let others = others.filter(|other| !read(other).as_ref().is_some_and(is_wanted));
    let ours = wanted.iter().map(|wanted| {
        let known = standing.conditions.iter().filter_map(read);
        let mut same = known
            .filter(|known| known.type_ == wanted.type_ && known.status == text(wanted.status));
        let since = same.next().map(|known| known.last_transition_time);
        json!(StatusCondition {
            type_: wanted.type_.to_owned(),
            status: text(wanted.status).to_owned(),
            observed_generation: standing.generation,
            last_transition_time: since
                .unwrap_or_else(|| humantime::format_rfc3339_seconds(now).to_string()),
            reason: wanted.reason.to_owned(),
            message: wanted.message.clone(),
        })
    });
    json!({
        "metadata": {"resourceVersion": standing.resource_version},
        "status": {"conditions": others.cloned().chain(ours).collect::<Vec<_>>()},
    })
}

fn read(condition: &Value) -> Option<StatusCondition> {
    serde_json::from_value(condition.clone()).ok()
}

fn text(holds: bool) -> &'static str {
    if holds { "True" } else { "False" }
}

#[cfg(test)]
mod tests {
    use lb_objects::{Kind, ObjectName};

    use super::*;
    use crate::admission::objects::Objects;

    /// A flow schema of a level that does not exist, as it came in this version.
    fn schema(generation: i64, precedence: u32, conditions: Vec<Value>) -> Arc<AsWritten> {
        Arc::new(AsWritten {
            reference: lb_objects::ObjectRef {
                kind: Kind::FlowSchema,
                name: ObjectName::new("", "web"),
            },
            json: json!({
                "apiVersion": "node-lb.io/v1alpha1",
                "kind": "FlowSchema",
                "metadata": {"name": "web"},
                "spec": {
                    "priorityLevelConfiguration": {"name": "web"},
                    "matchingPrecedence": precedence,
                },
            }),
            standing: Standing {
                generation,
                resource_version: format!("v{generation}"),
                conditions,
            },
        })
    }

    fn due(
        conditions: &mut Conditions,
        read: &mut Objects,
        object: &Arc<AsWritten>,
        now: Instant,
    ) -> Option<Value> {
        let objects = [object.clone()];
        read.read_from_api(&objects);
        let mut writes = conditions.due(&read.configuration, &objects, now);
        assert!(writes.len() <= 1);
        writes.pop().map(|write| write.patch)
    }

    #[test]
    fn an_objects_status_is_written_once_by_whoever_comes_first() {
        let (mut conditions, mut read) = (Conditions::default(), Objects::default());
        let foreign = json!({"type": "Foreign", "status": "True", "lastTransitionTime": "then"});
        let object = schema(1, 10, vec![foreign.clone()]);
        let start = Instant::now();
        assert_eq!(due(&mut conditions, &mut read, &object, start), None);
        let later = start + SPREAD;
        let patch = due(&mut conditions, &mut read, &object, later).unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "v1");
        let written = patch["status"]["conditions"].as_array().unwrap().clone();
        let short = |written: &[Value]| -> Vec<String> {
            let short = written.iter().map(|condition| {
                let text = |key| condition[key].as_str().unwrap_or_default();
                format!("{} {} {}", text("type"), text("status"), text("reason"))
            });
            short.collect()
        };
        let expected = [
            "Foreign True ",
            "Accepted True Valid",
            "Dangling True NotFound",
        ];
        assert_eq!(short(&written), expected);
        assert_eq!(
            (&written[0], &written[2]["observedGeneration"]),
            (&foreign, &json!(1))
        );

        // It has not arrived: another agent says otherwise, or the server refused.
        assert_eq!(due(&mut conditions, &mut read, &object, later), None);
        assert!(due(&mut conditions, &mut read, &object, later + AGAIN).is_some());
        // It has.
        let object = schema(1, 10, written.clone());
        assert_eq!(
            due(&mut conditions, &mut read, &object, later + 2 * AGAIN),
            None
        );

        // The next generation is invalid. What has not changed keeps its time.
        let mut aged = written;
        aged[2]["lastTransitionTime"] = json!("2026-01-01T00:00:00Z");
        let object = schema(2, 99_999, aged);
        assert_eq!(due(&mut conditions, &mut read, &object, start), None);
        let patch = due(&mut conditions, &mut read, &object, later).unwrap();
        let written = patch["status"]["conditions"].as_array().unwrap();
        let expected = [
            "Foreign True ",
            "Accepted False Invalid",
            "Dangling True NotFound",
        ];
        assert_eq!(short(written), expected);
        assert_eq!(written[2]["lastTransitionTime"], "2026-01-01T00:00:00Z");
        let message = written[1]["message"].as_str().unwrap();
        assert!(message.contains("spec.matchingPrecedence"), "{message}");
    }
}
