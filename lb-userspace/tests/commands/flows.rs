//! `node-lb flows` without anything to show: it says what is missing.

use std::process::Output;

use tempfile::TempDir;

use crate::{node_lb, stderr};

#[test]
fn without_pinned_tables_it_says_where_they_would_be() {
    let root = TempDir::new().unwrap();
    let output = flows(&["--bpf-root", root.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let error = stderr(&output);
    assert!(
        error.contains("maps/CONFIG") && error.contains("--bpf-root"),
        "{error}"
    );
}

#[test]
fn a_service_is_found_by_its_addresses_in_a_source() {
    let output = flows(&["--service", "shop/web"]);
    assert_eq!(output.status.code(), Some(1));
    let error = stderr(&output);
    assert!(error.contains("--source"), "{error}");

    let output = flows(&["--service", "web"]);
    assert_eq!(output.status.code(), Some(2));
    let error = stderr(&output);
    assert!(error.contains("NAMESPACE/NAME"), "{error}");
}

fn flows(arguments: &[&str]) -> Output {
    node_lb(&[&["flows"], arguments].concat())
}
