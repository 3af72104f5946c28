//! Files of objects: several documents, lists, other kinds, mistakes.

use std::path::Path;

use lb_admission::{
    configuration::Configuration,
    objects::{Finding, Manifest},
};
use proptest::prelude::*;

use crate::support::fields;

fn parse(name: &str, text: &str) -> Manifest {
    Manifest::parse(Path::new(name), text.as_bytes()).unwrap()
}

fn names(manifest: &Manifest) -> Vec<String> {
    let documents = manifest.documents.iter();
    documents
        .map(|document| document.reference.to_string())
        .collect()
}

fn errors(text: &str) -> Vec<Finding> {
    let mut manifest = parse("a.yaml", text);
    assert_eq!(manifest.documents.len(), 1);
    manifest.documents.remove(0).object.unwrap_err()
}

#[test]
fn documents_and_lists_are_read_and_other_kinds_handed_back() {
    let manifest = parse(
        "a.yaml",
        "
# nothing but a comment
---
apiVersion: node-lb.io/v1alpha1
kind: PriorityLevel
metadata: {name: a}
---
apiVersion: v1
kind: List
items:
- {apiVersion: node-lb.io/v1alpha1, kind: FlowSchema, metadata: {name: b}}
- {apiVersion: v1, kind: Service, metadata: {name: c}}
- {apiVersion: v1, kind: Namespace, metadata: {name: g, annotations: {node-lb.io/max-connections: '9'}}}
- {apiVersion: v1, kind: Namespace, metadata: {name: h, annotations: {node-lb.io/max-connections: '0'}}}
- {kind: List, items: [{kind: FlowSchema, metadata: {name: d}}]}
---
apiVersion: node-lb.io/v1alpha1
kind: PriorityLevelList
items:
- {metadata: {name: e}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: f}
",
    );
    assert_eq!(
        names(&manifest),
        [
            "PriorityLevel/a",
            "FlowSchema/b",
            "Namespace/g",
            "FlowSchema/d",
            "PriorityLevel/e"
        ]
    );
    let lines: Vec<_> = manifest
        .documents
        .iter()
        .map(|document| document.line)
        .collect();
    assert_eq!(lines, [4, 8, 8, 8, 17]);
    let others: Vec<_> = manifest.others.iter().map(|other| &other["kind"]).collect();
    assert_eq!(
        others,
        ["Service", "Namespace", "FlowSchema"],
        "the API server's FlowSchemas are not ours, and a Namespace has no limit"
    );

    let json = parse(
        "a.json",
        r#"{"kind": "PriorityLevel", "metadata": {"name": "a"}} {"kind": "Pod"}"#,
    );
    assert_eq!((names(&json).len(), json.others.len()), (1, 1));
}

#[test]
fn unknown_fields_and_values_that_do_not_fit_are_told_together() {
    let errors = errors(
        "
kind: FlowSchema
metadata: {name: a}
specs: {}
spec:
  priorityLevelConfiguration: {name: a, kind: x}
  matchingPrecedense: 3
  rules:
  - subjects: [{kind: Any, user: {name: x}}]
    destinations: [{namespaces: ['*']}]
  seats: many
",
    );
    let mut told = fields(&errors);
    told.sort_unstable();
    assert_eq!(
        told,
        [
            "spec.matchingPrecedense",
            "spec.priorityLevelConfiguration.kind",
            "spec.rules[0].subjects[0].user",
            "spec.seats",
            "specs",
        ]
    );
}

#[test]
fn unknown_fields_do_not_hide_what_else_is_wrong() {
    let errors = errors(
        "
kind: FlowSchema
metadata: {name: a}
spec: {matchingPrecedense: 3, seats: 11, rules: [{}]}
",
    );
    assert_eq!(
        fields(&errors),
        [
            "spec.matchingPrecedense",
            "spec.priorityLevelConfiguration.name",
            "spec.rules[0].subjects",
            "spec.rules[0].destinations",
            "spec.seats",
        ]
    );
}

#[test]
fn null_is_as_good_as_absent() {
    let manifest = parse(
        "a.yaml",
        "
kind: FlowSchema
metadata: {name: a}
spec:
  priorityLevelConfiguration: {name: exempt}
  matchingPrecedence: null
  distinguisherMethod: null
  rules: null
  seats: null
  longRunning: null
  deadlines: {handshake: null}
",
    );
    let object = manifest.documents[0].object.as_ref().unwrap();
    Configuration::default().apply(object).unwrap();
    for spec in ["", "spec:", "spec: null", "spec: {}"] {
        let manifest = parse(
            "a.yaml",
            &format!("kind: PriorityLevel\nmetadata: {{name: a}}\n{spec}"),
        );
        let object = manifest.documents[0].object.as_ref().unwrap();
        let errors = Configuration::default().apply(object).unwrap_err();
        assert_eq!(fields(&errors), ["spec.type", "spec.limited"]);
    }
}

#[test]
fn objects_that_say_nonsense_about_themselves() {
    for (text, field) in [
        (
            "{kind: FlowSchema, apiVersion: node-lb.io/v2, metadata: {name: a}}",
            "apiVersion",
        ),
        (
            "{kind: FlowSchema, apiVersion: node-lb.io, metadata: {name: a}}",
            "apiVersion",
        ),
        ("{kind: FlowSchema, metadata: {name: a}, spec: x}", "spec"),
        (
            "{kind: PriorityLevel, metadata: {name: a}, spec: {limited: {nominalConcurrencyShares: 1e30}}}",
            "spec.limited.nominalConcurrencyShares",
        ),
    ] {
        assert_eq!(fields(&errors(text)), [field], "{text}");
    }
    for metadata in [
        "",
        "metadata: {}, ",
        "metadata: {name: [a]}, ",
        "metadata: 3, ",
    ] {
        let nameless = format!(
            "{{kind: FlowSchema, {metadata}spec: {{priorityLevelConfiguration: {{name: a}}}}}}"
        );
        let nameless = parse("a.yaml", &nameless);
        let object = nameless.documents[0].object.as_ref().unwrap();
        let errors = Configuration::default().apply(object).unwrap_err();
        assert_eq!(fields(&errors), ["metadata.name"], "{metadata}");
    }
}

#[test]
fn broken_files_name_the_line() {
    for (text, line) in [
        ("kind: FlowSchema\n---\nkind: [", 3),
        ("a: b", 1),
        ("\n---\n- kind: FlowSchema", 3),
        ("kind: List\nitems: 3", 1),
        ("kind: List\nitems: [3]", 1),
        (
            "apiVersion: v1\nkind: Pod\n---\napiVersion: node-lb.io/v1alpha1\nkind: FlowShema",
            4,
        ),
    ] {
        let broken = Manifest::parse(Path::new("a.yaml"), text.as_bytes()).unwrap_err();
        assert_eq!(broken.line, Some(line), "{text}: {}", broken.message);
    }
}

/// Deeply nested lists, which a reader would follow recursively.
#[test]
fn deep_nesting_is_refused_not_followed() {
    let deep = r#"{"kind":"List","items":["#.repeat(100_000);
    Manifest::parse(Path::new("a.json"), deep.as_bytes()).unwrap_err();
    Manifest::parse(Path::new("a.yaml"), deep.as_bytes()).unwrap_err();
}

proptest! {
    /// Whatever a file contains, it is read, refused or validated, and the mandatory objects are in
    /// force.
    #[test]
    fn nothing_breaks_the_parser(
        lines in prop::collection::vec(
            prop_oneof![
                prop::sample::select(vec![
                    "---", "kind: FlowSchema", "kind: PriorityLevel", "kind: List", "items:", "spec:",
                    "metadata: {name: a}", "metadata: {name: exempt}", "  type: Limited", "  type: Exempt",
                    "  limited:", "    limitResponse: {type: Queue, queuing: {queues: -5}}",
                    "    nominalConcurrencyShares: 99999999999", "  seats: 3", "  rules:",
                    "  - subjects: [{kind: Any}]", "    destinations: [{ports: [70000, '1-0', '*']}]",
                    "  deadlines: {handshake: 9223372036854775807h}", "- kind: FlowSchema",
                    "  priorityLevelConfiguration: {name: catch-all}", "  linger: -1s",
                ])
                .prop_map(str::to_owned),
                "[ -~]{0,20}",
            ],
            0..20,
        ),
    ) {
        let text = lines.join("\n");
        for name in ["a.yaml", "a.json"] {
            let Ok(manifest) = Manifest::parse(Path::new(name), text.as_bytes()) else {
                continue;
            };
            let mut configuration = Configuration::default();
            for document in manifest.documents {
                match document.object {
                    Ok(object) => drop(configuration.apply(&object)),
                    Err(errors) => prop_assert!(!errors.is_empty()),
                }
            }
            let in_force = configuration.in_force();
            prop_assert_eq!(&in_force.schemas.first().unwrap().schema.name, "exempt");
            prop_assert_eq!(&in_force.schemas.last().unwrap().schema.name, "catch-all");
            in_force.limits(u32::MAX);
        }
    }
}
