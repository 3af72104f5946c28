//! What a start costs the API server: streamed lists if it supports them, pages if not, and two
//! hundred agents at once.

use std::{net::SocketAddr, sync::Arc, thread, time::Duration};

use anyhow::ensure;
use k8s_openapi::api::core::v1::Service;
use lb_tests::{
    Cluster, Family,
    control_plane::{Asked, ClusterSpec, ControlPlaneSpec, service},
    eventually, patient,
    traffic::allow_many_files,
};
use node_lb::{
    config::ApiAccess,
    metrics::Metrics,
    source::{Event, Source as _, api::ApiSource},
};
use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use super::support::{Everywhere, WEB, answers, cluster, cluster_ip, scale, serve};

const RESOURCES: [&str; 3] = ["services", "endpointslices", "nodes"];
/// How many agents start at the same moment.
const AGENTS: usize = 200;
/// The number of Services in the cluster.
const SERVICES: usize = 50;
/// How long they may take.
const DEADLINE: Duration = Duration::from_secs(300);

#[test]
fn lists_are_streamed_where_the_server_does_that_and_paged_where_not() {
    let mut cluster = cluster();
    serve(&mut cluster, WEB, 1, json!({}));
    for resource in RESOURCES {
        let front = &cluster.front;
        let counts = [Asked::StreamedList, Asked::List].map(|asked| front.count(asked, resource));
        assert_eq!(
            counts,
            [2, 0],
            "{resource}: one streamed list for each agent"
        );
    }
    let services = cluster.client().of::<Service>();
    for number in 0..SERVICES {
        let spec = json!({ "selector": { "app": WEB } });
        services
            .create(service(&format!("s{number}"), spec))
            .unwrap();
    }
    // Each source has one connection per resource.
    allow_many_files().unwrap();
    let each = RESOURCES.len() * AGENTS;
    restart_together(&cluster, [("list", 0), ("watch", each)]);

    let spec = ControlPlaneSpec {
        feature_gates: vec!["WatchList=false".to_owned()],
        ..ControlPlaneSpec::default()
    };
    cluster.control_plane.restart_api_with(spec).unwrap();
    // One page each; then the refused stream, and the watch.
    restart_together(&cluster, [("list", each), ("watch", 2 * each)]);

    let last = service("last", json!({ "selector": { "app": WEB } }));
    let last = services.create(last).unwrap();
    let target = SocketAddr::new(cluster_ip(&last, Family::V4), 80);
    answers(&mut cluster, target, 1);
    cluster.ground.kill_agents().unwrap();
    cluster.front.forget();
    cluster.ground.start_agents().unwrap();
    answers(&mut cluster, target, 1);
    for resource in RESOURCES {
        let pages = cluster.front.count(Asked::List, resource);
        assert_eq!(pages, 2, "{resource}: one list in pages for each agent");
    }
}

/// Kubernetes 1.33 streams no lists by default.
#[test]
fn an_api_server_of_an_older_minor_version_is_followed_as_well() {
    let spec = ClusterSpec {
        control_plane: ControlPlaneSpec {
            older: true,
            ..ControlPlaneSpec::default()
        },
        ..ClusterSpec::default()
    };
    let mut cluster = Cluster::up(spec).unwrap();
    let version = cluster.client().text("/version").unwrap();
    assert!(version.contains("v1.33."), "{version}");
    let service = serve(&mut cluster, WEB, 2, json!({ "type": "NodePort" }));
    for resource in RESOURCES {
        let pages = cluster.front.count(Asked::List, resource);
        assert_eq!(pages, 2, "{resource}: one list in pages for each agent");
    }
    let load = Everywhere::start(&cluster, &service);
    let target = SocketAddr::new(cluster_ip(&service, Family::V4), 80);
    for replicas in [3, 1] {
        scale(&cluster, WEB, replicas);
        answers(&mut cluster, target, replicas as usize);
    }
    load.assert_no_failures();
}

/// Starts [`AGENTS`] sources together, waits until each has everything, and compares the number of
/// their requests by verb: lists in pages, and watches, which include streamed lists. What a busy
/// server refuses or breaks off is requested again; this is counted separately.
#[track_caller]
fn restart_together(cluster: &Cluster, expected: [(&str, usize); 2]) {
    let address = cluster.control_plane.address();
    let kubeconfig = cluster.control_plane.agent_kubeconfig(address).unwrap();
    let metrics = Arc::new(Metrics::new());
    let counted = metrics.clone();
    let everyone = async move {
        let mut agents = JoinSet::new();
        for number in 0..AGENTS {
            let access = ApiAccess {
                kubeconfig: Some(kubeconfig.clone()),
                master: None,
            };
            let node = format!("node-{number}");
            let source = ApiSource::open(access, &node, counted.api.clone());
            agents.spawn(synced(source.await.unwrap()));
        }
        agents.join_all().await
    };
    let runtime = cluster.control_plane.runtime();
    let sources = runtime.wait(async move { timeout(patient(DEADLINE), everyone).await });
    let sources = sources.expect("all agents synchronise in time");
    // The file also belongs to the lab's agents, which use the front.
    let front = cluster.front.address();
    cluster.control_plane.agent_kubeconfig(front).unwrap();
    assert_eq!(sources.len(), AGENTS);
    let found = || {
        expected.map(|(verb, _)| {
            let asked = sum(&metrics, "node_lb_api_requests_total", verb);
            (
                verb,
                asked - sum(&metrics, "node_lb_api_retries_total", verb),
            )
        })
    };
    // After a list in pages there is a watch.
    eventually(|| {
        ensure!(found() == expected, "{:?}, not {expected:?}", found());
        Ok(())
    });
    // As much time again, in which a superfluous request would come.
    thread::sleep(EXCESS);
    let most = found().into_iter().zip(expected);
    for ((verb, found), (_, expected)) in most {
        assert!(
            found <= expected,
            "{verb}: {found} requests, not {expected}"
        );
    }
    let retries = expected.map(|(verb, _)| sum(&metrics, "node_lb_api_retries_total", verb));
    println!("{AGENTS} agents: {expected:?}, asked for again: {retries:?}");
}

/// How long to wait for requests that must not come.
const EXCESS: Duration = Duration::from_secs(2);

/// Runs a source until it has delivered everything. It goes on until the returned value is dropped.
async fn synced(source: ApiSource) -> JoinSet<anyhow::Result<()>> {
    let (sender, mut events) = mpsc::channel(16);
    let mut running = JoinSet::new();
    running.spawn(Box::new(source).run(sender));
    while let Some(batch) = events.recv().await {
        if batch.events.contains(&Event::Synced) {
            break;
        }
    }
    // It stops when the receiver is dropped.
    running.spawn(async move {
        while events.recv().await.is_some() {}
        Ok(())
    });
    running
}

/// The sum of a counter's series with this verb.
fn sum(metrics: &Metrics, counter: &str, verb: &str) -> usize {
    let text = String::from_utf8(metrics.encode()).unwrap();
    let wanted = format!("verb=\"{verb}\"");
    let series = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(counter)?.strip_prefix('{')?;
        let (labels, value) = rest.rsplit_once("} ")?;
        labels
            .contains(&wanted)
            .then(|| value.parse::<f64>().ok())?
    });
    series.sum::<f64>() as usize
}
