//! The plugin of kubectl, with a kubectl that knows two nodes.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

const PLUGIN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../deploy/kubectl/kubectl-node_lb"
);

/// An agent on each of two nodes, and on the first one also its successor. What needs attention on the
/// second, `exec` says by its exit status.
const KUBECTL: &str = r#"#!/bin/sh
case "$*" in
    "get pods --namespace kube-system --selector app.kubernetes.io/name=node-lb "*)
        printf 'worker.1 lb-a\nworker.1 lb-b\nworkers1 lb-c\n' ;;
    "get pod --namespace shop web "*podIPs*) printf '10.244.1.7\nfd00:10::7\n' ;;
    "get pod --namespace shop web "*) printf 'workers1' ;;
    "get pod --namespace shop new "*) ;;
    "get endpointslices --namespace shop --selector kubernetes.io/service-name=web "*)
        printf 'worker.1\nworkers1\nworker.1\n' ;;
    *" --answers -")
        answers=$(cat)
        case $answers in
            '') echo 'workers1 10.244.1.7 10.96.0.1:80/tcp veth'; exit 4 ;;
            *'"node":"worker.2"'*) echo "$answers" ;;
            *) printf 'worker.1 10.244.1.7 10.244.2.4:8080/tcp\nworker.2 10.244.1.7 10.244.3.4:8080/tcp\n'; exit 4 ;;
        esac ;;
    *" explain --live --output json --from "*) echo "{\"asked\": \"$*\"}" ;;
    "exec "*)
        echo "$*"
        case "$*" in *" lb-c -- "*) exit 3 ;; esac ;;
esac
"#;

fn plugin(arguments: &[&str]) -> Output {
    let directory = TempDir::new().unwrap();
    write_program(&directory.path().join("kubectl"));
    let path = format!(
        "{}:{}",
        directory.path().display(),
        env::var("PATH").unwrap()
    );
    let mut command = Command::new(PLUGIN);
    let command = command.args(arguments).env("PATH", path);
    command.env_remove("NODE_LB_NAMESPACE").output().unwrap()
}

fn write_program(path: &Path) {
    fs::write(path, KUBECTL).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The pods that a command ran in, and its exit status.
fn ran_in(arguments: &[&str]) -> (Vec<String>, Option<i32>) {
    let output = plugin(arguments);
    let told = String::from_utf8(output.stdout).unwrap();
    let pods = told.lines().map(|line| {
        let run = line.strip_prefix("exec --namespace kube-system --container agent ");
        let (pod, command) = run.unwrap().split_once(" -- ").unwrap();
        assert_eq!(command, "node-lb status -o json");
        pod.to_owned()
    });
    (pods.collect(), output.status.code())
}

#[test]
fn a_command_runs_where_it_is_told_to() {
    let cases: [(&[&str], &[&str], i32); 5] = [
        (&[], &["lb-a", "lb-c"], 3),
        (&["--node", "worker.1"], &["lb-a"], 0),
        (&["--node", "workers1"], &["lb-c"], 3),
        (&["--pod", "shop/web"], &["lb-c"], 3),
        (&["--service", "shop/web"], &["lb-a", "lb-c"], 3),
    ];
    for (place, pods, code) in cases {
        let ran = ran_in(&[place, &["status", "-o", "json"]].concat());
        let pods: Vec<_> = pods.iter().map(|&pod| pod.to_owned()).collect();
        assert_eq!(ran, (pods, Some(code)), "{place:?}");
    }
}

#[test]
fn the_way_from_a_pod_is_told_on_its_node() {
    let whole = "--node workers1 --config /etc/node-lb/config.yaml";
    for (arguments, expected) in [
        (
            &[
                "--from-pod",
                "shop/web",
                "--to",
                "10.96.0.1:80",
                "-o",
                "json",
            ][..],
            "--to 10.96.0.1:80 -o json --from 10.244.1.7 --from-node workers1",
        ),
        (
            &["-o", "json", "--to=[fd00::1]:80", "--from-pod=shop/web"],
            "-o json --to=[fd00::1]:80 --from fd00:10::7 --from-node workers1",
        ),
    ] {
        let output = plugin(&[&["explain"], arguments].concat());
        let told = String::from_utf8(output.stdout).unwrap();
        let run = "exec --namespace kube-system --container agent lb-c -- node-lb explain";
        assert_eq!(told, format!("{run} {expected} {whole}\n"));
    }
    // From an address, it is asked where that is said.
    let output = plugin(&["--node", "worker.1", "explain", "--from", "10.244.1.7"]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(
        told.ends_with(" lb-a -- node-lb explain --from 10.244.1.7\n"),
        "{told}"
    );
    for (pod, expected) in [
        ("shop/new", "pod shop/new is on no node yet"),
        ("web", "web is not NAMESPACE/NAME"),
    ] {
        let output = plugin(&["explain", "--from-pod", pod, "--to", "10.96.0.1:80"]);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains(expected), "{told}");
        assert_eq!((output.status.code(), output.stdout), (Some(1), Vec::new()));
    }
}

/// Until the command on the first node has nothing left to ask for. On one node no agent runs.
#[test]
fn a_live_way_asks_the_agents_of_its_nodes() {
    let output = plugin(&[
        "explain",
        "--live",
        "--from-pod",
        "shop/web",
        "--to",
        "10.96.0.1:80",
    ]);
    assert_eq!(output.status.code(), Some(0));
    let told = String::from_utf8(output.stdout).unwrap();
    let answers = told.lines().map(|line| {
        let answer: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| answer[name].as_str().unwrap().to_owned();
        let asked = answer["report"]["asked"].as_str().map(str::to_owned);
        (text("node"), text("from"), text("to"), asked)
    });
    let answers: Vec<_> = answers.collect();
    let asked = |pod: &str, to: &str| {
        let run = "exec --namespace kube-system --container agent";
        let question = "explain --live --output json --from 10.244.1.7 --to";
        format!("{run} {pod} -- node-lb {question} {to}")
    };
    let expected = [
        (
            "workers1",
            "10.96.0.1:80/tcp",
            Some(asked("lb-c", "10.96.0.1:80/tcp --interface veth")),
        ),
        (
            "worker.1",
            "10.244.2.4:8080/tcp",
            Some(asked("lb-a", "10.244.2.4:8080/tcp")),
        ),
        ("worker.2", "10.244.3.4:8080/tcp", None),
    ];
    let expected = expected.map(|(node, to, asked)| {
        (
            node.to_owned(),
            "10.244.1.7".to_owned(),
            to.to_owned(),
            asked,
        )
    });
    assert_eq!(answers, expected);
}

#[test]
fn what_cannot_be_is_said_before_anything_runs() {
    let cases: [(&[&str], &str); 6] = [
        (&["--node", "worker"], "no agent runs on node worker"),
        (&["--pod", "shop/new"], "pod shop/new is on no node yet"),
        (&["--pod", "web"], "web is not NAMESPACE/NAME"),
        (
            &["--service", "shop/none"],
            "Service shop/none has no endpoints",
        ),
        (&["--nodes", "worker.1"], "--nodes is unknown"),
        (&["--node"], "--node needs a name, and a command"),
    ];
    for (place, expected) in cases {
        let output = plugin(&[place, &["status"]].concat());
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains(expected), "{place:?}: {told}");
        assert_eq!((output.status.code(), output.stdout), (Some(1), Vec::new()));
    }
}

#[test]
fn alone_it_says_how_it_is_used() {
    for arguments in [&[][..], &["--help"]] {
        let output = plugin(arguments);
        assert!(output.status.success());
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(told.contains("Usage: kubectl node-lb"), "{told}");
    }
}
