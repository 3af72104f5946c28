//! Tests of limits that follow demand.

use std::collections::BTreeMap;

use lb_admission::{
    borrowing::{Claim, LevelDemand, adjust},
    controller::Controller,
    demand::DemandStatistics,
    level::{Level, LevelKind},
    queueset::Policy,
};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    support,
    vectors::{self, assert_close},
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sequence {
    name: String,
    levels: Vec<ClaimCase>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct ClaimCase {
    name: String,
    exempt: bool,
    #[serde(rename = "nominalCL")]
    nominal: u32,
    #[serde(rename = "minCL")]
    min: u32,
    #[serde(rename = "maxCL")]
    max: u32,
}

#[derive(Deserialize)]
struct Step {
    observed: BTreeMap<String, Observed>,
    info: Info,
    after: BTreeMap<String, After>,
}

#[derive(Deserialize)]
struct Observed {
    max: f64,
    avg: f64,
    dev: f64,
    duration: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Info {
    fair_frac: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct After {
    high_watermark: f64,
    smoothed: f64,
    #[serde(rename = "minCurrentCL")]
    min_current: u32,
    target: Option<f64>,
    #[serde(rename = "currentCL")]
    current: u32,
}

#[derive(Deserialize)]
struct Smoothing {
    avg: f64,
    dev: f64,
    smoothed: f64,
}

const RETAINED: &str = "/b_concurrency_allocation/constants/seatDemandSmoothingCoefficient";

fn period(observed: &Observed) -> DemandStatistics {
    let moments = observed.duration > 0.0;
    DemandStatistics {
        duration: observed.duration,
        average: if moments { observed.avg } else { f64::NAN },
        deviation: if moments { observed.dev } else { f64::NAN },
        min: 0.0,
        max: observed.max,
    }
}

#[test]
fn limits_follow_demand_as_by_upstream() {
    let sequences: Vec<Sequence> = vectors::at("/b_concurrency_allocation/adjustmentSequences");
    let retained = vectors::at(RETAINED);
    assert!(!sequences.is_empty());
    for sequence in sequences {
        let claim = |level: &ClaimCase| Claim {
            exempt: level.exempt,
            nominal: level.nominal,
            min: level.min,
            max: level.max,
            demand: LevelDemand::default(),
        };
        let mut claims: Vec<Claim> = sequence.levels.iter().map(claim).collect();
        for (number, step) in sequence.steps.iter().enumerate() {
            for (claim, level) in claims.iter_mut().zip(&sequence.levels) {
                claim
                    .demand
                    .observe(&period(&step.observed[&level.name]), retained);
            }
            let adjustment = adjust(&claims).unwrap();
            let what = format!("{}, step {number}", sequence.name);
            assert_close(adjustment.fair_fraction, step.info.fair_frac, 1e-9, &what);
            for ((claim, level), current) in
                claims.iter().zip(&sequence.levels).zip(adjustment.current)
            {
                let what = format!("{what}, {}", level.name);
                let expected = &step.after[&level.name];
                assert_eq!(
                    claim.demand.high_watermark, expected.high_watermark,
                    "{what}"
                );
                assert_close(claim.demand.smoothed, expected.smoothed, 1e-9, &what);
                assert_eq!(claim.min_current(), expected.min_current, "{what}");
                if let Some(target) = expected.target {
                    assert_close(claim.target(), target, 1e-9, &what);
                }
                assert_eq!(current, expected.current, "{what}");
            }
        }
    }
}

/// The first adjustment of a new configuration divides spare seats by what levels keep, not by
/// shares.
#[test]
fn limits_without_demand_are_those_of_upstream() {
    #[derive(Deserialize)]
    struct Config {
        #[serde(rename = "serverConcurrencyLimit")]
        server_limit: u32,
        levels: Vec<Value>,
    }
    let configs: Vec<Config> = vectors::at("/c_limits/configs");
    let mut checked = 0;
    for Config {
        server_limit,
        levels,
    } in configs
    {
        let number =
            |level: &Value, field: &str| Some(u32::try_from(level[field].as_u64()?).unwrap());
        if number(&levels[0], "currentCLAfterDigestWithoutDemand").is_none() {
            continue;
        }
        let objects: Vec<Level> = levels
            .iter()
            .map(|level| {
                let name = level["name"].as_str().unwrap();
                Level {
                    lendable_percent: number(level, "lendablePercent").unwrap(),
                    ..match level["type"].as_str().unwrap() {
                        "Exempt" => Level::exempt(),
                        _ => support::level(name, number(level, "shares").unwrap(), 128, 6),
                    }
                }
            })
            .map(borrows_without_limit)
            .collect();
        let controller = Controller::new(&objects, server_limit, Policy::Exact, 0).unwrap();
        for level in &levels {
            let name = level["name"].as_str().unwrap();
            let limit = controller.level(controller.find(name).unwrap()).limit();
            let expected = number(level, "currentCLAfterDigestWithoutDemand");
            assert_eq!(Some(limit), expected, "{name} of {server_limit}");
            checked += 1;
        }
    }
    assert!(checked > 0);
}

fn borrows_without_limit(mut level: Level) -> Level {
    if let LevelKind::Limited(limited) = &mut level.kind {
        limited.borrowing_limit_percent = None;
    }
    level
}

#[test]
fn demand_is_smoothed_as_by_upstream() {
    let steps: Vec<Smoothing> = vectors::at("/b_concurrency_allocation/smoothing/steps");
    let start: f64 = vectors::at("/b_concurrency_allocation/smoothing/start");
    let retained = vectors::at(RETAINED);
    let mut demand = LevelDemand::default();
    assert_eq!(demand.smoothed, start);
    assert!(!steps.is_empty());
    for step in steps {
        let observed = Observed {
            max: 0.0,
            avg: step.avg,
            dev: step.dev,
            duration: 10.0,
        };
        demand.observe(&period(&observed), retained);
        assert_close(demand.smoothed, step.smoothed, 1e-9, "smoothed");
    }
}
