//! Connection admission by objects from the API server, which nothing waits for.

use std::{fs, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1 as core};
use lb_tests::{
    Cluster, Family, Held, Pod,
    balanced::node_lb,
    control_plane::{ClusterSpec, deployment, grant_pods},
    manifests::admission::{flow_schema, priority_level},
    traffic::allow_many_files,
};
use node_lb::agent::status::PriorityLevel;
use serde_json::{Value, json};

use super::support::{WEB, cluster_ip, serve};

/// Seats of the node, of which catch-all has five shares.
const SEATS: u32 = 30;
/// What the Namespace of the test may have at last.
const LIMIT: usize = 7;

/// A level with so many shares, and a schema for anyone's connections to the Service of the test.
fn objects(shares: u32) -> String {
    objects_for(shares, &json!({ "kind": "Any" }))
}

/// The same for connections from such sources.
fn objects_for(shares: u32, subject: &Value) -> String {
    let destination = json!({ "namespaces": ["default"], "services": [WEB] });
    json!({
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            priority_level("tenant", shares),
            flow_schema("tenant", subject, &destination),
        ],
    })
    .to_string()
}

fn apply(cluster: &Cluster, text: &str) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("objects.json");
    fs::write(&file, text)?;
    let file = format!("--filename={}", file.display());
    cluster.control_plane.kubectl(&["apply", &file]).map(drop)
}

/// The level, as the agent on node 1 has it.
fn level(cluster: &Cluster) -> Result<PriorityLevel> {
    let status = cluster.ground.status(1)?;
    let found = status.priority_level("tenant").cloned();
    found.with_context(|| format!("no level; problems: {:?}", status.admission_problems))
}

/// Waits until the level has these seats of its own, and this many connections.
#[track_caller]
fn until(cluster: &mut Cluster, nominal: u32, in_use: u32) {
    let found = cluster.until(|cluster| {
        let level = level(cluster)?;
        ensure!(
            (level.nominal, level.limit, level.in_use) == (nominal, nominal, in_use),
            "{level:?}"
        );
        Ok(())
    });
    found.unwrap();
}

/// Connections of a pod of node 1 that are let in, of so many.
fn open(cluster: &Cluster, target: SocketAddr, tries: usize) -> Vec<Held> {
    Held::open_all(cluster.lab().pod("pod-1-1"), target, tries)
}

/// What `explain` says of a connection to it: it asks the API server as the agent does.
fn explained(cluster: &Cluster, target: SocketAddr) -> String {
    explained_from(cluster, cluster.lab().pod("pod-1-1"), target)
}

fn explained_from(cluster: &Cluster, pod: &Pod, target: SocketAddr) -> String {
    let kubeconfig = cluster.control_plane.admin_kubeconfig();
    let from = pod.ip(Family::V4);
    let command = format!(
        "{} explain --kubeconfig {} --node node-1 --from {from} --to {target} \
         --admission=enforce --max-connections={SEATS}",
        node_lb().unwrap().display(),
        kubeconfig.display()
    );
    cluster.lab().node(1).run(&command).unwrap()
}

#[test]
fn levels_follow_the_api_server_and_outlive_it() {
    allow_many_files().unwrap();
    let mut cluster = Cluster::up(ClusterSpec {
        arguments: vec![
            "--admission=enforce".to_owned(),
            format!("--max-connections={SEATS}"),
        ],
        ..ClusterSpec::default()
    })
    .unwrap();
    // The API server does not know these kinds, and agents are ready all the same.
    let web = serve(&mut cluster, WEB, 1, json!({}));
    let target = SocketAddr::new(cluster_ip(&web, Family::V4), 80);
    let problems = cluster.ground.status(1).unwrap().admission_problems;
    let told = problems.iter().any(|text| text.contains("prioritylevels"));
    assert!(told, "{problems:?}");
    let text = explained(&cluster, target);
    assert!(text.contains("FlowSchema catch-all takes it"), "{text}");

    let crds = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/crds");
    let crds = format!("--kustomize={crds}");
    cluster.control_plane.kubectl(&["apply", &crds]).unwrap();
    cluster
        .until(|cluster| apply(cluster, &objects(10)))
        .unwrap();
    // Ten of fifteen shares.
    until(&mut cluster, 20, 0);
    let held = open(&cluster, target, 25);
    assert_eq!(held.len(), 20);
    until_condition(&mut cluster, "Accepted", "True Valid");
    until_condition(&mut cluster, "Dangling", "False Found");
    until(&mut cluster, 20, 20);
    let text = explained(&cluster, target);
    let words = [
        "FlowSchema tenant takes it",
        "The limit of PriorityLevel tenant is 20",
    ];
    assert!(words.iter().all(|words| text.contains(words)), "{text}");

    apply(&cluster, &objects(1)).unwrap();
    until(&mut cluster, 5, 20);
    assert!(open(&cluster, target, 1).is_empty());
    apply(&cluster, &objects(10)).unwrap();
    until(&mut cluster, 20, 20);

    // Without the API server, an agent that starts leaves everything as it is.
    cluster.front.close();
    cluster.ground.kill_agents().unwrap();
    let mut held = held;
    held.truncate(15);
    cluster.ground.launch_agents().unwrap();
    cluster.live_for(Duration::from_secs(2)).unwrap();
    let more = open(&cluster, target, 10);
    assert_eq!(more.len(), 5);
    drop(more);
    cluster.front.open().unwrap();
    until(&mut cluster, 20, 15);

    drop(held);
    until(&mut cluster, 20, 0);
    pods_are_told_apart(&mut cluster, target);

    let delete = ["delete", "prioritylevels/tenant"];
    cluster.control_plane.kubectl(&delete).unwrap();
    let gone = cluster.until(|cluster| {
        let status = cluster.ground.status(1)?;
        let levels = status.priority_levels.iter();
        let names: Vec<_> = levels.map(|level| level.name.as_str()).collect();
        ensure!(names == ["catch-all", "exempt"], "{names:?}");
        Ok(status)
    });
    let problems = gone.unwrap().admission_problems;
    let dangles = problems.iter().any(|text| text.contains("FlowSchema"));
    assert!(dangles, "{problems:?}");
    until_condition(&mut cluster, "Dangling", "True NotFound");
    namespaces_have_limits(&mut cluster, target);
}

/// All Services of a Namespace share a limit that an annotation sets, also while another agent starts.
fn namespaces_have_limits(cluster: &mut Cluster, target: SocketAddr) {
    let limit = format!("node-lb.io/max-connections={LIMIT}");
    let annotate = ["annotate", "namespace", "default", &limit];
    cluster.control_plane.kubectl(&annotate).unwrap();
    let held = cluster.until(|cluster| {
        let held = open(cluster, target, LIMIT + 3);
        ensure!(held.len() == LIMIT, "{} are let in", held.len());
        Ok(held)
    });
    let held = held.unwrap();
    let text = explained(cluster, target);
    let takes = "FlowSchema namespace:default takes it";
    assert!(text.contains(takes), "{text}");
    let connections = cluster.ground.connections(1).unwrap();
    let row = connections
        .lines()
        .find(|row| row.starts_with("namespace:default"));
    let row: Vec<_> = row.unwrap_or_default().split_whitespace().collect();
    let limit = LIMIT.to_string();
    let expected = [
        "namespace:default",
        "catch-all",
        "*",
        &limit,
        &limit,
        &limit,
        "0",
    ];
    assert_eq!(row, expected, "{connections}");

    cluster.ground.kill_agents().unwrap();
    assert!(open(cluster, target, 1).is_empty());
    cluster.ground.start_agents().unwrap();
    cluster.live_for(Duration::from_secs(2)).unwrap();
    assert!(open(cluster, target, 1).is_empty());
    drop(held);

    let wrong = "node-lb.io/max-connections=many";
    let annotate = ["annotate", "--overwrite", "namespace", "default", wrong];
    cluster.control_plane.kubectl(&annotate).unwrap();
    let told = cluster.until(|cluster| {
        let problems = cluster.ground.status(1)?.admission_problems;
        let told = problems
            .iter()
            .any(|text| text.contains("Namespace/default: "));
        ensure!(told, "{problems:?}");
        Ok(open(cluster, target, LIMIT + 3))
    });
    assert_eq!(
        told.unwrap().len(),
        LIMIT,
        "the last valid limit is in force"
    );
    let annotate = [
        "annotate",
        "namespace",
        "default",
        "node-lb.io/max-connections-",
    ];
    cluster.control_plane.kubectl(&annotate).unwrap();
    let lifted = cluster.until(|cluster| {
        let held = open(cluster, target, LIMIT + 3);
        ensure!(held.len() > LIMIT, "{} are let in", held.len());
        Ok(())
    });
    lifted.unwrap();
}

/// Waits until a condition of the flow schema says this; one of the agents has written it.
#[track_caller]
fn until_condition(cluster: &mut Cluster, name: &str, wanted: &str) {
    let condition = format!(".status.conditions[?(@.type==\"{name}\")]");
    let path = format!("jsonpath={{{condition}.status}} {{{condition}.reason}}");
    let found = cluster.until(|cluster| {
        let get = ["get", "flowschemas.node-lb.io/tenant", "--output", &path];
        let said = cluster.control_plane.kubectl(&get)?;
        ensure!(said == wanted, "{name}: {said:?}");
        Ok(())
    });
    found.unwrap();
}

/// The level is for pods of the namespace `default` alone. Only one of the two on node 1 is the API server's.
fn pods_are_told_apart(cluster: &mut Cluster, target: SocketAddr) {
    let mut client = deployment("client", 1);
    client["spec"]["template"]["spec"]["nodeSelector"] =
        json!({ "kubernetes.io/hostname": "node-1" });
    let deployments = cluster.client().of::<Deployment>();
    deployments.create(client).unwrap();
    let pod = cluster.until(|cluster| {
        let pods = cluster.client().of::<core::Pod>().list("app=client")?;
        let name = pods.into_iter().find_map(|pod| pod.metadata.name);
        let running = name.and_then(|name| cluster.pod(&name));
        running.cloned().context("no pod of the client runs")
    });
    let pod = pod.unwrap();
    let ours = json!({ "kind": "Namespace", "namespace": { "name": "default" } });
    apply(cluster, &objects_for(10, &ours)).unwrap();

    // The agent may not ask whose pods are, and says so.
    let refused = cluster.until(|cluster| {
        let problems = cluster.ground.status(1)?.admission_problems;
        let told = problems.iter().any(|text| text.contains("pods: "));
        ensure!(told, "{problems:?}");
        Ok(())
    });
    refused.unwrap();
    let held = Held::open_all(&pod, target, 3);
    assert_eq!(held.len(), 3, "nobody's seats but catch-all's");
    until(cluster, 20, 0);
    drop(held);

    grant_pods(&cluster.control_plane).unwrap();
    let held = cluster.until(|cluster| {
        let held = Held::open_all(&pod, target, 1);
        let level = level(cluster)?;
        ensure!((held.len(), level.in_use) == (1, 1), "{level:?}");
        Ok(held)
    });
    let problems = cluster.ground.status(1).unwrap().admission_problems;
    assert_eq!(problems, Vec::<String>::new());
    let more = Held::open_all(&pod, target, 25);
    assert_eq!(more.len(), 19);
    let other = open(cluster, target, 1);
    assert_eq!(other.len(), 1);
    until(cluster, 20, 20);
    drop((held, more, other));

    let text = explained_from(cluster, &pod, target);
    assert!(text.contains("FlowSchema tenant takes it"), "{text}");
    let text = explained(cluster, target);
    assert!(text.contains("FlowSchema catch-all takes it"), "{text}");
}
