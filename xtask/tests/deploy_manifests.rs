//! The Helm chart renders the objects of the kustomize base. Needs what `cargo xtask setup` builds.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use xtask::ebpf::Places;

/// Objects by kind and name.
type Objects = BTreeMap<(String, String), Value>;

#[test]
fn the_chart_is_the_base() {
    assert_same(&kustomize("base"), &helm(&[]));
}

#[test]
fn the_charts_values_do_what_overlays_do() {
    let values = [
        "apiServer.host=192.0.2.10",
        "config.cluster-cidr=10.244.0.0/16",
        "config.detect-local-mode=ClusterCIDR",
        "image.repository=registry.example/node-lb",
        "mountBpfFs=true",
    ];
    assert_same(&kustomize("example"), &helm(&values));
}

/// Three capabilities are enough for the agent. Only the optional mount is privileged.
#[test]
fn the_agent_is_not_privileged() {
    let objects = kustomize("base");
    let daemonset = &objects[&("DaemonSet".to_owned(), "node-lb".to_owned())];
    let pod = &daemonset["spec"]["template"]["spec"];
    assert_eq!(pod["initContainers"], Value::Null);
    let context = &pod["containers"][0]["securityContext"];
    assert_eq!(context["privileged"], false);
    assert_eq!(
        context["capabilities"],
        serde_json::json!({ "drop": ["ALL"], "add": ["BPF", "PERFMON", "NET_ADMIN"] })
    );
    for mount in pod["containers"][0]["volumeMounts"].as_array().unwrap() {
        // Only privileged containers may have it.
        assert_ne!(mount["mountPropagation"], "Bidirectional", "{mount}");
    }
}

#[track_caller]
fn assert_same(base: &Objects, chart: &Objects) {
    let names = |objects: &Objects| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(base), names(chart));
    for (name, object) in base {
        let rendered = &chart[name];
        assert!(
            rendered == object,
            "{name:?}: {rendered:#}\n\nis not\n\n{object:#}"
        );
    }
}

fn kustomize(directory: &str) -> Objects {
    let mut command = program("kubectl");
    command.arg("kustomize").arg(deploy().join(directory));
    objects(&output(command))
}

fn helm(values: &[&str]) -> Objects {
    let mut command = program("helm");
    command.arg("template").arg("node-lb");
    command.arg(deploy().join("chart/node-lb"));
    command.args(["--namespace", "kube-system", "--include-crds"]);
    // A Helm that is built from its module does not know the Kubernetes version that it is made
    // for.
    command.args(["--kube-version", "1.36.0"]);
    for value in values {
        command.args(["--set", value]);
    }
    let mut objects = objects(&output(command));
    // The only difference: Helm has no other way to roll out a change of the settings.
    let daemonset = objects.get_mut(&("DaemonSet".to_owned(), "node-lb".to_owned()));
    let metadata = &mut daemonset.expect("a DaemonSet")["spec"]["template"]["metadata"];
    let annotations = metadata.as_object_mut().unwrap().remove("annotations");
    assert!(annotations.unwrap()["checksum/config"].is_string());
    objects
}

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn program(name: &str) -> Command {
    let path = Places::from_env().cluster_programs().join(name);
    assert!(
        path.is_file(),
        "no {}: run `cargo xtask setup`",
        path.display()
    );
    Command::new(path)
}

#[track_caller]
fn output(mut command: Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn objects(documents: &str) -> Objects {
    let documents: Vec<Value> = serde_saphyr::from_multiple(documents).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    documents
        .into_iter()
        .filter(|document| !document.is_null())
        .map(|object| {
            (
                (text(&object["kind"]), text(&object["metadata"]["name"])),
                object,
            )
        })
        .collect()
}
