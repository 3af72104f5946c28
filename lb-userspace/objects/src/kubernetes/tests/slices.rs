//! Tests of EndpointSlices: which are used, what of them is used, and what is refused.

use std::net::IpAddr;

use serde_json::json;

use super::{
    super::{
        super::{Object, Refused},
        Outcome,
    },
    slice_manifest, translated, used_slice,
};
use crate::Protocol;

#[test]
fn slice_conditions_hints_and_ports() {
    let slice = used_slice(json!({
        "addressType": "IPv4",
        "ports": [
            {"name": "", "port": 8080}, {"port": 1}, {"name": "zero", "port": 0}, {"name": "nil"},
            {"name": "dns", "port": 53, "protocol": "UDP"}],
        "endpoints": [
            {"addresses": ["10.0.0.1", "garbage"]},
            {"addresses": ["010.0.0.002"], "nodeName": "node-1",
             "conditions": {"ready": false, "serving": false, "terminating": true},
             "hints": {"forZones": [{"name": "a"}, {"name": "b"}], "forNodes": [{"name": "node-1"}]}},
            {"addresses": ["10.0.0.3"], "conditions": {}}]
    }));
    assert_eq!(
        (&*slice.name.namespace, slice.service.as_str()),
        ("default", "web")
    );
    let ports = slice
        .ports
        .iter()
        .map(|port| (&*port.name, port.protocol, port.port));
    assert!(ports.eq([("", Protocol::Tcp, 8080), ("dns", Protocol::Udp, 53)]));
    let [defaults, set, empty] = &slice.endpoints[..] else {
        panic!("{slice:?}");
    };
    assert_eq!(
        (defaults.ready, defaults.serving, defaults.terminating),
        (true, true, false)
    );
    assert_eq!(
        (empty.ready, empty.serving, empty.terminating),
        (true, true, false)
    );
    assert_eq!(
        (set.ready, set.serving, set.terminating),
        (false, false, true)
    );
    assert_eq!(set.address, "10.0.0.2".parse::<IpAddr>().unwrap());
    assert_eq!(set.node_name.as_deref(), Some("node-1"));
    assert_eq!(
        (&set.zone_hints[..], &set.node_hints[..]),
        (&["a".into(), "b".into()][..], &["node-1".into()][..])
    );
}

#[test]
fn a_slice_may_give_its_endpoints_a_weight() {
    let slice = |annotations| {
        let labels = json!({"kubernetes.io/service-name": "web"});
        let metadata = json!({"name": "s", "labels": labels, "annotations": annotations});
        let manifest = json!({"metadata": metadata, "addressType": "IPv4"});
        let translated = translated("EndpointSlice", manifest);
        let Outcome::Use(Object::EndpointSlice(slice)) = translated.outcome else {
            panic!("{translated:?}");
        };
        (slice.weight, translated.problems)
    };
    assert_eq!(slice(json!({})), (1, Vec::new()));
    assert_eq!(slice(json!({"node-lb.io/weight": "7"})), (7, Vec::new()));
    for wrong in ["0", "257", "", "1.5", "+1", "70000"] {
        let (weight, problems) = slice(json!({"node-lb.io/weight": wrong}));
        assert_eq!((weight, problems.len()), (1, 1), "{wrong}");
        let rule = "must be a whole number from 1 to 256, and is taken as 1";
        assert!(problems[0].to_string().contains(rule), "{}", problems[0]);
    }
}

#[test]
fn slices_that_do_not_count() {
    let headless =
        json!({"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""});
    let owned = json!({"kubernetes.io/service-name": "web"});
    for (labels, address_type) in [(headless, "IPv4"), (owned.clone(), "FQDN"), (owned, "")] {
        let manifest =
            json!({"metadata": {"name": "s", "labels": labels}, "addressType": address_type});
        let translated = translated("EndpointSlice", manifest);
        assert_eq!(
            (translated.outcome, translated.problems),
            (Outcome::Skip, Vec::new())
        );
    }
    for labels in [json!({}), json!({"kubernetes.io/service-name": ""})] {
        let manifest = json!({"metadata": {"name": "s", "labels": labels}, "addressType": "IPv4"});
        let translated = translated("EndpointSlice", manifest);
        assert_eq!(translated.outcome, Outcome::Refuse);
        let message = translated.problems[0].to_string();
        assert!(
            message.contains("metadata.labels[kubernetes.io/service-name]"),
            "{message}"
        );
    }
}

#[test]
fn one_bad_endpoint_costs_only_itself() {
    let bad = [
        "10.0.0",
        "fd00::1",
        "0.0.0.0",
        "127.0.0.1",
        "224.0.0.1",
        "169.254.0.1",
        "",
    ];
    let mut endpoints: Vec<_> = bad.iter().map(|bad| json!({"addresses": [bad]})).collect();
    endpoints.push(json!({"addresses": []}));
    endpoints.push(json!({"addresses": ["10.0.0.9"]}));
    let translated = translated(
        "EndpointSlice",
        slice_manifest(json!({
            "addressType": "IPv4", "endpoints": endpoints
        })),
    );
    let Outcome::Use(Object::EndpointSlice(slice)) = translated.outcome else {
        panic!("{translated:?}");
    };
    assert_eq!(slice.endpoints.len(), 1);
    assert_eq!(translated.problems.len(), bad.len() + 1);
    assert!(
        translated
            .problems
            .iter()
            .all(|p| p.refused == Refused::Endpoint)
    );
    let message = translated.problems[1].to_string();
    assert!(
        message.contains("EndpointSlice default/web-abc: endpoints[1].addresses[0]"),
        "{message}"
    );
}

#[test]
fn invalid_slices_are_refused() {
    let many = vec![json!({"addresses": ["10.0.0.1"]}); 70_000];
    let cases = [
        (
            json!({"addressType": "IPv4", "endpoints": many}),
            "70000 endpoints, must be at most 1000",
        ),
        (
            json!({"addressType": "IPv4", "ports": [{"name": "a", "port": 65536}]}),
            "ports[0].port: 65536",
        ),
        (
            json!({"addressType": "IPv4", "ports": [{"name": "a", "port": 1, "protocol": "ICMP"}]}),
            r#"ports[0].protocol: "ICMP""#,
        ),
        (
            json!({"addressType": "IPv4", "endpoints": [{"addresses": "10.0.0.1"}]}),
            "endpoints[0].addresses: invalid type",
        ),
        (
            json!({"apiVersion": "discovery.k8s.io/v1beta1", "addressType": "IPv4"}),
            "discovery.k8s.io/v1beta1",
        ),
    ];
    for (fields, expected) in cases {
        let translated = translated("EndpointSlice", slice_manifest(fields));
        assert_eq!(translated.outcome, Outcome::Refuse);
        let message = translated.problems[0].to_string();
        assert!(
            message.contains(expected) && message.contains("default/web-abc"),
            "{message}"
        );
    }
}
