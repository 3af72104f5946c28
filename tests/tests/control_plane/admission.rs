//! Connection admission by objects from the API server, which nothing waits for.

use std::{fs, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    Cluster, Family, Held, balanced::node_lb, control_plane::ClusterSpec, traffic::allow_many_files,
};
use node_lb::agent::status::PriorityLevel;
use serde_json::json;

use super::support::{WEB, cluster_ip, serve};

/// Seats of the node, of which catch-all has five shares.
const SEATS: u32 = 30;

/// A level with so many shares, and a schema for the Service of the test.
fn objects(shares: u32) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {
                "apiVersion": "node-lb.io/v1alpha1",
                "kind": "PriorityLevel",
                "metadata": { "name": "tenant" },
                "spec": {
                    "type": "Limited",
                    "limited": {
                        "nominalConcurrencyShares": shares,
                        "borrowingLimitPercent": 0,
                        "limitResponse": { "type": "Reject" },
                    },
                },
            },
            {
                "apiVersion": "node-lb.io/v1alpha1",
                "kind": "FlowSchema",
                "metadata": { "name": "tenant" },
                "spec": {
                    "priorityLevelConfiguration": { "name": "tenant" },
                    "rules": [{
                        "subjects": [{ "kind": "Any" }],
                        "destinations": [{ "namespaces": ["default"], "services": [WEB] }],
                    }],
                },
            },
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
    let from = cluster.lab().pod("pod-1-1");
    let tries = (0..tries).map(|_| Held::open(from, target));
    tries.filter_map(Result::ok).collect()
}

/// What `explain` says of a connection to it: it asks the API server as the agent does.
fn explained(cluster: &Cluster, target: SocketAddr) -> String {
    let kubeconfig = cluster.control_plane.admin_kubeconfig();
    let from = cluster.lab().pod("pod-1-1").ip(Family::V4);
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
}
