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
    "get pod --namespace shop web "*) printf 'workers1' ;;
    "get pod --namespace shop new "*) ;;
    "get endpointslices --namespace shop --selector kubernetes.io/service-name=web "*)
        printf 'worker.1\nworkers1\nworker.1\n' ;;
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
