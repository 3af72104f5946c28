//! Objects from YAML, and the test vectors.

use std::path::Path;

use lb_admission::{
    configuration::Configuration,
    objects::{Finding, Manifest, Object},
};
use serde_json::Value;

pub fn vectors() -> Value {
    serde_json::from_str(include_str!("../data/apf.json")).unwrap()
}

/// The valid and readable objects of a manifest.
pub fn objects(yaml: &str) -> Vec<Object> {
    let manifest = Manifest::parse(Path::new("test.yaml"), yaml.as_bytes()).unwrap();
    let documents = manifest.documents.into_iter();
    documents.map(|document| document.object.unwrap()).collect()
}

/// A configuration of objects, all of which are valid.
pub fn configuration(yaml: &str) -> Configuration {
    let mut configuration = Configuration::default();
    for object in objects(yaml) {
        configuration.apply(&object).unwrap();
    }
    configuration
}

pub fn fields(findings: &[Finding]) -> Vec<&str> {
    findings
        .iter()
        .map(|finding| finding.field.as_str())
        .collect()
}
