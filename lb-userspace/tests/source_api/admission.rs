//! The objects of connection admission: followed like others, but nobody waits for them.

use std::{net::IpAddr, sync::Arc, time::Duration};

use lb_objects::{Kind, Object, ObjectRef};
use node_lb::source::{Event, api::PodWatch, health::SourceHealth};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{follower::Follower, objects::service};

fn follow() -> (Follower, Arc<SourceHealth>) {
    let health = Arc::new(SourceHealth::new(Kind::ADMISSION.map(Kind::resource)));
    let mut follower = Follower::following(Some(health.clone()), None);
    follower.api.serve_empty("endpointslices");
    follower.api.serve_empty("nodes");
    (follower, health)
}

fn level(version: u64, shares: u32) -> Value {
    json!({
        "apiVersion": "node-lb.io/v1alpha1",
        "kind": "PriorityLevel",
        "metadata": {
            "name": "tenant",
            "resourceVersion": version.to_string(),
            "managedFields": [{"manager": "kubectl", "time": version}],
        },
        "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": shares}},
        "status": {"conditions": []},
    })
}

/// The only object of a batch, as its author wrote it.
fn written(events: &[Event]) -> (ObjectRef, Value) {
    let [Event::Apply(Object::Admission(object))] = events else {
        panic!("{events:?}");
    };
    (object.reference.clone(), object.json.clone())
}

#[tokio::test(start_paused = true)]
async fn objects_come_as_they_are_written() {
    let (mut follower, health) = follow();
    let _services = follower.listed(&[service("a", 1)], 5).await;
    assert_eq!(follower.synced, 1, "nobody waits for levels");

    let call = follower.api.next("prioritylevels").await;
    assert_eq!(call.path, "/apis/node-lb.io/v1alpha1/prioritylevels");
    let levels = call.stream();
    levels.event("ADDED", &level(6, 10)).await;
    levels.bookmark(6, true).await;
    let (reference, json) = written(&follower.batch().await);
    assert_eq!(reference.to_string(), "PriorityLevel tenant");
    assert_eq!(
        json,
        json!({
            "apiVersion": "node-lb.io/v1alpha1",
            "kind": "PriorityLevel",
            "metadata": {"name": "tenant"},
            "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 10}},
        })
    );
    let schemas = follower.api.next("flowschemas").await.stream();
    schemas.bookmark(6, true).await;
    assert_eq!(follower.batch().await, [Event::AdmissionSynced]);
    assert!(health.all_synced());

    levels.event("MODIFIED", &level(7, 20)).await;
    let (_, json) = written(&follower.batch().await);
    assert_eq!(json["spec"]["limited"]["nominalConcurrencyShares"], 20);
    levels.event("DELETED", &level(8, 20)).await;
    assert_eq!(follower.batch().await, [Event::Delete(reference)]);
    assert_eq!(follower.synced, 1);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_these_kinds_is_served_and_asked_seldom() {
    let (mut follower, health) = follow();
    let _services = follower.listed(&[service("a", 1)], 5).await;
    assert_eq!((follower.names(), follower.synced), (vec!["a"], 1));
    assert!(follower.health.all_synced());
    let mut asked = 0;
    let refused = async {
        loop {
            follower.api.next("prioritylevels").await.refuse(404, None);
            asked += 1;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(600), refused).await;
    assert!((2..=40).contains(&asked), "{asked} requests in ten minutes");
    assert!(!health.all_synced());
    let error = health.states()[0].error.clone().unwrap_or_default();
    assert!(error.contains("404"), "{error}");
}

fn pod(version: u64, address: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "cart", "namespace": "shop", "resourceVersion": version.to_string()},
        "spec": {"nodeName": "node-1", "serviceAccountName": "cart", "containers": []},
        "status": {"phase": "Running", "podIPs": [{"ip": address}]},
    })
}

#[tokio::test(start_paused = true)]
async fn this_nodes_pods_are_followed_once_they_are_wanted() {
    let health = Arc::new(SourceHealth::new([Kind::Pod.resource()]));
    let (want, wanted) = watch::channel(false);
    let pods = PodWatch {
        health: health.clone(),
        wanted,
    };
    let mut follower = Follower::following(None, Some(pods));
    follower.api.serve_empty("endpointslices");
    follower.api.serve_empty("nodes");
    let _services = follower.listed(&[service("a", 1)], 5).await;
    assert_eq!(follower.synced, 1, "nobody waits for pods");
    let long = Duration::from_secs(600);
    follower.api.silent("pods", long).await;

    want.send(true).unwrap();
    let call = follower.api.next("pods").await;
    assert_eq!(call.path, "/api/v1/pods");
    assert_eq!(call.query["fieldSelector"], "spec.nodeName=node-1");
    let pods = call.stream();
    pods.event("ADDED", &pod(6, "10.0.0.1")).await;
    pods.bookmark(6, true).await;
    let mut events = Vec::new();
    while !events.contains(&Event::PodsSynced) {
        events.extend(follower.batch().await);
    }
    let Event::Apply(Object::Pod(found)) = &events[0] else {
        panic!("{events:?}");
    };
    assert_eq!(found.service_account, "cart");
    assert_eq!(found.addresses, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    assert!(health.all_synced());

    pods.event("DELETED", &pod(7, "10.0.0.1")).await;
    let reference = ObjectRef {
        kind: Kind::Pod,
        name: found.name.clone(),
    };
    assert_eq!(follower.batch().await, [Event::Delete(reference)]);
}

#[tokio::test(start_paused = true)]
async fn service_cidrs_come_by_themselves_and_nobody_waits_for_them() {
    let health = Arc::new(SourceHealth::new([Kind::ServiceCidr.resource()]));
    let mut follower = Follower::of(|source| source.following_service_cidrs(Some(health.clone())));
    follower.api.serve_empty("endpointslices");
    follower.api.serve_empty("nodes");
    let _services = follower.listed(&[service("a", 1)], 5).await;
    assert_eq!(follower.synced, 1);
    // An old cluster, or an account without the right.
    let refused = follower.api.next("servicecidrs").await;
    assert_eq!(refused.path, "/apis/networking.k8s.io/v1/servicecidrs");
    refused.refuse(403, None);
    follower.api.next("servicecidrs").await.refuse(403, None);
    let stream = follower.api.next("servicecidrs").await.stream();
    assert!(health.states()[0].error.is_some() && !health.all_synced());

    let cidr = |version: u64, cidr: &str| {
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes", "resourceVersion": version.to_string()},
            "spec": {"cidrs": [cidr]},
        })
    };
    stream.event("ADDED", &cidr(6, "10.96.0.0/12")).await;
    stream.bookmark(6, true).await;
    let batch = follower.batch().await;
    let [Event::Apply(Object::ServiceCidr(found))] = &batch[..] else {
        panic!("{batch:?}");
    };
    assert_eq!(found.cidrs, ["10.96.0.0/12".parse().unwrap()]);
    assert_eq!(follower.batch().await, [Event::ServiceCidrsSynced]);
    assert!(health.all_synced());
    stream.event("DELETED", &cidr(7, "10.96.0.0/12")).await;
    let gone = Object::ServiceCidr(found.clone()).reference();
    assert_eq!(follower.batch().await, [Event::Delete(gone)]);
}

#[tokio::test(start_paused = true)]
async fn namespaces_matter_only_with_a_limit() {
    let health = Arc::new(SourceHealth::new([Kind::Namespace.resource()]));
    let mut follower = Follower::of(|source| source.following_namespaces(Some(health.clone())));
    follower.api.serve_empty("endpointslices");
    follower.api.serve_empty("nodes");
    let _services = follower.listed(&[service("a", 1)], 5).await;
    assert_eq!(follower.synced, 1, "nobody waits for them");
    let refused = follower.api.next("namespaces").await;
    assert_eq!(refused.path, "/api/v1/namespaces");
    refused.refuse(403, None);
    follower.api.next("namespaces").await.refuse(403, None);
    let stream = follower.api.next("namespaces").await.stream();
    assert!(health.states()[0].error.is_some() && !health.all_synced());

    let namespace = |version: u64, name: &str, annotations: Value| {
        json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": name,
                "resourceVersion": version.to_string(),
                "annotations": annotations,
            },
            "status": {"phase": "Active"},
        })
    };
    let limit = json!({"node-lb.io/max-connections": "20", "other": "x"});
    stream
        .event("ADDED", &namespace(6, "default", json!({})))
        .await;
    stream.event("ADDED", &namespace(7, "shop", limit)).await;
    stream.bookmark(7, true).await;
    let mut events = Vec::new();
    while !events.contains(&Event::NamespacesSynced) {
        events.extend(follower.batch().await);
    }
    let found = events.iter().filter_map(|event| match event {
        Event::Apply(Object::Admission(found)) => Some(found.clone()),
        _ => None,
    });
    let found: Vec<_> = found.collect();
    assert_eq!(found.len(), 1, "{events:?}");
    assert_eq!(
        found[0].json["metadata"],
        json!({"name": "shop", "annotations": {"node-lb.io/max-connections": "20"}})
    );
    assert!(health.all_synced());
    stream
        .event("MODIFIED", &namespace(8, "shop", json!({})))
        .await;
    let gone = Object::Admission(found[0].clone()).reference();
    assert_eq!(follower.batch().await, [Event::Delete(gone)]);
}
