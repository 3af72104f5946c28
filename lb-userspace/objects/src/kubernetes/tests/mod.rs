//! Tests of names, Nodes and single fields; and that no input makes the translation panic.

mod services;
mod slices;

use std::net::IpAddr;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{EndpointSlice, Node, Pod, Service};

#[test]
fn names_must_be_what_the_api_server_takes() {
    let long = "a".repeat(300);
    for name in [&*long, "", "Web", "-web", "web.shop", "../web", "web\n"] {
        let manifest = json!({"metadata": {"name": name}, "spec": {"clusterIP": "10.96.0.1"}});
        let translated = translated("Service", manifest);
        assert_eq!(translated.outcome, Outcome::Refuse, "{name}");
        let message = translated.problems[0].to_string();
        assert!(
            message.contains("metadata.name") && message.len() < 400,
            "{message}"
        );
    }
    let manifest =
        json!({"metadata": {"name": "w", "namespace": long}, "spec": {"clusterIP": "10.96.0.1"}});
    assert_eq!(translated("Service", manifest).outcome, Outcome::Refuse);
    assert_eq!(
        used_node(json!({"metadata": {"name": "node-1.example"}})).name,
        "node-1.example"
    );
}

#[test]
fn a_node() {
    let node = used_node(json!({
        "metadata": {"name": "node-1", "namespace": "ignored",
            "labels": {"topology.kubernetes.io/zone": "a"},
            "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.9/24", "fd00:1::/64"],
            "taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]},
        "status": {"addresses": [
            {"type": "ExternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "node-1"},
            {"type": "InternalIP", "address": "10.1.0.1"}, {"type": "InternalIP", "address": "fd01::1"}]}
    }));
    assert_eq!(node.addresses, ips(&["10.1.0.1", "fd01::1", "192.0.2.1"]));
    let cidrs: Vec<_> = node.pod_cidrs.iter().map(ToString::to_string).collect();
    assert_eq!(cidrs, ["10.244.1.0/24", "fd00:1::/64"]);
    assert_eq!(node.taints, ["ToBeDeletedByClusterAutoscaler"]);
    assert_eq!(node.labels["topology.kubernetes.io/zone"], "a");
    assert!(node.deleting);

    let single =
        used_node(json!({"metadata": {"name": "n"}, "spec": {"podCIDR": "10.244.2.0/24"}}));
    assert_eq!(single.pod_cidrs.len(), 1);
    assert!(!single.deleting);
}

#[test]
fn other_kinds_and_groups_are_not_read() {
    for (kind, api_version) in [
        ("Secret", "v1"),
        ("Service", "serving.knative.dev/v1"),
        ("", ""),
    ] {
        let manifest = json!({"kind": kind, "apiVersion": api_version, "metadata": 5});
        assert_eq!(translate_manifest(manifest), None);
    }
}

#[test]
fn a_pod_has_its_addresses_while_it_runs() {
    let manifest = |more: Value| {
        let mut pod = json!({
            "metadata": {"name": "cart-0", "namespace": "shop", "labels": {"app": "cart"}},
            "spec": {"nodeName": "node-1", "containers": []},
            "status": {"podIP": "10.0.0.1"},
        });
        for (path, value) in more.as_object().unwrap() {
            let (part, field) = path.split_once('.').unwrap();
            pod[part][field] = value.clone();
        }
        pod
    };
    let pod = used_pod(manifest(json!({})));
    assert_eq!(pod.name, ObjectName::new("shop", "cart-0"));
    assert_eq!((&*pod.node, &*pod.service_account), ("node-1", "default"));
    assert_eq!(pod.labels["app"], "cart");
    assert_eq!(pod.addresses, ips(&["10.0.0.1"]));
    let both = json!({
        "spec.serviceAccountName": "cart",
        "status.podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
    });
    let pod = used_pod(manifest(both));
    assert_eq!(pod.service_account, "cart");
    assert_eq!(pod.addresses, ips(&["10.0.0.1", "fd00::1"]));

    // Another pod may have its address by now.
    for phase in ["Succeeded", "Failed"] {
        let pod = used_pod(manifest(json!({"status.phase": phase})));
        assert_eq!(pod.addresses, ips(&[]));
    }
    let on_host = manifest(json!({"spec.hostNetwork": true}));
    assert_eq!(translated("Pod", on_host).outcome, Outcome::Skip);
    let wrong = manifest(json!({"status.podIPs": [{"ip": "x"}, {"ip": "fd00::1"}]}));
    let wrong = translated("Pod", wrong);
    assert!(
        wrong.problems[0]
            .to_string()
            .contains("status.podIPs[0].ip")
    );
    let Outcome::Use(Object::Pod(pod)) = wrong.outcome else {
        panic!("the other address is good");
    };
    assert_eq!(pod.addresses, ips(&["fd00::1"]));
}

#[test]
fn addresses_are_read_as_leniently_as_by_kube_proxy() {
    let good = [
        ("010.001.000.0255", "10.1.0.255"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("64:ff9b::010.0.0.1", "64:ff9b::a00:1"),
    ];
    for (text, expected) in good {
        assert_eq!(
            field::parse_ip(text),
            Some(expected.parse().unwrap()),
            "{text}"
        );
    }
    let bad = [
        "",
        "1.2.3",
        "1.2.3.4.5",
        "1.2.3.256",
        "1.2.3.+4",
        "1.2.3.-4",
        " 1.2.3.4",
        "1..2.3",
        "fe80::1%eth0",
        "::1::",
        "1.2.3.4:80",
        "[::1]",
        "0x1.2.3.4",
    ];
    for text in bad {
        assert_eq!(field::parse_ip(text), None, "{text}");
    }
    for (text, expected) in [
        ("010.1.2.3/08", "10.0.0.0/8"),
        ("2001:db8::1/32", "2001:db8::/32"),
    ] {
        assert_eq!(field::cidr("f", text).unwrap().to_string(), expected);
    }
    for text in [
        "10.0.0.0",
        "10.0.0.0/33",
        "10.0.0.0/-1",
        "::/129",
        "10.0.0.0/8/8",
        "/8",
    ] {
        assert!(field::cidr("f", text).is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn any_value_translates_without_panic(mut manifest in any_manifest()) {
        for kind in ["Service", "EndpointSlice", "Node"] {
            manifest["kind"] = kind.into();
            manifest.as_object_mut().unwrap().remove("apiVersion");
            let translated = translate_manifest(manifest.clone()).unwrap();
            let is_refused = translated.outcome == Outcome::Refuse;
            prop_assert_eq!(
                is_refused,
                translated.problems.iter().any(|problem| problem.refused == Refused::Object)
            );
            for problem in translated.problems {
                prop_assert!(problem.to_string().len() < 1500);
            }
        }
    }

    #[test]
    fn every_address_survives_printing(ip: IpAddr) {
        prop_assert_eq!(field::parse_ip(&ip.to_string()), Some(ip.to_canonical()));
    }
}

/// Objects with the fields that matter, and values of any kind in them.
fn any_manifest() -> impl Strategy<Value = Value> {
    let text = prop::sample::select(vec![
        "None",
        "10.0.0.1",
        "fd00::1",
        "10.0.0.0/8",
        "IPv4",
        "IPv6",
        "TCP",
        "UDP",
        "ClientIP",
        "Local",
        "LoadBalancer",
        "web",
        "VIP",
        "",
        "\u{1F980}",
        "2026-01-01T00:00:00Z",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1i64..70_000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text.prop_map(Value::from),
        ".{0,200}".prop_map(Value::from),
    ];
    let key = prop::sample::select(vec![
        "metadata",
        "name",
        "namespace",
        "labels",
        "annotations",
        "spec",
        "status",
        "type",
        "clusterIP",
        "clusterIPs",
        "ipFamilies",
        "externalIPs",
        "ports",
        "port",
        "nodePort",
        "protocol",
        "endpoints",
        "addresses",
        "addressType",
        "address",
        "conditions",
        "ready",
        "hints",
        "forZones",
        "loadBalancer",
        "ingress",
        "ip",
        "ipMode",
        "sessionAffinity",
        "sessionAffinityConfig",
        "clientIP",
        "timeoutSeconds",
        "podCIDR",
        "podCIDRs",
        "taints",
        "key",
        "kubernetes.io/service-name",
        "deletionTimestamp",
        "targetPort",
        "items",
    ]);
    let value = leaf.prop_recursive(6, 64, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..8).prop_map(object),
        ]
    });
    let top = [
        "metadata",
        "spec",
        "status",
        "addressType",
        "ports",
        "endpoints",
    ];
    prop::collection::vec(value, top.len())
        .prop_map(move |values| object(top.into_iter().zip(values)))
}

fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let fields = fields
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value));
    Value::Object(fields.collect())
}

fn translated(kind: &str, mut manifest: Value) -> Translated {
    manifest["kind"] = kind.into();
    translate_manifest(manifest).expect("a kind we read")
}

fn used(kind: &str, manifest: Value) -> Object {
    let translated = translated(kind, manifest);
    assert_eq!(translated.problems, Vec::new());
    match translated.outcome {
        Outcome::Use(object) => object,
        other => panic!("{other:?}"),
    }
}

fn used_service(manifest: Value) -> Service {
    match used("Service", manifest) {
        Object::Service(service) => (*service).clone(),
        other => panic!("{other:?}"),
    }
}

fn used_slice(fields: Value) -> EndpointSlice {
    match used("EndpointSlice", slice_manifest(fields)) {
        Object::EndpointSlice(slice) => (*slice).clone(),
        other => panic!("{other:?}"),
    }
}

fn used_pod(manifest: Value) -> Pod {
    match used("Pod", manifest) {
        Object::Pod(pod) => (*pod).clone(),
        other => panic!("{other:?}"),
    }
}

fn used_node(manifest: Value) -> Node {
    match used("Node", manifest) {
        Object::Node(node) => (*node).clone(),
        other => panic!("{other:?}"),
    }
}

fn slice_manifest(mut fields: Value) -> Value {
    let labels = json!({"kubernetes.io/service-name": "web"});
    fields["metadata"] = json!({"name": "web-abc", "labels": labels});
    fields
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn of_a_namespace_only_what_limits_it_is_kept() {
    let read = |annotations: Value| {
        let manifest = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "shop", "resourceVersion": "7", "annotations": annotations},
        });
        let read = translate_json(Kind::Namespace, manifest.to_string().as_bytes()).unwrap();
        assert_eq!(
            (&*read.resource_version, read.translated.problems),
            ("7", Vec::new())
        );
        match read.translated.outcome {
            Outcome::Use(Object::Admission(written)) => Some(written.json["metadata"].clone()),
            Outcome::Skip => None,
            other => panic!("{other:?}"),
        }
    };
    let level = "node-lb.io/priority-level";
    assert_eq!(read(json!({level: "shop"})), None);
    let most = "node-lb.io/max-connections";
    let both = json!({most: "20", level: "shop"});
    let found = read(json!({most: "20", level: "shop", "other": "x".repeat(1000)}));
    assert_eq!(found, Some(json!({"name": "shop", "annotations": both})));
    let long = read(json!({most: "9".repeat(100_000)})).unwrap();
    assert_eq!(long["annotations"][most], "9".repeat(254));
}
