//! The Helm chart renders the objects of the kustomize base, and what watches them. Needs what `cargo xtask
//! setup` builds.

mod monitoring;
mod plugin;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use xtask::ebpf::Places;

const CRD: &str = "CustomResourceDefinition";
/// What Helm's objects are found by.
const HELM_LABELS: [&str; 4] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];

/// Without an agent that starts beside the one before.
const NO_SURGE: &str =
    "updateStrategy.rollingUpdate.maxSurge=0,updateStrategy.rollingUpdate.maxUnavailable=10%";

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
        "image.repository=registry.example/node-lb",
        "mountBpfFs=true",
    ];
    assert_same(&kustomize("example"), &helm(&values));
}

/// To ask whose pods are is a right of its own.
#[test]
fn pods_are_shown_to_agents_only_where_somebody_says_so() {
    let may_ask = |objects: &Objects| {
        let roles = objects
            .iter()
            .filter(|((kind, _), _)| kind == "ClusterRole");
        let mut rules = roles.flat_map(|(_, role)| list(&role["rules"]));
        rules.any(|rule| list(&rule["resources"]).any(|resource| resource == "pods"))
    };
    assert!(!may_ask(&kustomize("base")) && !may_ask(&helm(&[])));
    assert!(may_ask(&helm(&["rbac.pods=true"])));
    let component = kustomize("components/pods");
    assert!(may_ask(&component));
    let binding = &component[&("ClusterRoleBinding".to_owned(), "node-lb-pods".to_owned())];
    let base = &kustomize("base")[&("ClusterRoleBinding".to_owned(), "node-lb".to_owned())];
    assert_eq!(binding["subjects"], base["subjects"]);
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
    for mount in list(&pod["containers"][0]["volumeMounts"]) {
        // Only privileged containers may have it.
        assert_ne!(mount["mountPropagation"], "Bidirectional", "{mount}");
    }
}

/// With a pod more than usual on a node while it is updated, nothing may be what only one of them
/// can have, and only the pod itself says whether it is ready.
#[test]
fn an_update_runs_two_agents_on_a_node() {
    let objects = kustomize("base");
    let spec = &objects[&("DaemonSet".to_owned(), "node-lb".to_owned())]["spec"];
    let update = &spec["updateStrategy"]["rollingUpdate"];
    assert_eq!(*update, json!({ "maxSurge": "10%", "maxUnavailable": 0 }));
    let agent = &spec["template"]["spec"]["containers"][0];
    assert!(list(&agent["args"]).any(|argument| argument == "--take-over"));
    assert_eq!(agent["ports"], Value::Null);
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert_eq!(agent[probe]["exec"]["command"][1], "probe", "{agent:#}");
    }
}

/// Of what is the node's, the agent can change no more than it has to.
#[test]
fn little_of_the_node_is_writable() {
    let objects = kustomize("base");
    let pod = &objects[&("DaemonSet".to_owned(), "node-lb".to_owned())]["spec"]["template"]["spec"];
    let mounts = list(&pod["containers"][0]["volumeMounts"]);
    let writable = mounts.filter(|mount| mount["readOnly"] != true);
    let writable = writable.filter_map(|mount| {
        let mut volumes = list(&pod["volumes"]);
        let volume = volumes.find(|volume| volume["name"] == mount["name"]);
        let volume = volume.unwrap();
        match volume["emptyDir"].is_object() {
            true => None, // the pod's own
            false => Some(volume["hostPath"]["path"].as_str().unwrap()),
        }
    });
    assert_eq!(
        writable.collect::<Vec<_>>(),
        [
            "/sys/fs/bpf/node-lb",
            "/proc/sys/net/netfilter",
            "/run/node-lb"
        ]
    );
}

#[test]
fn names_labels_and_the_image_are_the_users() {
    let digest = format!("sha256:{}", "0a".repeat(32));
    let objects = helm(&[
        "fullnameOverride=balancer",
        "nameOverride=lb",
        "commonLabels.team=net",
        "podLabels.tier=node",
        "podAnnotations.note=x",
        "annotations.owner=y",
        "image.repository=registry.example:5000/net/node-lb",
        &format!("image.digest={digest}"),
        "serviceAccount.annotations.role=z",
        "priorityClassName=",
        "probes.liveness.failureThreshold=9",
    ]);
    let names: Vec<_> = objects.keys().filter(|(kind, _)| kind != CRD).collect();
    assert!(
        names.iter().all(|(_, name)| name.starts_with("balancer")),
        "{names:?}"
    );
    let labelled = names
        .iter()
        .map(|name| &objects[*name]["metadata"]["labels"]);
    for labels in labelled {
        assert_eq!(
            *labels,
            json!({ "app.kubernetes.io/name": "lb", "team": "net" })
        );
    }
    let account = ("ServiceAccount".to_owned(), "balancer".to_owned());
    assert_eq!(
        objects[&account]["metadata"]["annotations"],
        json!({ "role": "z" })
    );

    let daemonset = &objects[&("DaemonSet".to_owned(), "balancer".to_owned())];
    assert_eq!(
        daemonset["metadata"]["annotations"],
        json!({ "owner": "y" })
    );
    let selector = json!({ "app.kubernetes.io/name": "lb" });
    assert_eq!(daemonset["spec"]["selector"]["matchLabels"], selector);
    let template = &daemonset["spec"]["template"];
    let labels = json!({ "app.kubernetes.io/name": "lb", "team": "net", "tier": "node" });
    assert_eq!(template["metadata"]["labels"], labels);
    let pod = &template["spec"];
    assert_eq!(pod["priorityClassName"], Value::Null);
    assert_eq!(pod["serviceAccountName"], "balancer");
    let agent = &pod["containers"][0];
    assert_eq!(
        agent["image"],
        format!("registry.example:5000/net/node-lb@{digest}")
    );
    assert_eq!(agent["livenessProbe"]["failureThreshold"], 9);
    assert_eq!(
        agent["livenessProbe"]["timeoutSeconds"], 5,
        "the others stay"
    );
}

#[test]
fn what_a_cluster_adds_reaches_the_agent() {
    let objects = helm(&[
        "extraArgs={--masquerade-all,--device=eth1}",
        "extraEnv[0].name=NODE_LB_LOG",
        "extraEnv[0].value=debug",
        "extraVolumes[0].name=kubeconfig",
        "extraVolumes[0].hostPath.path=/etc/kubernetes",
        "extraVolumeMounts[0].name=kubeconfig",
        "extraVolumeMounts[0].mountPath=/kubeconfig",
        "namedPorts=true",
        NO_SURGE,
        "metricsPort=10259",
        "config.metrics-bind-address=0.0.0.0:10259",
    ]);
    let pod = &objects[&("DaemonSet".to_owned(), "node-lb".to_owned())]["spec"]["template"]["spec"];
    let agent = &pod["containers"][0];
    let has = |list: &Value, item: Value| list.as_array().unwrap().contains(&item);
    assert!(has(&agent["args"], json!("--device=eth1")), "{agent:#}");
    assert!(has(
        &agent["env"],
        json!({ "name": "NODE_LB_LOG", "value": "debug" })
    ));
    let mount = json!({ "name": "kubeconfig", "mountPath": "/kubeconfig" });
    assert!(has(&agent["volumeMounts"], mount));
    let volume = json!({ "name": "kubeconfig", "hostPath": { "path": "/etc/kubernetes" } });
    assert!(has(&pod["volumes"], volume));
    let ports = json!([
        { "name": "health", "containerPort": 10256 },
        { "name": "metrics", "containerPort": 10259 },
    ]);
    assert_eq!(agent["ports"], ports);
}

#[test]
fn monitoring_is_off_unless_asked_for() {
    let kinds = |values: &[&str]| -> BTreeSet<String> {
        helm(values).into_keys().map(|(kind, _)| kind).collect()
    };
    let plain = kinds(&[]);
    let more =
        |values: &[&str]| -> Vec<String> { kinds(values).difference(&plain).cloned().collect() };
    assert_eq!(
        more(&["namedPorts=true", NO_SURGE, "podMonitor.enabled=true"]),
        ["PodMonitor"]
    );
    let service = more(&["serviceMonitor.enabled=true", "serviceMonitor.interval=15s"]);
    assert_eq!(service, ["Service", "ServiceMonitor"]);
    assert_eq!(more(&["prometheusRule.enabled=true"]), ["PrometheusRule"]);
    // A second ConfigMap, beside that of the settings.
    assert_eq!(more(&["dashboards.enabled=true"]), [""; 0]);
}

#[test]
fn what_others_look_after_can_be_left_out() {
    let objects = helm(&[
        "crds.install=false",
        "rbac.create=false",
        "serviceAccount.create=false",
        "serviceAccount.name=ours",
    ]);
    let kinds: BTreeSet<_> = objects.keys().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, BTreeSet::from(["ConfigMap", "DaemonSet"]));
    let pod = &objects[&("DaemonSet".to_owned(), "node-lb".to_owned())]["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], "ours");
}

/// A release that is removed takes no FlowSchemas along, unless that is asked for.
#[test]
fn resource_definitions_stay() {
    let kept = |values: &[&str]| {
        let documents = output(helm_command(values));
        let annotation = "helm.sh/resource-policy: keep";
        documents.matches(annotation).count()
    };
    assert_eq!(kept(&[]), 2);
    assert_eq!(kept(&["crds.keep=false"]), 0);
}

#[test]
fn values_that_mean_nothing_or_contradict_each_other_are_refused() {
    for (value, said) in [
        ("imagee.tag=1", "imagee"),
        ("image.tags=1", "tags"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("image.digest=sha256:12", "digest"),
        ("healthPort=70000", "healthPort"),
        ("config.Cluster_CIDR=10.0.0.0/8", "Cluster_CIDR"),
        ("config.detect-local-mode=Guess", "detect-local-mode"),
        ("config.cluster-cidr.ipv4=10.0.0.0/8", "cluster-cidr"),
        ("probes.liveness.httpGet.port=1", "httpGet"),
        ("updateStrategy.type=Recreate", "updateStrategy"),
        ("apiServer.host=https://192.0.2.1", "host"),
        ("extraArgs=--masquerade-all", "extraArgs"),
        ("podMonitor.enabled=true", "podMonitor needs namedPorts"),
        ("scrapeJob=agents", "scrapeJob"),
        ("namedPorts=true", "namedPorts cannot be had"),
        (
            "config.healthz-bind-address=0.0.0.0:10266",
            "config.healthz-bind-address has port 10266, but healthPort is 10256",
        ),
    ] {
        let output = helm_command(&[value]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{value} is taken");
        assert!(errors.contains(said), "{value}: {errors}");
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

fn helm_command(values: &[&str]) -> Command {
    let mut command = program("helm");
    command.arg("template").arg("node-lb");
    command.arg(deploy().join("chart/node-lb"));
    command.args(["--namespace", "kube-system"]);
    // Helm built from its module does not know the Kubernetes that it is made for.
    command.args(["--kube-version", "1.36.0"]);
    for value in values {
        command.args(["--set", value]);
    }
    command
}

/// What Helm makes of the chart, but for what only Helm's objects have.
fn helm(values: &[&str]) -> Objects {
    let mut objects = objects(&output(helm_command(values)));
    for ((kind, name), object) in &mut objects {
        let metadata = object["metadata"].as_object_mut().unwrap();
        match kind.as_str() {
            CRD => drop(metadata.remove("annotations")),
            _ => {
                let labels = metadata["labels"].as_object_mut().unwrap();
                for label in HELM_LABELS {
                    assert!(labels.remove(label).is_some(), "{name} lacks {label}");
                }
            }
        }
        if kind == "DaemonSet" {
            // Helm has no other way to roll a change of the settings out.
            let metadata = &mut object["spec"]["template"]["metadata"];
            let annotations = metadata.as_object_mut().unwrap().remove("annotations");
            assert!(annotations.unwrap()["checksum/config"].is_string());
        }
    }
    objects
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
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
