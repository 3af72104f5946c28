//! Division of seats among levels.

use lb_admission::allocation::{Allocation, Class, allocate};
use proptest::prelude::*;
use serde::Deserialize;

use crate::vectors::{self, assert_close};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Case {
    name: String,
    required_sum: i64,
    items: Vec<Item>,
    error: Option<String>,
    allocs: Option<Vec<f64>>,
    fair_frac: Option<f64>,
    rounded: Option<Vec<i64>>,
}

#[derive(Clone, Copy, Deserialize)]
struct Item {
    lower: f64,
    target: f64,
    upper: f64,
}

impl From<Item> for Class {
    fn from(item: Item) -> Self {
        let Item {
            lower,
            target,
            upper,
        } = item;
        Self {
            lower,
            target,
            upper,
        }
    }
}

#[test]
fn seats_are_divided_as_by_upstream() {
    for part in ["edge", "random", "integerBounds"] {
        let path = format!("/b_concurrency_allocation/{part}");
        let cases: Vec<Case> = vectors::at(&path);
        assert!(!cases.is_empty());
        for case in cases {
            let classes: Vec<Class> = case.items.iter().copied().map(Class::from).collect();
            let name = &case.name;
            match allocate(case.required_sum, &classes) {
                Err(error) => assert_eq!(Some(error.to_string()), case.error, "{name}"),
                Ok(Allocation {
                    seats,
                    fair_fraction,
                }) => {
                    assert_eq!(case.error, None, "{name}");
                    assert_close(fair_fraction, case.fair_frac.unwrap(), 1e-9, name);
                    let expected = case.allocs.unwrap();
                    assert_eq!(seats.len(), expected.len(), "{name}");
                    for (seats, expected) in seats.iter().zip(expected) {
                        assert_close(*seats, expected, 1e-9, name);
                    }
                    let rounded: Vec<_> = seats.iter().map(|seats| seats.round() as i64).collect();
                    assert_eq!(Some(rounded), case.rounded, "{name}");
                }
            }
        }
    }
}

/// A class from three numbers: its lower bound, and how far above it target and upper bound are.
fn class() -> impl Strategy<Value = Class> {
    let amounts = (0.0..100.0, 0.0..100.0, 0.0..100.0);
    (amounts, 0..4).prop_map(|((lower, above, room), zero): ((f64, f64, f64), _)| {
        let lower = if zero == 0 { 0.0 } else { lower };
        let target = if zero < 2 { lower } else { lower + above };
        Class {
            lower,
            target,
            upper: lower + room,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn allocations_are_fair_and_complete(
        classes in prop::collection::vec(class(), 0..10),
        part in 0.0..1.0_f64,
    ) {
        let lowers: f64 = classes.iter().map(|class| class.lower).sum();
        let uppers: f64 = classes.iter().map(|class| class.upper).sum();
        let required = (lowers + part * (uppers - lowers)).round() as i64;
        let feasible = lowers - required as f64 <= 1e-7 && required as f64 - uppers <= 1e-7;
        let allocation = allocate(required, &classes);
        prop_assert_eq!(allocation.is_ok(), feasible);
        let Ok(Allocation { seats, fair_fraction }) = allocation else {
            return Ok(());
        };
        let sum: f64 = seats.iter().sum();
        prop_assert!((sum - required as f64).abs() <= 1e-9 * required as f64 + 1e-7);
        for (class, seats) in classes.iter().zip(seats) {
            let fair = fair_fraction * class.target.max(0.001);
            let expected = fair.max(class.lower).min(class.upper);
            prop_assert!((seats - expected).abs() <= 1e-9 * expected + 1e-7, "{seats} {expected}");
        }
    }
}
