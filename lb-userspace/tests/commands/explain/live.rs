//! `node-lb explain --live`: what the agent says.

use serde_json::{Value, json};

use super::{DB, NODE, NODE_CIDR, WEB, explain, explain_json};
use crate::{Files, beside_an_agent_of, stderr, stdout};

/// What `explain --live` prints beside an agent that gives this answer.
fn live(answer: &Value, packet: [&str; 2], more: &[&str]) -> (String, String) {
    let [from, to] = packet;
    let (_, port) = to.split_once(':').unwrap();
    let path = format!("/explain?from={from}&to=172.30.0.1%3A{port}%2Ftcp");
    beside_an_agent_of(&path, answer, |socket| {
        let asked = ["explain", "--live", "--from", from, "--to", to];
        let arguments = [&asked[..], &["--socket", socket], more].concat();
        let output = Files::new(&[]).run(&arguments);
        let said = String::from_utf8(output.stdout.clone()).unwrap();
        (said, stderr(&output).to_owned())
    })
}

#[test]
fn the_agents_answer_reads_as_the_commands_own() {
    let manifests = Files::numbered(&[NODE, WEB, DB]);
    for from in ["203.0.113.9", "10.0.0.7", "10.0.0.1"] {
        for to in ["172.30.0.1:80", "172.30.0.1:81"] {
            let packet = ["--from", from, "--to", to];
            let packet = [&packet[..], &NODE_CIDR].concat();
            let (json, text) = (
                explain_json(&manifests, &packet),
                explain(&manifests, &packet),
            );
            let (said, _) = live(&json, [from, to], &[]);
            assert_eq!(said, stdout(&text));
            let (said, _) = live(&json, [from, to], &["-o", "json"]);
            assert_eq!(serde_json::from_str::<Value>(&said).unwrap(), json);
        }
    }
}

#[test]
fn an_answer_of_another_version_is_told() {
    let (said, error) = live(
        &json!({"verdict": "forward", "reason": "opened"}),
        ["10.0.0.7", "172.30.0.1:80"],
        &[],
    );
    assert_eq!(said, "");
    assert!(error.contains("is it of another version?"), "{error}");
}

#[test]
fn without_an_agent_it_fails() {
    let nowhere = ["--socket", "/nonexistent/agent.sock"];
    let asked = ["explain", "--live", "--from", "10.0.0.7", "--to"];
    let output = Files::new(&[]).run(&[&asked[..], &["172.30.0.1:80"], &nowhere].concat());
    assert_eq!(output.status.code(), Some(1));
    let error = stderr(&output);
    assert!(error.contains("/nonexistent/agent.sock"), "{error}");
}
