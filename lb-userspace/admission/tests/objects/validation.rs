//! Every validation rule of flowcontrol.apiserver.k8s.io/v1, applied to node-lb's objects. Rules
//! about subjects, resources and URLs are tested on the fields in their place: subjects,
//! destinations and addresses.

use lb_admission::objects::{
    FlowSchemaSpec, PriorityLevelSpec, Spec, defaults,
    flow_schema::{DistinguisherMethodSpec, PriorityLevelReference},
    priority_level::{ExemptSpec, LimitResponseSpec, LimitedSpec, QueuingSpec},
    rule::{DestinationSpec, RuleSpec, SubjectSpec},
    validate,
};
use serde_json::{Value, json};

use crate::support::{configuration, fields, objects, vectors};

/// Validates an entry, and returns the fields of the errors.
type Check = fn(&Value) -> Vec<String>;

#[test]
fn every_rule_holds() {
    let vectors = vectors();
    let table = vectors["d_validation"]["table"].as_array().unwrap();
    for entry in table {
        let check: Check = match entry["kind"].as_str().unwrap() {
            "queuing" => queuing,
            "limited" => limited,
            "limitResponse" => limit_response,
            "priorityLevel" => priority_level,
            "flowSchema" => flow_schema,
            "rule" => rule,
            "nonResourceURL" => address,
            other => panic!("unknown kind {other}"),
        };
        let errors = check(&entry["input"]);
        // Zero shares were refused before Kubernetes 1.30; node-lb follows the present v1.
        let accept = match entry["input"].get("apiserver") {
            Some(_) => true,
            None => entry["accept"].as_bool().unwrap() && !exceeds_our_bounds(&entry["input"]),
        };
        assert_eq!(errors.is_empty(), accept, "{entry}: {errors:?}");
        if !accept && let Some(field) = entry["field"].as_str() {
            let field = own_field(field);
            assert!(
                errors.contains(&field),
                "{entry}: {field} is not in {errors:?}"
            );
        }
        if entry["name"].as_str().unwrap().ends_with("two errors") {
            assert_eq!(errors.len(), 2, "{entry}: {errors:?}");
        }
    }
    assert_eq!(table.len(), 57);
}

#[test]
fn a_level_enforces_its_limit_or_audits_it() {
    let level = |mode: Option<&str>| {
        let limited = LimitedSpec {
            limit_response: LimitResponseSpec {
                type_: "Reject".to_owned(),
                ..LimitResponseSpec::default()
            },
            mode: mode.map(str::to_owned),
            ..LimitedSpec::default()
        };
        let spec = PriorityLevelSpec {
            type_: "Limited".to_owned(),
            limited: Some(limited),
            ..PriorityLevelSpec::default()
        };
        validate::level("a", &spec)
    };
    for (mode, audited) in [
        (None, false),
        (Some("Enforce"), false),
        (Some("Audit"), true),
    ] {
        let valid = level(mode).unwrap().value;
        assert_eq!(valid.limited().unwrap().audited, audited, "{mode:?}");
    }
    let errors = level(Some("audit")).unwrap_err();
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].field, "spec.limited.mode");
}

/// The field of node-lb's objects that corresponds to a field of the vectors.
fn own_field(field: &str) -> String {
    match field {
        "subjects" => "spec.rules[0].subjects",
        "rules[i]" => "spec.rules[0].destinations",
        "verbs" => "spec.rules[0].destinations[0].protocols[0]",
        "namespaces" => "spec.rules[0].destinations[0].namespaces",
        "namespaces[0]" => "spec.rules[0].destinations[0].namespaces[0]",
        same => same,
    }
    .to_owned()
}

/// Whether an object is too large for node-lb, which keeps all queues in the kernel's memory.
fn exceeds_our_bounds(input: &Value) -> bool {
    let exceeds = |field, most| int(input, field).is_some_and(|size| size > most);
    exceeds("queues", 4096) || exceeds("queueLengthLimit", 65_536)
}

fn int(value: &Value, field: &str) -> Option<i32> {
    Some(value.get(field)?.as_i64()?.try_into().unwrap())
}

fn level_errors(name: &str, spec: &PriorityLevelSpec) -> Vec<String> {
    match validate::level(name, spec) {
        Ok(_) => Vec::new(),
        Err(errors) => fields(&errors).into_iter().map(str::to_owned).collect(),
    }
}

fn schema_errors(name: &str, spec: &FlowSchemaSpec) -> Vec<String> {
    match validate::schema(name, spec) {
        Ok(_) => Vec::new(),
        Err(errors) => fields(&errors).into_iter().map(str::to_owned).collect(),
    }
}

fn of_limited(limited: LimitedSpec) -> PriorityLevelSpec {
    PriorityLevelSpec {
        type_: "Limited".to_owned(),
        limited: Some(limited),
        exempt: None,
    }
}

fn queuing(input: &Value) -> Vec<String> {
    let spec = of_limited(LimitedSpec {
        limit_response: LimitResponseSpec {
            type_: "Queue".to_owned(),
            queuing: Some(QueuingSpec {
                queues: int(input, "queues").unwrap(),
                hand_size: int(input, "handSize").unwrap(),
                queue_length_limit: int(input, "queueLengthLimit").unwrap(),
            }),
        },
        ..LimitedSpec::default()
    });
    level_errors("level", &spec)
}

fn limited_spec(input: &Value) -> LimitedSpec {
    LimitedSpec {
        nominal_concurrency_shares: int(input, "nominalConcurrencyShares"),
        lendable_percent: int(input, "lendablePercent"),
        borrowing_limit_percent: int(input, "borrowingLimitPercent"),
        limit_response: LimitResponseSpec {
            type_: input["limitResponse"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            queuing: None,
        },
        ..LimitedSpec::default()
    }
}

fn limited(input: &Value) -> Vec<String> {
    level_errors("level", &of_limited(limited_spec(input)))
}

fn limit_response(input: &Value) -> Vec<String> {
    let spec = of_limited(LimitedSpec {
        limit_response: serde_json::from_value(input.clone()).unwrap(),
        ..LimitedSpec::default()
    });
    level_errors("level", &spec)
}

fn priority_level(input: &Value) -> Vec<String> {
    let spec = PriorityLevelSpec {
        type_: input["type"].as_str().unwrap().to_owned(),
        limited: input.get("limited").map(limited_spec),
        exempt: input
            .get("exempt")
            .map(|exempt| serde_json::from_value::<ExemptSpec>(exempt.clone()).unwrap()),
    };
    level_errors(input["name"].as_str().unwrap(), &spec)
}

/// A valid schema. If it has the name of a built-in one, it is equal to that.
fn valid_schema(name: &str) -> FlowSchemaSpec {
    let mut spec = FlowSchemaSpec {
        priority_level_configuration: PriorityLevelReference {
            name: "workload-low".to_owned(),
        },
        matching_precedence: 1000,
        rules: vec![valid_rule()],
        seats: 1,
        ..FlowSchemaSpec::default()
    };
    if name == "exempt" {
        let built_in = json!({
            "priorityLevelConfiguration": {"name": "exempt"},
            "matchingPrecedence": 1,
            "seats": 1,
            "rules": [{
                "subjects": [{"kind": "Any"}],
                "ingress": ["Pod", "Node"],
                "destinations": [{"namespaces": ["default"], "services": ["kubernetes"]}],
            }],
        });
        spec = serde_json::from_value(built_in).unwrap();
    }
    spec
}

fn valid_rule() -> RuleSpec {
    RuleSpec {
        subjects: vec![SubjectSpec {
            kind: "Any".to_owned(),
            ..SubjectSpec::default()
        }],
        destinations: vec![DestinationSpec {
            namespaces: Some(vec!["*".to_owned()]),
            ..DestinationSpec::default()
        }],
        ..RuleSpec::default()
    }
}

fn flow_schema(input: &Value) -> Vec<String> {
    let name = input.get("name").map_or("x", |name| name.as_str().unwrap());
    let mut spec = valid_schema(name);
    for (field, value) in input.as_object().unwrap() {
        match field.as_str() {
            // Alone, it means an `exempt` schema other than the built-in one.
            "name" if input.as_object().unwrap().len() == 1 => spec.rules = vec![valid_rule()],
            "name" => {}
            "matchingPrecedence" => spec.matching_precedence = int(input, field).unwrap(),
            "priorityLevelConfiguration" => {
                spec.priority_level_configuration.name = value.as_str().unwrap().to_owned();
            }
            "distinguisherMethod" => {
                spec.distinguisher_method = Some(DistinguisherMethodSpec {
                    type_: value.as_str().unwrap().to_owned(),
                    source_prefix: None,
                });
            }
            other => panic!("unknown field {other}"),
        }
    }
    schema_errors(name, &spec)
}

fn rule(input: &Value) -> Vec<String> {
    let mut rule = valid_rule();
    for (field, value) in input.as_object().unwrap() {
        match field.as_str() {
            "subjects" => rule.subjects = serde_json::from_value(value.clone()).unwrap(),
            "resourceRules" | "nonResourceRules" => {
                assert_eq!(*value, json!([]));
                rule.destinations.clear();
            }
            "verbs" => {
                rule.destinations[0].protocols = serde_json::from_value(value.clone()).unwrap()
            }
            "namespaces" => {
                rule.destinations[0].namespaces = serde_json::from_value(value.clone()).unwrap()
            }
            // Destinations without a namespace: there the cluster's resources, here addresses.
            "clusterScope" => {
                let addresses = value.as_bool().unwrap().then(|| vec!["*".to_owned()]);
                rule.destinations[0].addresses = addresses;
            }
            other => panic!("unknown field {other}"),
        }
    }
    let spec = FlowSchemaSpec {
        rules: vec![rule],
        ..valid_schema("x")
    };
    schema_errors("x", &spec)
}

/// Paths stand for addresses: a part of the path for the whole address, a slash for one before a
/// length.
fn address(input: &Value) -> Vec<String> {
    let address = match input["path"].as_str().unwrap() {
        "" => "",
        "foo" => "foo",
        "//" => "192.0.2.0//24",
        "/foo" => "192.0.2.1/32",
        "/apis/" => "192.0.2.0/24",
        "/healthz/*" => "*",
        "/healthz/*/foo" => "192.*/24",
        "/*/*" => "*/*",
        other => panic!("unknown path {other}"),
    };
    let mut spec = valid_schema("x");
    spec.rules[0].destinations[0].addresses = Some(vec![address.to_owned()]);
    schema_errors("x", &spec)
}

#[test]
fn defaults_are_those_of_flowcontrol() {
    let vectors = vectors();
    let expected = vectors["d_validation"]["defaults"].as_object().unwrap();
    let mut level = Spec::PriorityLevel(of_limited(LimitedSpec {
        limit_response: LimitResponseSpec {
            type_: "Queue".to_owned(),
            queuing: Some(QueuingSpec::default()),
        },
        ..LimitedSpec::default()
    }));
    defaults::fill(&mut level);
    let Spec::PriorityLevel(level) = level else {
        unreachable!("filled in place");
    };
    let exempt = PriorityLevelSpec {
        type_: "Exempt".to_owned(),
        limited: None,
        exempt: Some(ExemptSpec::default()),
    };
    let mut schema = Spec::FlowSchema(Box::new(FlowSchemaSpec {
        matching_precedence: 0,
        seats: 0,
        ..valid_schema("x")
    }));
    defaults::fill(&mut schema);
    let Spec::FlowSchema(schema) = schema else {
        unreachable!("filled in place");
    };
    let level = validate::level("level", &level).unwrap().value;
    let exempt = validate::level("exempt", &exempt).unwrap().value;
    let schema = validate::schema("x", &schema).unwrap().value;
    let queuing = level.queuing().unwrap();
    for (field, value) in expected {
        let own = match field.as_str() {
            "flowSchema.matchingPrecedence" => json!(schema.precedence),
            "limited.nominalConcurrencyShares" => json!(level.shares),
            "limited.lendablePercent" => json!(level.lendable_percent),
            "limited.borrowingLimitPercent" => {
                json!(level.limited().unwrap().borrowing_limit_percent)
            }
            "exempt.nominalConcurrencyShares" => json!(exempt.shares),
            "exempt.lendablePercent" => json!(exempt.lendable_percent),
            "queuing.queues" => json!(queuing.queues),
            "queuing.handSize" => json!(queuing.hand_size),
            "queuing.queueLengthLimit" => json!(queuing.queue_length_limit),
            "note" => continue,
            other => panic!("unknown default {other}"),
        };
        assert_eq!(own, *value, "{field}");
    }
    assert_eq!(expected.len(), 10);
    assert_eq!(schema.width, 1);
}

#[test]
fn zeros_that_mean_nothing_are_accepted_in_objects() {
    let written = configuration(
        "
kind: PriorityLevel
metadata: {name: a}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 0
    limitResponse: {type: Queue, queuing: {queues: 0, handSize: 0, queueLengthLimit: 0}}
---
kind: FlowSchema
metadata: {name: a}
spec: {priorityLevelConfiguration: {name: a}, matchingPrecedence: 0, seats: 0}
",
    );
    let in_force = written.in_force();
    assert_eq!(in_force.levels[0].shares, 0, "a zero that means something");
    assert_eq!(in_force.levels[0].queuing().unwrap().queues, 64);
    assert_eq!(in_force.schemas[1].schema.precedence, 1000);
}

#[test]
fn everything_wrong_is_told_at_once() {
    let level = &objects(
        "
kind: PriorityLevel
metadata: {name: Level}
spec:
  type: limited
  exempt: {}
  limited:
    nominalConcurrencyShares: -1
    lendablePercent: -1
    borrowingLimitPercent: -1
    limitResponse: {type: Queue, queuing: {queues: -1, handSize: 16, queueLengthLimit: -1}}
    connections: {maxConnectionsPerFlow: 0, firstSeatReservePercent: 51, maxHalfOpenSeats: -3}
",
    )[0];
    let mut configuration = lb_admission::configuration::Configuration::default();
    let errors = configuration.apply(level).unwrap_err();
    assert_eq!(
        fields(&errors),
        [
            "metadata.name",
            "spec.type",
            "spec.limited.nominalConcurrencyShares",
            "spec.limited.lendablePercent",
            "spec.limited.borrowingLimitPercent",
            "spec.limited.limitResponse.queuing.queues",
            "spec.limited.limitResponse.queuing.handSize",
            "spec.limited.limitResponse.queuing.queueLengthLimit",
            "spec.limited.connections.maxConnectionsPerFlow",
            "spec.limited.connections.maxHalfOpenSeats",
            "spec.limited.connections.firstSeatReservePercent",
            "spec.exempt",
        ]
    );
}
