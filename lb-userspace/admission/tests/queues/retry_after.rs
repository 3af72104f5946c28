//! Advice to refused clients.

use lb_admission::retry_after::RetryAfter;
use serde::Deserialize;

use crate::vectors;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Step {
    seconds_elapsed: u64,
    dropped: u32,
    retry_after: u64,
}

/// Rejects so many connections in a second, then compares the advice.
#[track_caller]
fn check(advice: &mut RetryAfter, second: u64, rejections: u32, expected: u64) {
    (0..rejections).for_each(|_| advice.reject(second));
    assert_eq!(advice.seconds(), expected, "in second {second}");
}

#[test]
fn advice_follows_rejections_as_in_upstream() {
    let steps: Vec<Step> = vectors::at("/g_extras/retryAfter/upstreamSteps");
    assert!(!steps.is_empty());
    let mut advice = RetryAfter::default();
    for step in steps {
        let second = 1_700_000_000 + step.seconds_elapsed;
        check(&mut advice, second, step.dropped, step.retry_after);
    }
}

#[test]
fn advice_follows_random_rejections() {
    let path = "/g_extras/retryAfter/randomSteps_[t,dropped,retryAfter]";
    let steps: Vec<(u64, u32, u64)> = vectors::at(path);
    assert!(!steps.is_empty());
    let mut advice = RetryAfter::default();
    for (second, rejections, expected) in steps {
        check(&mut advice, 1_700_000_000 + second, rejections, expected);
    }
}

#[test]
fn a_constant_flood_raises_the_advice_to_its_maximum() {
    let path = "/g_extras/retryAfter/constantFloodOf100PerSecond_retryAfterBySecond";
    let expected: Vec<u64> = vectors::at(path);
    let mut advice = RetryAfter::default();
    for (second, &expected) in (1_700_000_000..).zip(&expected) {
        check(&mut advice, second, 100, expected);
    }
    let max: u64 = vectors::at("/g_extras/retryAfter/maxRetryAfter");
    assert_eq!(expected.last(), Some(&max));
}

#[test]
fn levels_do_not_share_advice() {
    let initial: u64 = vectors::at("/g_extras/retryAfter/initial");
    assert_eq!(RetryAfter::default().seconds(), initial);
    let mut levels = vec![RetryAfter::default(); 10];
    for second in [1_700_000_000, 1_700_000_001] {
        levels
            .iter_mut()
            .for_each(|advice| check(advice, second, 1, 1));
    }
    let mut busy = RetryAfter::default();
    check(&mut busy, 1_700_000_000, 6, 1);
    check(&mut busy, 1_700_000_001, 1, 2);
}
