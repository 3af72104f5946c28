//! What commands make of recorded connections: `simulate` classifies them, `suggest` proposes
//! levels for them.

use std::fs;

use serde_json::{Value, json};

use crate::{Files, stderr, stdout};

const SECOND: u64 = 1_000_000_000;

/// A line of a recording.
fn connection(t_ns: u64, hold_ns: u64, source: &str, namespace: &str) -> String {
    let line = json!({
        "t_ns": t_ns, "hold_ns": hold_ns, "source": source, "ingress": "Pod",
        "namespace": namespace, "service": "web", "port": 80, "protocol": "TCP",
        "address": "10.96.0.10",
    });
    format!("{line}\n")
}

/// Two tenants for a hundred seconds: forty connections of `noisy` are open at any time, three of
/// `quiet`, and five hundred more of `noisy` for a moment.
fn recording() -> String {
    let mut lines = vec![];
    for second in 0..100 {
        for n in 0..40 {
            let source = format!("10.244.1.{n}");
            lines.push((
                second * SECOND + n,
                connection(second * SECOND + n, SECOND, &source, "noisy"),
            ));
        }
    }
    for n in 0..3 {
        lines.push((n, connection(n, 100 * SECOND, "10.244.2.1", "quiet")));
    }
    for n in 0..500 {
        let at = 50 * SECOND + SECOND / 2 + n;
        lines.push((at, connection(at, SECOND / 10, "10.244.1.9", "noisy")));
    }
    lines.sort();
    let lines: String = lines.into_iter().map(|(_, line)| line).collect();
    format!("# node-lb admission record: 4503 connections\n{lines}")
}

const TENANTS: &str = "
apiVersion: node-lb.io/v1alpha1
kind: PriorityLevel
metadata: {name: tenants}
spec:
  type: Limited
  limited:
    limitResponse: {type: Queue, queuing: {queues: 64, handSize: 1}}
---
apiVersion: node-lb.io/v1alpha1
kind: FlowSchema
metadata: {name: tenants}
spec:
  priorityLevelConfiguration: {name: tenants}
  distinguisherMethod: {type: BySourceServiceAccount}
  deadlines: {connectPatience: 20s}
  seats: 2
  rules:
  - subjects: [{kind: Namespace, namespace: {name: shop}}]
    destinations: [{namespaces: ['*']}]
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: cart-0}
spec: {serviceAccountName: cart, nodeName: worker-1, containers: []}
status: {podIP: 10.244.1.7, podIPs: [{ip: 10.244.1.7}]}
";

#[track_caller]
fn simulate(files: &Files, arguments: &[&str]) -> Value {
    let command = ["admission", "simulate", "--trace", "recorded"];
    let (report, output) = files.json(&[&command, arguments].concat());
    assert_eq!(stderr(&output), "");
    report
}

#[test]
fn recorded_connections_are_classified_by_the_schemas_that_are_given() {
    let lines = [
        connection(0, 9 * SECOND, "10.244.1.7", "shop"),
        connection(1, 1, "10.244.1.7", "shop"),
        connection(2, 1, "10.244.9.9", "shop"),
    ];
    let files = Files::new(&[("tenants.yaml", TENANTS), ("recorded", &lines.concat())]);
    let arguments = ["-f", "tenants.yaml", "--concurrency", "14"];
    let report = simulate(&files, &arguments);
    let level = |name: &str| {
        let levels = report["levels"].as_array().unwrap();
        levels.iter().find(|level| level["name"] == name).unwrap()
    };
    assert_eq!(level("tenants")["executions"], 2);
    let flow = &level("tenants")["topFlows"][0];
    assert_eq!(flow["name"], "tenants shop/cart", "by the Pod in the file");
    assert_eq!(flow["executions"], 2);
    assert_eq!(level("tenants")["maxSeatsInUse"], 4, "two seats each");
    assert_eq!(level("catch-all")["executions"], 1, "of unknown identity");
}

#[test]
fn they_wait_as_long_as_their_schema_says() {
    let lines = [
        connection(0, 2 * SECOND, "10.244.1.7", "shop"),
        connection(1, 1, "10.244.1.7", "shop"),
    ];
    let one_seat = TENANTS.replace("  seats: 2\n", "");
    let files = Files::new(&[("tenants.yaml", &one_seat), ("recorded", &lines.concat())]);
    let refused = |arguments: &[&str]| {
        let arguments = [&["-f", "tenants.yaml", "--concurrency", "1"], arguments].concat();
        let report = simulate(&files, &arguments);
        report["levels"][0]["rejections"]["time-out"].clone()
    };
    assert_eq!(refused(&[]), 0, "a quarter of 20 s");
    assert_eq!(refused(&["--queue-wait", "1s"]), 1);
}

#[test]
fn what_a_suggestion_gives_is_enough_for_what_was_recorded() {
    let files = Files::new(&[("recorded", &recording())]);
    let output = files.run(&["admission", "suggest", "--trace", "recorded"]);
    let yaml = stdout(&output).to_owned();
    assert!(output.status.success(), "{}", stderr(&output));
    for reason in [
        "# Proposed for 4503 connections in 100 s.",
        "--concurrency 70 ",
        "# 4500 connections: 40.5 open on average, 540 at most, 40 enough for 99 % of the time.",
        "# Lends 50 %: 100 % of its seats' time belonged to connections of less than 5 s.",
        "# From 40 addresses; 10.244.1.9 had the most, 501 at the same time.",
        "# Lends nothing: 0 % of its seats' time",
        "# All came from 10.244.2.1, so there is nothing to queue fairly.",
    ] {
        assert!(yaml.contains(reason), "{reason:?} in {yaml}");
    }
    fs::write(files.path().join("proposed.yaml"), &yaml).unwrap();
    let proposed = ["-f", "proposed.yaml", "--concurrency", "70"];
    let (plan, output) = files.json(&[&["admission", "plan"][..], &proposed].concat());
    assert_eq!((stderr(&output), output.status.success()), ("", true));
    let nominal: Vec<_> = plan["levels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|level| {
            (
                level["name"].as_str().unwrap(),
                level["nominal"].as_u64().unwrap(),
            )
        })
        .collect();
    let expected = [
        ("catch-all", 5),
        ("exempt", 0),
        ("namespace-noisy", 60),
        ("namespace-quiet", 5),
    ];
    assert_eq!(nominal, expected);

    let report = simulate(&files, &proposed);
    let levels = report["levels"].as_array().unwrap();
    let quiet = levels
        .iter()
        .find(|level| level["name"] == "namespace-quiet")
        .unwrap();
    assert_eq!(
        (&quiet["executions"], &quiet["waitNs"]["max"]),
        (&json!(3), &json!(0))
    );
    let noisy = levels
        .iter()
        .find(|level| level["name"] == "namespace-noisy")
        .unwrap();
    assert!(noisy["executions"].as_u64() > Some(4000), "{noisy}");
    assert!(noisy["maxSeatsInUse"].as_u64() <= Some(70), "{noisy}");
}

#[test]
fn a_namespace_may_be_called_anything() {
    let lines =
        ["123", "true", "it's: {odd}"].map(|name| connection(0, SECOND, "10.244.1.1", name));
    let files = Files::new(&[("recorded", &lines.concat())]);
    let output = files.run(&["admission", "suggest", "--trace", "recorded"]);
    fs::write(files.path().join("proposed.yaml"), stdout(&output)).unwrap();
    let proposed = ["-f", "proposed.yaml", "--concurrency", "11"];
    let (plan, output) = files.json(&[&["admission", "plan"][..], &proposed].concat());
    // Kubernetes has no namespace of the last kind, so no name for its objects either.
    let errors = plan["errors"].as_array().unwrap();
    assert!(
        errors
            .iter()
            .all(|error| error["object"].as_str().unwrap().contains("odd")),
        "{plan}"
    );
    assert_eq!(
        plan["levels"].as_array().unwrap().len(),
        4,
        "{}",
        stderr(&output)
    );
}

#[test]
fn what_is_no_recording_is_refused() {
    let files = Files::new(&[
        ("named", "# names only\n0,a,1\n"),
        ("empty", "# nothing\n"),
        ("levels.yaml", TENANTS),
    ]);
    let error = |arguments: &[&str]| {
        let output = files.run(&[&["admission"], arguments].concat());
        assert_eq!((stdout(&output), output.status.code()), ("", Some(1)));
        stderr(&output).to_owned()
    };
    assert_eq!(
        error(&["suggest", "--trace", "named"]),
        "error: named: line 2: only names a flow, and says nothing of its Service\n"
    );
    assert_eq!(
        error(&["suggest", "--trace", "empty"]),
        "error: empty: there are no connections\n"
    );
    assert_eq!(
        error(&["simulate", "--trace", "named"]),
        "error: named: line 2: it names no priority level, and there is not just one: say which with --level\n"
    );
    let missing = error(&["suggest", "--trace", "nowhere"]);
    assert!(
        missing.starts_with("error: cannot read nowhere: "),
        "{missing}"
    );
}
