//! Kubernetes' scenarios of clients that share a level, in virtual time.

use lb_admission::{
    controller::Controller,
    level::{ConnectionLimits, Level, LevelKind, LimitResponse, Limited, Queuing},
    queueset::Policy,
    simulate::{Settings, run_workload, workload::Workload},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::vectors::{self, assert_close};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Scenario {
    name: String,
    queues: i64,
    hand_size: u32,
    queue_length_limit: u32,
    clients: Vec<Value>,
    #[serde(rename = "eval_ns")]
    duration: u64,
    concurrency_limit: u32,
    expect_all_requests: bool,
    #[serde(default)]
    order_dependent: bool,
    phases: Vec<Phase>,
    model_rejects: Vec<u64>,
    model_executions: Vec<u64>,
    reject_reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Phase {
    expected_average_seats: Vec<f64>,
    expect_within_margin: bool,
    margin: f64,
    model_observed: Vec<f64>,
}

impl Scenario {
    fn level(&self) -> Level {
        let response = match u32::try_from(self.queues) {
            Err(_) => return Level::exempt(),
            Ok(0) => LimitResponse::Reject,
            Ok(queues) => LimitResponse::Queue(Queuing {
                queues,
                hand_size: self.hand_size,
                queue_length_limit: self.queue_length_limit,
            }),
        };
        Level {
            name: "tested".to_owned(),
            shares: 100,
            lendable_percent: 0,
            kind: LevelKind::Limited(Limited {
                borrowing_limit_percent: None,
                response,
                connections: ConnectionLimits::default(),
                audited: false,
            }),
        }
    }
}

#[test]
fn clients_share_a_level_as_in_upstream() {
    let scenarios: Vec<Scenario> = vectors::at("/e_queueset/uniformScenarios");
    assert!(!scenarios.is_empty());
    for scenario in scenarios {
        let name = &scenario.name;
        let level = scenario.level();
        let workload: Workload = serde_json::from_value(json!({
            "level": level.name,
            "currentLimit": scenario.concurrency_limit,
            "duration_ns": scenario.duration,
            "clients": scenario.clients,
        }))
        .unwrap();
        assert_eq!(workload.phases().len(), scenario.phases.len(), "{name}");
        let controller = Controller::new(&[level], 600, Policy::Exact, 0).unwrap();
        let settings = Settings {
            policy: Policy::Exact,
            queue_wait: None,
        };
        let report = run_workload(controller, settings, &workload).unwrap();

        let rejections: Vec<u64> = report
            .clients
            .iter()
            .map(|client| client.rejections)
            .collect();
        let executions: Vec<u64> = report
            .clients
            .iter()
            .map(|client| client.executions)
            .collect();
        assert_eq!(executions, scenario.model_executions, "{name}");
        assert_eq!(rejections, scenario.model_rejects, "{name}");
        assert_eq!(
            rejections.iter().all(|&number| number == 0),
            scenario.expect_all_requests
        );
        if let Some(reason) = scenario.reject_reason {
            let by_reason = serde_json::to_value(report.levels[0].rejections).unwrap();
            assert_eq!(by_reason[&reason], rejections.iter().sum::<u64>(), "{name}");
        }
        for (number, phase) in scenario.phases.iter().enumerate() {
            for (index, client) in report.clients.iter().enumerate() {
                let what = format!("{name}, phase {number}, client {index}");
                let seats = client.average_seats[number];
                if !scenario.order_dependent {
                    assert_close(seats, phase.model_observed[index], 1e-9, &what);
                }
                let expected = phase.expected_average_seats[index];
                let scale = if expected == 0.0 { 1.0 } else { expected };
                // A margin of zero means the mathematical value.
                let margin = phase.margin.max(1e-9);
                let within = (seats - expected).abs() / scale <= margin;
                assert_eq!(
                    within, phase.expect_within_margin,
                    "{what}: {seats}, {expected}"
                );
            }
        }
    }
}
