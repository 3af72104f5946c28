//! The committed definitions are equal to those generated from the types.

use std::{fs, path::Path};

use lb_admission::objects::{Kind, crd};

#[test]
fn committed_definitions_are_generated() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    let defined = Kind::ALL.into_iter().filter_map(crd::yaml);
    for (yaml, file) in defined.zip(["prioritylevels.yaml", "flowschemas.yaml"]) {
        let committed = fs::read_to_string(directory.join(file)).unwrap();
        assert!(
            committed == yaml.unwrap(),
            "deploy/crds/{file} is not what `node-lb admission crds` prints: replace it by that output"
        );
    }
}

#[test]
fn every_field_is_explained_and_every_list_bounded() {
    for definition in Kind::ALL.into_iter().filter_map(crd::definition) {
        let schema = definition
            .pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec")
            .unwrap();
        visit("spec", schema);
    }
}

fn visit(path: &str, schema: &serde_json::Value) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        assert!(
            property["description"].is_string(),
            "{path} has no description"
        );
        match property["type"].as_str() {
            Some("array") => {
                assert!(property["maxItems"].is_u64(), "{path} has no maxItems");
                visit(&format!("{path}[]"), &property["items"]);
            }
            _ => visit(&path, property),
        }
    }
    // Keywords that structural schemas do not allow.
    for keyword in ["$ref", "nullable", "definitions", "title"] {
        assert!(schema.get(keyword).is_none(), "{path} has {keyword}");
    }
}
