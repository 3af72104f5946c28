//! `node-lb admission simulate` as an operator runs it: files in, JSON or a table out.

use std::process::Output;

use serde_json::{Value, json};

use crate::{Files, stderr, stdout};

const LEVELS: &str = "
apiVersion: node-lb.io/v1alpha1
kind: PriorityLevel
metadata: {name: shop}
spec:
  type: Limited
  limited:
    limitResponse:
      type: Queue
      queuing: {queues: 9, handSize: 3, queueLengthLimit: 8}
";

/// The command in the directory of [`LEVELS`].
const SIMULATE: [&str; 4] = ["admission", "simulate", "-f", "levels.yaml"];

/// Writes files of these names, and runs the command on them.
fn simulate(files: &[(&str, &str)], arguments: &[&str]) -> Output {
    Files::new(files).run(&[&SIMULATE, arguments].concat())
}

#[track_caller]
fn json_of(files: &[(&str, &str)], arguments: &[&str]) -> Value {
    let (report, output) = Files::new(files).json(&[&SIMULATE, arguments].concat());
    assert_eq!(stderr(&output), "");
    assert!(output.status.success());
    report
}

/// The error of a run that prints nothing else.
#[track_caller]
fn error_of(files: &[(&str, &str)], arguments: &[&str]) -> String {
    let output = simulate(files, arguments);
    assert_eq!(stdout(&output), "");
    assert_eq!(output.status.code(), Some(1));
    stderr(&output).to_owned()
}

#[test]
fn clients_of_a_workload_are_reported_in_their_order() {
    let client = |hash: u64| {
        json!({
            "hash": hash, "threads": 1, "calls": 25, "exec_ns": 1_000_000_000, "think_ns": 0,
            "initial_seats": 1, "final_seats": 2, "pad_ns": 1_000_000_000,
        })
    };
    let workload = json!({
        "level": "shop", "currentLimit": 2, "duration_ns": 24_000_000_000_u64,
        "clients": [client(1_001_001_001), client(2_002_002_002)],
    });
    let files = [
        ("levels.yaml", LEVELS),
        ("load.json", &workload.to_string()),
    ];
    let report = json_of(&files, &["--workload", "load.json", "--exact"]);
    let client = &report["clients"][1];
    assert_eq!(client["executions"], 25);
    assert_eq!(client["rejections"], 0);
    assert_eq!(client["averageSeats"], json!([0.25]));
    assert_eq!(report["clients"].as_array().unwrap().len(), 2);
    assert_eq!(report["levels"][0]["name"], "shop");
    assert_eq!(report["levels"][0]["maxSeatsInUse"], 2);
    assert_eq!(report["levels"][0]["rejections"]["time-out"], 0);
}

#[test]
fn a_trace_is_replayed() {
    // Nine at once at a level of a hundred seats, then one at another level.
    let mut trace = "t_ns,flow,hold_ns\n".to_owned();
    for flow in 0..9 {
        trace += &format!("1000,flow {flow},500\n");
    }
    trace += "{\"t_ns\": 2000, \"flow\": \"late\", \"hold_ns\": 7, \"width\": 1, \"level\": \"catch-all\"}\n";
    let files = [("levels.yaml", LEVELS), ("trace.csv", trace.as_str())];
    let report = json_of(&files, &["--trace", "trace.csv", "--concurrency", "100"]);
    assert_eq!(report["connections"], 10);
    assert_eq!(report["endNs"], 2007);
    let levels = report["levels"].as_array().unwrap();
    let executions: Vec<_> = levels
        .iter()
        .map(|level| (&level["name"], &level["executions"]))
        .collect();
    assert_eq!(
        executions,
        [
            (&json!("shop"), &json!(9)),
            (&json!("catch-all"), &json!(1))
        ]
    );
    assert_eq!(levels[0]["fairness"]["jainSeatSeconds"], 1.0);
    assert_eq!(levels[0]["topFlows"][0]["seatSeconds"], 5e-7);

    let output = simulate(&files, &["--trace", "trace.csv"]);
    assert!(output.status.success());
    let table = stdout(&output);
    assert!(
        table.starts_with("10 connections, 0.000 s; 0 still waiting\n"),
        "{table}"
    );
    assert!(table.contains("\nshop "), "{table}");
}

#[test]
fn waits_end_after_a_second_or_as_told() {
    let trace = "0,a,3000000000,1\n1,b,1,1\n";
    let files = [("levels.yaml", LEVELS), ("trace.csv", trace)];
    for (arguments, timed_out) in [
        (&["--concurrency", "1"][..], 1),
        (&["--concurrency", "1", "--queue-wait", "4s"], 0),
        (&["--concurrency", "1", "--exact"], 0),
    ] {
        let report = json_of(&files, &[&["--trace", "trace.csv"], arguments].concat());
        assert_eq!(
            report["levels"][0]["rejections"]["time-out"], timed_out,
            "{arguments:?}"
        );
    }
}

#[test]
fn errors_say_where_and_what() {
    let load = |text| [("levels.yaml", LEVELS), ("load", text)];
    let trace = |text| error_of(&load(text), &["--trace", "load"]);
    assert_eq!(
        trace("0,a,1\n5,b\n"),
        "error: load: line 2: no hold_ns; expected t_ns,flow,hold_ns,width,level\n"
    );
    assert_eq!(
        trace("0,a,1,1,nowhere\n"),
        "error: load: line 1: there is no priority level \"nowhere\"\n"
    );
    let workload = |text| error_of(&load(text), &["--workload", "load"]);
    assert!(
        workload("{\"level\":\"shop\",\"duration_ns\":-1}").contains("duration_ns: invalid value")
    );
    assert_eq!(
        workload("{\"level\":\"shop\",\"duration_ns\":1}"),
        "error: load: clients: there must be a client or a source\n"
    );
    let client = "{\"hash\":1,\"threads\":0,\"calls\":1,\"exec_ns\":1}";
    let text = format!("{{\"level\":\"shop\",\"duration_ns\":1,\"clients\":[{client}]}}");
    assert_eq!(
        workload(&text),
        "error: load: clients[0].threads: must be positive\n"
    );

    let broken = LEVELS.replace("handSize: 3", "handSize: 30");
    let files = [("levels.yaml", broken.as_str()), ("load", "")];
    let error = error_of(&files, &["--trace", "load"]);
    assert!(error.contains("PriorityLevel/shop"), "{error}");
    assert!(
        error.contains("spec.limited.limitResponse.queuing.handSize"),
        "{error}"
    );
}

/// Connections that last for years, and seats that linger for years, take no longer to simulate.
#[test]
fn absurd_times_are_bounded_and_long_ones_are_skipped() {
    let trace = "0,a,1000\n300000000000000000,b,300000000000000000\n";
    let client = json!({
        "hash": 1, "threads": 1, "calls": 3, "exec_ns": 100_000_000_000_000_000_u64,
        "think_ns": 200_000_000_000_000_000_u64,
        "initial_seats": 1, "final_seats": 3, "pad_ns": 10_000_000_000_000_000_u64,
    });
    let workload = json!({
        "level": "shop", "currentLimit": 1, "duration_ns": 300_000_000_000_000_000_u64,
        "clients": [client],
    });
    let files = [
        ("levels.yaml", LEVELS),
        ("trace.csv", trace),
        ("load.json", &workload.to_string()),
    ];
    for mode in [&[][..], &["--exact"]] {
        let report = json_of(&files, &[&["--trace", "trace.csv"], mode].concat());
        assert_eq!(report["endNs"], 600_000_000_000_000_000_u64, "{mode:?}");
        let report = json_of(&files, &[&["--workload", "load.json"], mode].concat());
        assert_eq!(report["clients"][0]["executions"], 3, "{mode:?}");
        // Three seats for a time are one seat for three times as long.
        assert_eq!(report["endNs"], 730_000_000_000_000_000_u64, "{mode:?}");
    }
    let absurd = [
        (
            "pad_ns",
            json!(300_000_000_000_000_000_u64),
            "pad_ns: must be at most ten years",
        ),
        (
            "initial_seats",
            json!(2_000_000),
            "initial_seats: must be 1 to 1000000",
        ),
        (
            "final_seats",
            json!(2_000_000),
            "final_seats: must be at most 1000000",
        ),
        ("calls", json!(4_000_000_000_u32), "clients: connections"),
    ];
    for (field, value, rule) in absurd {
        let mut workload = workload.clone();
        workload["clients"][0][field] = value;
        let text = workload.to_string();
        let files = [("levels.yaml", LEVELS), ("load.json", text.as_str())];
        let error = error_of(&files, &["--workload", "load.json"]);
        assert!(error.contains(rule), "{error}");
    }
}
