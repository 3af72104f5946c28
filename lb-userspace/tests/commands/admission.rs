//! `node-lb admission` as an operator runs it.

use std::{fs, process::Output};

use lb_admission::flow_hash::FlowHasher;
use serde_json::{Value, json};

use crate::{Files, stderr, stdout};

const CONFIGURATION: &str = "
apiVersion: node-lb.io/v1alpha1
kind: PriorityLevel
metadata: {name: shop}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 15
    lendablePercent: 50
    borrowingLimitPercent: 10
    limitResponse: {type: Queue, queuing: {queues: 64, handSize: 6}}
---
apiVersion: node-lb.io/v1alpha1
kind: FlowSchema
metadata: {name: shop}
spec:
  priorityLevelConfiguration: {name: shop}
  matchingPrecedence: 500
  distinguisherMethod: {type: BySourceServiceAccount}
  rules:
  - subjects: [{kind: Namespace, namespace: {name: shop}}]
    destinations: [{namespaces: [shop]}]
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {clusterIP: 10.96.0.7, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: db}
spec: {clusterIP: 10.96.0.8, ports: [{name: a, port: 1}, {name: b, port: 2}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: cart-0}
spec: {serviceAccountName: cart, nodeName: worker-1, containers: []}
status: {podIP: 10.1.2.3, podIPs: [{ip: 10.1.2.3}]}
";

const INVALID: &str = "
kind: PriorityLevel
metadata: {name: bad}
spec: {type: Limited, limited: {lendablePercent: 101, limitResponse: {type: Wait}}}
";

fn run(files: &Files, arguments: &[&str]) -> Output {
    files.run(&[&["admission"], arguments].concat())
}

fn json(files: &Files, arguments: &[&str]) -> (Value, Output) {
    files.json(&[&["admission"], arguments].concat())
}

#[test]
fn plan_has_the_limits_of_every_level() {
    let files = Files::new(&[("a.yaml", CONFIGURATION)]);
    for command in ["plan", "check"] {
        let (report, output) = json(&files, &[command, "-f", "a.yaml", "--concurrency", "400"]);
        assert!(output.status.success());
        assert_eq!(stderr(&output), "");
        let level = |name: &str, type_: &str, seats: [u32; 5], max_seats: Value| {
            let [nominal, min, max, lendable, borrowing] = seats;
            json!({
                "name": name, "type": type_, "nominal": nominal, "min": min, "max": max,
                "lendable": lendable, "borrowing": borrowing, "maxSeats": max_seats,
            })
        };
        assert_eq!(
            report,
            json!({
                "levels": [
                    level("catch-all", "Limited", [100, 100, 500, 0, 400], Value::Null),
                    level("exempt", "Exempt", [0, 0, 400, 0, 400], Value::Null),
                    level("shop", "Limited", [300, 150, 330, 150, 30], json!(45)),
                ],
                "errors": [],
            })
        );
    }
    let table = run(&files, &["plan", "-f", "a.yaml", "--concurrency", "400"]);
    assert_eq!(
        stdout(&table),
        "\
LEVEL      TYPE     NOMINAL  MIN  MAX  LENDABLE  BORROWING  MAX SEATS
catch-all  Limited      100  100  500         0        400          -
exempt     Exempt         0    0  400         0        400          -
shop       Limited      300  150  330       150         30         45
"
    );
    let check = run(&files, &["check", "-f", "a.yaml"]);
    assert_eq!(
        stdout(&check),
        "3 priority levels, 3 flow schemas: all valid\n"
    );
}

#[test]
fn errors_are_listed_and_told_by_the_exit_code() {
    let files = Files::new(&[
        ("a.yaml", CONFIGURATION),
        ("b.yaml", INVALID),
        ("c.yaml", "kind: ["),
    ]);
    let of_bad = [
        (
            "spec.limited.lendablePercent",
            "101 must be between 0 and 100",
        ),
        (
            "spec.limited.limitResponse.type",
            "\"Wait\" must be one of Queue, Reject",
        ),
    ];
    for command in ["plan", "check"] {
        let (report, output) = json(&files, &[command, "-f", "a.yaml", "-f", "b.yaml"]);
        assert_eq!(output.status.code(), Some(1));
        let errors = of_bad.map(|(field, message)| {
            json!({"object": "PriorityLevel/bad", "field": field, "message": message})
        });
        assert_eq!(report["errors"], json!(errors));
        assert_eq!(
            report["levels"].as_array().unwrap().len(),
            3,
            "the rest is planned"
        );
    }

    let check = run(&files, &["check", "-f", "."]);
    assert_eq!(check.status.code(), Some(1));
    let lines: Vec<_> = stdout(&check).lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[2].starts_with("./c.yaml: line 1: "), "{lines:?}");
    let told = "error: the configuration has 3 errors; see docs/admission.md#what-is-checked\n";
    assert_eq!(stderr(&check), told);

    let twice = run(&files, &["check", "-f", "a.yaml", "-f", "a.yaml"]);
    let told =
        "PriorityLevel/shop: metadata.name: is taken: such an object comes before, in a.yaml:2";
    assert!(stdout(&twice).contains(told), "{}", stdout(&twice));
}

#[test]
fn what_works_but_was_hardly_meant_is_a_warning() {
    let files = Files::new(&[(
        "a.yaml",
        "{kind: FlowSchema, metadata: {name: lost}, spec: {priorityLevelConfiguration: {name: nowhere}, linger: 1h}}",
    )]);
    let output = run(&files, &["check", "-f", "a.yaml"]);
    assert!(output.status.success());
    assert_eq!(
        stderr(&output),
        "warning: FlowSchema/lost: spec.linger: is taken as 10s, the maximum\n\
         warning: FlowSchema/lost: Dangling: there is no PriorityLevel \"nowhere\", so it takes no connections\n"
    );
}

#[test]
fn explain_says_which_flow_and_why() {
    let files = Files::new(&[("a.yaml", CONFIGURATION)]);
    let (report, _) = json(
        &files,
        &[
            "explain", "-f", "a.yaml", "--from", "10.1.2.3", "--to", "shop/web",
        ],
    );
    let hand = report["hand"].as_array().unwrap();
    assert_eq!(hand.len(), 6);
    let hash = report["hash"].as_u64().unwrap();
    assert_eq!(hash, FlowHasher::Exact.hash("shop", b"shop/cart"));
    assert_eq!(
        report,
        json!({
            "flowSchema": "shop",
            "matchingPrecedence": 500,
            "priorityLevel": "shop",
            "type": "Limited",
            "limitResponse": "Queue",
            "distinguisher": "shop/cart",
            "hash": report["hash"],
            "hand": hand,
            "seats": 1,
            "passedOver": [{
                "flowSchema": "exempt",
                "matchingPrecedence": 1,
                "reasons": ["rules[0]: namespace shop is not among the destinations"],
            }],
            "dangling": [],
        })
    );

    let (external, _) = json(
        &files,
        &[
            "explain",
            "-f",
            "a.yaml",
            "--from",
            "10.1.2.3",
            "--to",
            "default/kubernetes",
            "--ingress",
            "external",
        ],
    );
    assert_eq!(external["flowSchema"], "catch-all");
    assert_eq!(external["hand"], Value::Null);
    assert_eq!(
        external["passedOver"],
        json!([
            {"flowSchema": "exempt", "matchingPrecedence": 1,
             "reasons": ["rules[0]: ingress external is not among its own"]},
            {"flowSchema": "shop", "matchingPrecedence": 500,
             "reasons": ["rules[0]: namespace default is not among the destinations"]},
        ])
    );
    let (api, _) = json(
        &files,
        &[
            "explain",
            "-f",
            "a.yaml",
            "--from",
            "10.1.2.3",
            "--to",
            "default/kubernetes:443",
            "--ingress",
            "node",
        ],
    );
    assert_eq!(
        (&api["priorityLevel"], &api["type"]),
        (&json!("exempt"), &json!("Exempt"))
    );

    let unknown = run(
        &files,
        &[
            "explain",
            "-f",
            "a.yaml",
            "--from",
            "192.0.2.1",
            "--to",
            "shop/web:80",
        ],
    );
    assert_eq!(
        stdout(&unknown),
        "\
192.0.2.1 (external) to shop/web:80 TCP
  Flow schema     catch-all, precedence 10000
  Priority level  catch-all, refuses connections without a free seat
  Not by          exempt: rules[0]: ingress external is not among its own
  Not by          shop: rules[0]: 192.0.2.1, of unknown identity, is not among the subjects
"
    );
}

#[test]
fn explain_needs_a_port_where_there_are_several() {
    let files = Files::new(&[("a.yaml", CONFIGURATION)]);
    let explain = |to: &str| {
        run(
            &files,
            &["explain", "-f", "a.yaml", "--from", "192.0.2.1", "--to", to],
        )
    };
    let several = explain("shop/db");
    assert_eq!(several.status.code(), Some(1));
    assert!(
        stderr(&several).contains("write one of 1, 2"),
        "{}",
        stderr(&several)
    );
    assert!(explain("shop/db:2").status.success());
    let missing = explain("shop/db:3");
    assert!(missing.status.success());
    assert!(
        stderr(&missing).contains("no such port"),
        "{}",
        stderr(&missing)
    );
}

#[test]
fn suggested_configuration_is_the_default() {
    let files = Files::new(&[]);
    let defaults = run(&files, &["defaults"]);
    fs::write(files.path().join("a.yaml"), &defaults.stdout).unwrap();
    let (without, _) = json(&files, &["plan"]);
    let (with, output) = json(&files, &["plan", "-f", "a.yaml"]);
    assert_eq!(without, with);
    assert_eq!(with["errors"], json!([]));
    assert_eq!(stderr(&output), "");
}

#[test]
fn definitions_are_printed_as_one_stream() {
    let output = run(&Files::new(&[]), &["crds"]);
    let [levels, schemas] = [
        include_str!("../../../deploy/crds/prioritylevels.yaml"),
        include_str!("../../../deploy/crds/flowschemas.yaml"),
    ];
    assert_eq!(stdout(&output), format!("---\n{levels}---\n{schemas}"));
}

#[test]
fn what_cannot_work_fails_with_a_reason() {
    let files = Files::new(&[]);
    for (arguments, code, reason) in [
        (&["plan", "-f", "missing.yaml"][..], 1, "missing.yaml"),
        (&["plan", "--concurrency", "0"], 2, "--concurrency"),
        (
            &["explain", "--from", "10.0.0.1", "--to", "web"],
            2,
            "NAMESPACE/SERVICE",
        ),
        (
            &["explain", "--from", "here", "--to", "shop/web"],
            2,
            "--from",
        ),
    ] {
        let output = run(&files, arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(
            stderr(&output).contains(reason),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}

/// `node-lb admission check 2>&1 | head` closes standard output and error before all is printed.
#[test]
fn output_that_nobody_reads_is_no_crash() {
    let files = Files::new(&[("b.yaml", INVALID)]);
    for command in ["plan", "check"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = files
            .command(&["admission", command, "-f", "b.yaml"])
            .stdout(writer.try_clone().unwrap())
            .stderr(writer)
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(1), "{command}");
    }
}

#[test]
fn explain_shows_no_more_seats_than_the_level_allows() {
    let wide = CONFIGURATION.replace("matchingPrecedence: 500", "seats: 5");
    let files = Files::new(&[("a.yaml", &wide)]);
    // 15 of 20 shares, and at most a sixth of these for one connection: 30 seats allow 3, 60 allow
    // 5 and more.
    for (concurrency, seats) in [("24", 3), ("80", 5)] {
        let (report, output) = json(
            &files,
            &[
                "explain",
                "-f",
                "a.yaml",
                "--concurrency",
                concurrency,
                "--from",
                "10.1.2.3",
                "--to",
                "shop/web",
            ],
        );
        assert_eq!(report["seats"], seats);
        let is_warned = stderr(&output).contains("SeatsCut");
        assert_eq!(is_warned, seats < 5, "{}", stderr(&output));
    }
}
