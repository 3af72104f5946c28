//! `node-lb explain --across-nodes`: a way through the cluster as an operator reads it.

use serde_json::{Value, json};

use super::{NODE, WEB};
use crate::{Files, stderr, stdout};

const OTHERS: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-2}
spec: {podCIDRs: [10.0.1.0/24, 'fd00:20::/64']}
status: {addresses: [{type: InternalIP, address: 192.168.0.3}, {type: InternalIP, address: '2001:db8::3'}]}
---
apiVersion: v1
kind: Node
metadata: {name: node-3}
status: {addresses: [{type: InternalIP, address: 192.168.0.4}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: client}
spec: {nodeName: node-1}
status: {podIPs: [{ip: 10.0.0.7}, {ip: 'fd00:10::7'}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: host}
spec: {nodeName: node-1, hostNetwork: true}
status: {podIPs: [{ip: 192.168.0.2}]}
";

const EXPLAIN: [&str; 4] = ["explain", "--source", "dir:.", "--across-nodes"];
const CLUSTER_CIDR: [&str; 2] = ["--cluster-cidr", "10.0.0.0/16,fd00:10::/32"];

fn manifests() -> Files {
    Files::numbered(&[NODE, WEB, OTHERS])
}

fn said(arguments: &[&str]) -> String {
    let output = manifests().run(&[&EXPLAIN, arguments, &CLUSTER_CIDR].concat());
    assert_eq!(stderr(&output), "", "{arguments:?}");
    stdout(&output).to_owned()
}

#[test]
fn a_pods_way_is_told_from_node_to_node() {
    let expected = "\
10.0.0.7 is a pod on node node-1.

First, on node node-1:
  TCP from 10.0.0.7 (a local pod) to 172.30.0.1:80 is forwarded (opened).
  172.30.0.1:80 is the cluster IP of Service shop/web:http.
  internalTrafficPolicy is Cluster: endpoints on any node serve it.
  One of 2 is picked at random: 10.0.0.1:8080, 10.0.1.1:8080.
  The source address is kept.

  To 10.0.0.1:8080, a pod on this node:
    The endpoint sees 10.0.0.7 as its client.
    Answers come back by node-1, which gives them the address that the client has asked for.

  To 10.0.1.1:8080, a pod on node node-2:
    The packet leaves node-1 with the source 10.0.0.7.
    On node-2 it is to no Service, and node-lb leaves it alone (not-service): the endpoint sees 10.0.0.7 as its client.
    Answers come back by node-1, which gives them the address that the client has asked for.

This takes for granted:
- The agents of node-1, node-2 have the settings given here, and this version of node-lb.
- These nodes have the addresses of their Node objects, and no others.
- Nothing else translates between nodes, such as a CNI's masquerade.
";
    assert_eq!(
        said(&["--from", "10.0.0.7", "--to", "172.30.0.1:80"]),
        expected
    );
    // The pod's name stands for its address.
    assert_eq!(
        said(&["--from-pod", "shop/client", "--to", "172.30.0.1:80"]),
        expected
    );
    let of_v6 = said(&["--from-pod", "shop/client", "--to", "[fd00::1]:80"]);
    assert!(
        of_v6.starts_with("fd00:10::7 is a pod on node node-1."),
        "{of_v6}"
    );
}

#[test]
fn what_goes_wrong_is_told() {
    let text = said(&["--from", "203.0.113.9", "--to", "192.168.0.4:30080"]);
    let lines = "
First, on node node-3:
  TCP from 203.0.113.9 (outside) to 192.168.0.4:30080 is dropped (no-local-endpoints).
";
    assert!(text.contains(lines), "{text}");
    let problem = "  PROBLEM: usable endpoints are on node-1, node-2;";
    assert!(text.contains(problem), "{text}");
}

/// Twenty endpoints on each of two nodes.
#[test]
fn many_endpoints_of_one_node_share_a_paragraph() {
    let endpoints = (1..=20).flat_map(|last| {
        [(0, "node-1"), (1, "node-2")]
            .map(|(net, node)| format!("- {{addresses: [10.0.{net}.{last}], nodeName: {node}}}\n"))
    });
    let endpoints: String = endpoints.collect();
    let two = "- {addresses: [10.0.1.1], nodeName: node-2}\n- {addresses: [10.0.0.1], nodeName: node-1}\n";
    assert!(WEB.contains(two));
    let manifests = Files::numbered(&[NODE, &WEB.replace(two, &endpoints), OTHERS]);
    let packet = ["--from", "10.0.0.77", "--to", "172.30.0.1:80"];
    let output = manifests.run(&[&EXPLAIN, &packet[..], &CLUSTER_CIDR].concat());
    let text = stdout(&output);
    assert_eq!(text.matches("\n  To ").count(), 2, "{text}");
    for paragraph in [
        "10.0.0.5:8080 or one of 4 more, a pod on this node:",
        "10.0.1.5:8080 or one of 4 more, a pod on node node-2:",
    ] {
        assert!(text.contains(paragraph), "{text}");
    }
}

#[test]
fn json_has_the_whole_way() {
    let arguments = ["--from-pod", "shop/client", "--to", "172.30.0.1:80"];
    let arguments = [&EXPLAIN[..], &arguments, &CLUSTER_CIDR].concat();
    let (way, _) = manifests().json(&arguments);
    assert_eq!(way["client"], json!({"kind": "pod", "node": "node-1"}));
    assert_eq!(way["first"]["decision"]["verdict"], "forward");
    let remote = &way["first"]["onward"][1];
    assert_eq!(remote["place"], json!({"kind": "pod", "node": "node-2"}));
    assert_eq!(
        (&remote["from"], &remote["to"]),
        (&json!("10.0.0.7"), &json!("10.0.1.1:8080"))
    );
    assert_eq!(remote["then"]["decision"]["reason"], "not-service");
    assert_eq!(remote["answer"], "flow");
}

/// As the plugin of kubectl does, with agents that do what the command says of their nodes.
#[test]
fn a_live_way_is_told_when_all_agents_have_been_asked() {
    let manifests = manifests();
    let packet = ["--from", "10.0.0.7", "--to", "172.30.0.1:80"];
    let told = |answers: &[Value], more: &[&str]| {
        let lines: Vec<_> = answers.iter().map(Value::to_string).collect();
        let answers = Files::new(&[("answers.json", &lines.join("\n"))]);
        let answers = answers.path().join("answers.json");
        let answers = ["--answers", answers.to_str().unwrap()];
        let arguments = [&EXPLAIN[..], &packet, &CLUSTER_CIDR, &answers, more].concat();
        let output = manifests.run(&arguments);
        assert_eq!(stderr(&output), "");
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), text)
    };
    let (code, asked) = told(&[], &[]);
    let first = "node-1 10.0.0.7 172.30.0.1:80/tcp\n";
    assert_eq!((code, &*asked), (Some(4), first));
    let answer = |line: &str, answers: bool| {
        let mut words = line.split(' ');
        let [node, from, to] = std::array::from_fn(|_| words.next().unwrap());
        let asked = ["explain", "--source", "dir:.", "--node", node];
        let asked = [&asked[..], &["--from", from, "--to", to], &CLUSTER_CIDR].concat();
        let (report, _) = manifests.json(&asked);
        let report = Some(report).filter(|_| answers);
        json!({"node": node, "from": from, "to": to, "report": report})
    };
    let mut answers = vec![answer(asked.trim(), true)];
    let (code, asked) = told(&answers, &[]);
    let second = "node-2 10.0.0.7 10.0.1.1:8080/tcp\n";
    assert_eq!((code, &*asked), (Some(4), second));

    answers.push(answer(asked.trim(), true));
    let (code, text) = told(&answers, &[]);
    assert_eq!(code, Some(0));
    let by_source = said(&packet);
    let (way, _) = by_source.split_once("\nThis takes").unwrap();
    assert!(text.starts_with(way), "{text}");
    assert!(!text.contains("settings"), "{text}");
    let (_, json) = told(&answers, &["-o", "json"]);
    assert!(json.contains("\"first\""), "{json}");

    answers[1] = answer(asked.trim(), false);
    let (code, text) = told(&answers, &[]);
    assert_eq!(code, Some(0));
    let problem = "PROBLEM: the agent of node node-2 has said nothing";
    assert!(text.contains(problem), "{text}");
}

#[test]
fn a_way_that_cannot_be_told_says_why() {
    for (arguments, reason) in [
        (
            &["--from", "203.0.113.9", "--to", "192.0.2.10:80"][..],
            "--via NODE",
        ),
        (
            &["--from-pod", "shop/none", "--to", "172.30.0.1:80"],
            "no pod shop/none",
        ),
        (
            &["--from-pod", "shop/host", "--to", "172.30.0.1:80"],
            "give the node's address as --from",
        ),
        (
            &[
                "--from",
                "203.0.113.9",
                "--to",
                "192.0.2.10:80",
                "--via",
                "node-9",
            ],
            "no Node \"node-9\"",
        ),
        (
            &["--from", "10.0.0.7", "--to", "[fd00::1]:80"],
            "not of one IP family",
        ),
    ] {
        let output = manifests().run(&[&EXPLAIN, arguments, &CLUSTER_CIDR].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let error = stderr(&output);
        assert!(error.contains(reason), "{arguments:?}: {error}");
    }
}
