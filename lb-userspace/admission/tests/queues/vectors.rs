//! Test data about the behaviour of API Priority and Fairness, which node-lb follows.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// The part of the data at a path such as `/g_extras/retryAfter`.
pub fn at<T: DeserializeOwned>(path: &str) -> T {
    let all: Value = serde_json::from_str(include_str!("../data/apf.json")).unwrap();
    let part = all.pointer(path).unwrap_or_else(|| panic!("no {path}"));
    serde_json::from_value(part.clone()).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Asserts that numbers are equal except for rounding.
#[track_caller]
pub fn assert_close(found: f64, expected: f64, tolerance: f64, what: &str) {
    let scale = found.abs().max(expected.abs());
    let close = found == expected || (found - expected).abs() <= tolerance * scale;
    assert!(close, "{what}: {found}, expected {expected}");
}
