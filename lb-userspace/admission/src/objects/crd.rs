//! The CustomResourceDefinitions of the objects, generated from the same types that read them.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Value, json};

use super::{
    FlowSchemaSpec, GROUP, Kind, PriorityLevelSpec, VERSION, defaults, status::Status,
    validate::MAX_QUEUES,
};
use crate::{level::EXEMPT, schema::EXEMPT_PRECEDENCE, shuffle::MAX_HASH_BITS};

/// How durations are written, as a regular expression.
pub const DURATION_PATTERN: &str = "^$|^[+-]?(0|([0-9]+([.][0-9]+)?(ns|us|\u{b5}s|ms|s|m|h))+)$";

/// Keywords of JSON Schema that structural schemas do not allow, or where they say nothing.
const SURPLUS: [&str; 3] = ["$schema", "nullable", "title"];

/// The definition of one kind; `None` if it is Kubernetes' own.
pub fn definition(kind: Kind) -> Option<Value> {
    Some(match kind {
        Kind::Namespace => return None,
        Kind::PriorityLevel => custom_resource(
            kind,
            "prioritylevels",
            "How many of a node's seats a group of flows gets, and what happens when all are taken.",
            spec_schema::<PriorityLevelSpec>(),
            json!([{
                "rule": format!("(self.spec.type == 'Exempt') == (self.metadata.name == '{EXEMPT}')"),
                "fieldPath": ".spec.type",
                "message": format!("must be Exempt if and only if the name is {EXEMPT}"),
            }]),
            &[
                ("Type", "string", ".spec.type"),
                (
                    "Shares",
                    "integer",
                    ".spec.limited.nominalConcurrencyShares",
                ),
                (
                    "Queues",
                    "integer",
                    ".spec.limited.limitResponse.queuing.queues",
                ),
                (
                    "HandSize",
                    "integer",
                    ".spec.limited.limitResponse.queuing.handSize",
                ),
                (
                    "QueueLengthLimit",
                    "integer",
                    ".spec.limited.limitResponse.queuing.queueLengthLimit",
                ),
                (
                    "Accepted",
                    "string",
                    r#".status.conditions[?(@.type=="Accepted")].status"#,
                ),
            ],
        ),
        Kind::FlowSchema => custom_resource(
            kind,
            "flowschemas",
            "Which connections get which priority level, and how their flows are told apart.",
            spec_schema::<FlowSchemaSpec>(),
            json!([{
                "rule": format!(
                    "!has(self.spec.matchingPrecedence) || self.spec.matchingPrecedence != {EXEMPT_PRECEDENCE} \
                     || self.metadata.name == '{EXEMPT}'"
                ),
                "fieldPath": ".spec.matchingPrecedence",
                "message": format!("{EXEMPT_PRECEDENCE} is for {EXEMPT} alone"),
            }]),
            &[
                (
                    "PriorityLevel",
                    "string",
                    ".spec.priorityLevelConfiguration.name",
                ),
                ("Precedence", "integer", ".spec.matchingPrecedence"),
                ("Distinguisher", "string", ".spec.distinguisherMethod.type"),
                (
                    "Accepted",
                    "string",
                    r#".status.conditions[?(@.type=="Accepted")].status"#,
                ),
                (
                    "Dangling",
                    "string",
                    r#".status.conditions[?(@.type=="Dangling")].status"#,
                ),
            ],
        ),
    })
}

/// The definition of one kind as YAML; `None` if it is Kubernetes' own.
///
/// # Errors
/// If it cannot be written, which happens only without memory.
pub fn yaml(kind: Kind) -> Option<Result<String, serde_saphyr::ser::Error>> {
    definition(kind).map(|definition| serde_saphyr::to_string(&definition))
}

/// CEL rules for a hand of queues. CEL has no logarithm, so they list the largest deck of each hand
/// size.
pub fn hand_size_rules() -> Value {
    let largest: Vec<_> = (1..=15).map(largest_deck).collect();
    let queues = effective("queues", defaults::QUEUES);
    let hand_size = effective("handSize", defaults::HAND_SIZE);
    json!([
        {
            "rule": format!("{hand_size} <= {queues}"),
            "fieldPath": ".handSize",
            "message": "must not be greater than queues",
        },
        {
            "rule": format!("{queues} <= {largest:?}[{hand_size} - 1]"),
            "fieldPath": ".handSize",
            "message": format!("so many of so many queues take more than {MAX_HASH_BITS} bits of a flow's hash"),
        },
    ])
}

/// The largest number of queues that a hand of a size, 1 to 15, can be dealt from.
fn largest_deck(hand_size: u32) -> u32 {
    let fits = |queues: u32| u64::from(queues).saturating_pow(hand_size) <= 1 << MAX_HASH_BITS;
    let (mut fitting, mut too_large) = (1, MAX_QUEUES.unsigned_abs() + 1);
    while too_large - fitting > 1 {
        let middle = fitting.midpoint(too_large);
        match fits(middle) {
            true => fitting = middle,
            false => too_large = middle,
        }
    }
    fitting
}

/// A CEL expression: the field, or its default where it is absent or zero.
fn effective(field: &str, default: i32) -> String {
    format!("(!has(self.{field}) || self.{field} == 0 ? {default} : self.{field})")
}

fn custom_resource(
    kind: Kind,
    plural: &str,
    description: &str,
    spec: Value,
    rules: Value,
    columns: &[(&str, &str, &str)],
) -> Value {
    let column = |(name, type_, path): &(&str, &str, &str)| json!({"name": name, "type": type_, "jsonPath": path});
    let mut columns: Vec<_> = columns.iter().map(column).collect();
    columns.push(json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}));
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.as_str(),
                "listKind": format!("{kind}List"),
                "plural": plural,
                "singular": kind.as_str().to_lowercase(),
                "categories": ["node-lb"],
            },
            "scope": "Cluster",
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "additionalPrinterColumns": columns,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {
                    "description": description,
                    "type": "object",
                    "required": ["spec"],
                    "x-kubernetes-validations": rules,
                    "properties": {
                        "apiVersion": {"type": "string"},
                        "kind": {"type": "string"},
                        "metadata": {"type": "object"},
                        "spec": spec,
                        "status": spec_schema::<Status>(),
                    },
                }},
            }],
        },
    })
}

/// The structural schema of a type.
fn spec_schema<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::openapi3();
    settings.inline_subschemas = true;
    let mut schema = settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value();
    make_structural(&mut schema);
    schema
}

/// Whether a default says no more than that the field may be absent.
fn says_nothing(default: &Value) -> bool {
    match default {
        Value::Null | Value::Object(_) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn make_structural(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.retain(|key, value| {
                // A property may have the name of a keyword; its value is an object then.
                let is_keyword = SURPLUS.contains(&key.as_str()) && !value.is_object();
                let is_surplus = is_keyword || (key == "default" && says_nothing(value));
                !is_surplus
            });
            if let Some(Value::String(text)) = fields.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            fields.values_mut().for_each(make_structural);
        }
        Value::Array(items) => items.iter_mut().for_each(make_structural),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shuffle::required_entropy_bits;

    #[test]
    fn the_listed_decks_are_the_largest_by_the_rule_for_objects() {
        for hand_size in 1..=15_i32 {
            let largest = i32::try_from(largest_deck(hand_size.unsigned_abs())).unwrap();
            assert!(
                required_entropy_bits(largest, hand_size) <= MAX_HASH_BITS,
                "{hand_size}"
            );
            assert!(
                largest == MAX_QUEUES
                    || required_entropy_bits(largest + 1, hand_size) > MAX_HASH_BITS,
                "{hand_size}"
            );
        }
        assert!(required_entropy_bits(16, 16) > MAX_HASH_BITS);
    }
}
