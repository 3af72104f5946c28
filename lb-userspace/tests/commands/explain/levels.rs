//! Flow schemas and priority levels that a connection belongs to.

use node_lb::agent::status::{PriorityLevel, Status};
use serde_json::json;

use super::{NODE, NODE_CIDR, explain, explain_json};
use crate::{Files, beside_an_agent, stdout};

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec:
  clusterIP: 172.30.0.1
  ports: [{port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  namespace: shop
  name: web-1
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports: [{name: '', port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.0.1.9]}]
";

/// Three quarters of the seats for one network, and no answer where there are none.
const OBJECTS: &str = "
apiVersion: node-lb.io/v1alpha1
kind: PriorityLevel
metadata: {name: customers}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 15
    limitResponse: {type: Reject}
    connections: {maxConnectionsPerFlow: 20}
---
apiVersion: node-lb.io/v1alpha1
kind: FlowSchema
metadata: {name: customers}
spec:
  priorityLevelConfiguration: {name: customers}
  distinguisherMethod: {type: BySourcePrefix, sourcePrefix: {ipv4: 28}}
  rejectAnswer: {concurrencyLimit: Drop}
  rules:
  - subjects: [{kind: CIDR, cidr: {cidr: 203.0.113.0/24}}]
    destinations: [{namespaces: [shop]}]
";

fn arguments<'a>(from: &'a str, mode: &'a str, objects: &'a str, socket: &'a str) -> Vec<&'a str> {
    let packet = ["--from", from, "--to", "172.30.0.1:80"];
    let own = [
        "--admission",
        mode,
        "--max-connections",
        "400",
        "--admission-objects",
        objects,
        "--socket",
        socket,
    ];
    [&packet[..], &NODE_CIDR, &own].concat()
}

fn agent(in_use: u32) -> Status {
    let level = |name: &str, in_use, limit| PriorityLevel {
        name: name.to_owned(),
        exempt: false,
        in_use,
        highest: in_use,
        limit,
        nominal: limit,
        min: limit,
        max: limit,
        refused: 0,
        over: 0,
        kept: 0,
        lingering: 0,
        waiting: 0,
        queue_full: 0,
        slow_handshakes: 0,
        pressed: false,
    };
    Status {
        priority_levels: vec![level("catch-all", 1, 100), level("customers", in_use, 310)],
        ..Status::default()
    }
}

#[test]
fn the_schema_and_the_level_are_named_with_what_they_would_do_now() {
    let manifests = Files::numbered(&[NODE, SERVICE]);
    let objects = Files::new(&[("objects.yaml", OBJECTS)]);
    let objects = objects.path().to_str().unwrap();
    let text = beside_an_agent(&agent(7), |socket| {
        let arguments = arguments("203.0.113.9", "enforce", objects, socket);
        stdout(&explain(&manifests, &arguments)).to_owned()
    });
    assert!(text.contains("is forwarded (opened)."), "{text}");
    assert!(
        text.ends_with(
            "FlowSchema customers takes it, with PriorityLevel customers.
Of its connections, each source network (/28) may have 20 at a time (maxConnectionsPerFlow); \
             `node-lb admission levels` shows how many more were refused (FLOW LIMIT).
The limit of PriorityLevel customers is 310 connections; 7 are open now.
"
        ),
        "{text}"
    );
    let elsewhere = beside_an_agent(&agent(310), |socket| {
        explain_json(
            &manifests,
            &arguments("198.51.100.9", "enforce", objects, socket),
        )
    });
    assert_eq!(elsewhere["verdict"], "forward");
    assert_eq!(elsewhere["flowSchema"], "catch-all");
    assert!(elsewhere.get("maxConnectionsPerFlow").is_none());

    let full = beside_an_agent(&agent(310), |socket| {
        explain_json(
            &manifests,
            &arguments("203.0.113.9", "enforce", objects, socket),
        )
    });
    assert_eq!(
        (&full["verdict"], &full["reason"], &full["flowSchema"]),
        (
            &json!("drop"),
            &json!("concurrency-limit"),
            &json!("customers")
        )
    );
    assert_eq!(full["maxConnectionsPerFlow"], 20);
    assert_eq!(
        full["limits"],
        json!([{"service": null, "priorityLevel": "customers", "limit": 310, "inUse": 310,
                "exempt": false}])
    );
    let audited = beside_an_agent(&agent(310), |socket| {
        explain_json(
            &manifests,
            &arguments("203.0.113.9", "audit", objects, socket),
        )
    });
    assert_eq!(audited["verdict"], "forward");
    assert_eq!(audited["limits"][0]["audited"], true);
}

#[test]
fn admission_without_seats_is_refused() {
    let manifests = Files::numbered(&[NODE, SERVICE]);
    let explained = explain(
        &manifests,
        &[
            "--from",
            "203.0.113.9",
            "--to",
            "172.30.0.1:80",
            "--admission",
            "audit",
        ],
    );
    let said = String::from_utf8_lossy(&explained.stderr);
    assert!(
        said.contains("--admission audit needs --max-connections"),
        "{said}"
    );
}

/// Where others wait, or the seats that are free are kept, a connection has to ask the agent.
#[test]
fn who_has_to_wait_is_told() {
    let manifests = Files::numbered(&[NODE, SERVICE]);
    let queues = OBJECTS.replace("{type: Reject}", "{type: Queue, queuing: {}}");
    let objects = Files::new(&[("objects.yaml", &queues)]);
    let objects = objects.path().to_str().unwrap();
    for (in_use, kept, waiting, verdict) in [
        (309, 0, 0, "forward"),
        (310, 0, 0, "wait"),
        (306, 3, 0, "forward"),
        (307, 3, 0, "wait"),
        (7, 0, 1, "wait"),
    ] {
        let mut agent = agent(in_use);
        let customers = &mut agent.priority_levels[1];
        (customers.kept, customers.waiting) = (kept, waiting);
        let found = beside_an_agent(&agent, |socket| {
            explain_json(
                &manifests,
                &arguments("203.0.113.9", "enforce", objects, socket),
            )
        });
        assert_eq!(
            found["verdict"], verdict,
            "{in_use} in use, {kept} kept, {waiting} wait: {found}"
        );
    }
}
