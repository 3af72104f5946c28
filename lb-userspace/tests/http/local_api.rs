//! The local API.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use lb_objects::{
    Algorithm, Endpoint, EndpointPort, EndpointSlice, Node, ObjectName, Protocol, RemovedEndpoints,
    Service, ServicePort, ServiceType, TrafficPolicy, Weights,
};
use node_lb::{
    agent::{
        catalog::Catalog,
        local_api::{
            LocalApi,
            flows::{FlowSource, NewFlows},
            traffic::{EndpointTraffic, PortTraffic, ServiceEndpoints, Traffic, TrafficSource},
        },
        status::Status,
    },
    flows::{
        FlowReport,
        holders::{Held, Holder, Whose},
    },
    health::readiness::Readiness,
    http::{Handler, Server},
    plan::{LocalNode, PlanOptions, ServicePlan, plan},
};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, sync::mpsc, time::timeout};

use crate::{
    client::{PATIENCE, get, request},
    explain::explainer,
    support::{Parts, eventually, get_over_http2, http2},
};

#[tokio::test]
async fn a_service_is_shown_as_it_is_programmed() {
    let agent = Agent::start();
    agent.put("shop", "web", &["10.1.0.1", "10.1.0.2"]);
    let reply = agent.get("/api/v1/services/shop/web").await;
    assert_eq!(reply.0, 200);
    let port = &reply.1["ports"][0];
    assert_eq!(reply.1["namespace"], "shop");
    assert_eq!(
        port["clusterEndpoints"],
        json!(["10.1.0.1:8080", "10.1.0.2:8080"])
    );
    assert_eq!(port["frontends"][0]["address"], "10.96.0.1:80");
    assert_eq!(port["frontends"][0]["verdict"], "forward");

    let (status, error) = agent.get("/api/v1/services/shop/other").await;
    assert_eq!((status, &error["reason"]), (404, &json!("NotFound")));
    for path in [
        "/api/v1/services/shop",
        "/api/v1/services/shop/",
        "/api/v1/services/a/b/c",
        "/other",
    ] {
        assert_eq!(agent.get_text(path).await.0, 404, "{path}");
    }
}

#[tokio::test]
async fn lists_are_whole_or_in_pages() {
    let agent = Agent::start();
    assert_eq!(agent.names("/api/v1/services").await, [""; 0]);
    for name in ["b", "a", "d", "c", "e"] {
        agent.put("shop", name, &["10.1.0.1"]);
    }
    let all = ["a", "b", "c", "d", "e"];
    assert_eq!(agent.names("/api/v1/services").await, all);
    assert_eq!(agent.names("/api/v1/services?limit=0").await, all);

    let (mut found, mut query) = (Vec::new(), String::new());
    for left in [3, 1, 0] {
        let (status, page) = agent.get(&format!("/api/v1/services?limit=2{query}")).await;
        assert_eq!((status, &page["remainingItemCount"]), (200, &json!(left)));
        found.extend(names(&page));
        query = match &page["continue"] {
            Value::String(after) => format!("&continue={}", after.replace('/', "%2F")),
            _ => String::new(),
        };
    }
    assert_eq!(found, all);
    assert_eq!(query, "", "the last page says so");
    for query in ["limit=x", "limit=-1", "limit=1&continue=x"] {
        let (status, _) = agent.get(&format!("/api/v1/services?{query}")).await;
        assert_eq!(status, 400, "{query}");
    }
}

#[tokio::test]
async fn a_watch_tells_what_is_there_and_then_each_change() {
    let agent = Agent::start();
    agent.put("shop", "web", &["10.1.0.1"]);
    let mut watch = agent.stream("/api/v1/services?watch").await;
    watch.expect("ADDED", "web").await;
    assert_eq!(watch.next().await, json!({"type": "BOOKMARK"}));

    agent.put("shop", "web", &["10.1.0.1"]); // nothing changed
    agent.put("shop", "web", &["10.1.0.2"]);
    let event = watch.expect("MODIFIED", "web").await;
    let endpoints = &event["object"]["ports"][0]["clusterEndpoints"];
    assert_eq!(*endpoints, json!(["10.1.0.2:8080"]));
    agent.put("shop", "new", &[]);
    watch.expect("ADDED", "new").await;
    agent.catalog.set(&object("shop", "web"), None);
    watch.expect("DELETED", "web").await;
}

#[tokio::test]
async fn a_watcher_that_falls_behind_is_told_to_start_over() {
    let agent = Agent::start();
    let mut watch = agent.stream("/api/v1/services?watch").await;
    watch.next().await;
    // All at once, so that the server cannot send in between.
    for number in 0..5000 {
        agent.put(
            "shop",
            "web",
            &[&format!("10.1.{}.{}", number / 250, number % 250)],
        );
    }
    let mut last = Value::Null;
    while let Some(event) = watch.try_next().await {
        last = event;
    }
    assert_eq!(
        (&last["type"], &last["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );
}

#[tokio::test]
async fn until_the_cluster_is_known_nothing_wide_is_served_and_nothing_hangs() {
    let agent = Agent::start_with(Parts::uninitialized(<_>::default()));
    agent.put("shop", "web", &["10.1.0.1"]);
    for (path, status) in [
        ("/api/v1/services/shop/web", 200),
        ("/api/v1/services?limit=10", 200),
        ("/flows", 200),
        ("/flows?limit=1", 200),
        ("/connections", 200),
        ("/queues", 200),
        ("/traffic", 200),
        ("/configz", 200),
        ("/status", 200),
        ("/readyz", 200),
        // The Service may still come.
        ("/api/v1/services/shop/other", 429),
        ("/api/v1/services", 429),
        ("/api/v1/services?limit=0", 429),
        ("/api/v1/services?watch", 429),
        ("/api/v1/services?watch=true&limit=1", 429),
        ("/flows?follow", 429),
        ("/explain", 429),
        ("/explain?from=192.0.2.1&to=10.96.0.1:80", 429),
    ] {
        let reply = timeout(PATIENCE, get(agent.server.address(), path));
        let reply = reply.await.unwrap_or_else(|_| panic!("{path} hangs"));
        assert_eq!(reply.status, status, "{path}: {}", reply.body);
        let retry_after = reply.headers.get("retry-after").map(String::as_str);
        assert_eq!(retry_after, (status == 429).then_some("1"), "{path}");
    }
    agent.parts.initialization.finish();
    assert_eq!(agent.get("/api/v1/services").await.0, 200);
    assert_eq!(agent.get("/api/v1/services/shop/other").await.0, 404);
}

#[tokio::test]
async fn flows_are_bounded_and_have_their_service_s_name() {
    let agent = Agent::start();
    agent.put("shop", "web", &["10.1.0.1"]);
    let (_, page) = agent.get("/flows?limit=2").await;
    assert_eq!(page["items"].as_array().unwrap().len(), 2);
    assert_eq!(page["truncated"], true);
    assert_eq!(page["items"][0]["service"], "shop/web:http");
    assert_eq!(page["items"][0]["client"], "192.0.2.1:1000");
    let (_, page) = agent.get("/flows").await;
    assert_eq!(page["items"].as_array().unwrap().len(), 3);
    assert_eq!(page["truncated"], false);
    assert_eq!(agent.get("/flows?limit=x").await.0, 400);
}

#[tokio::test]
async fn flows_are_found_by_service_client_endpoint_and_stage() {
    let agent = Agent::start();
    agent.put("shop", "web", &["10.1.0.1"]);
    for (query, found) in [
        ("service=shop%2Fweb", 3),
        ("service=shop%2Fother", 0),
        ("service=&client=", 3),
        ("client=192.0.2.1", 3),
        ("client=192.0.2.0/24&endpoint=10.1.0.1", 3),
        ("client=192.0.3.0/24", 0),
        ("endpoint=2001:db8::/32", 0),
        ("stage=established", 3),
        ("stage=closed", 0),
        ("service=shop%2Fweb&stage=established&limit=1", 1),
    ] {
        let (_, page) = agent.get(&format!("/flows?{query}")).await;
        assert_eq!(page["items"].as_array().unwrap().len(), found, "{query}");
        assert_eq!(page["truncated"], query.ends_with("limit=1"), "{query}");
    }
    for query in ["service=web", "client=x", "endpoint=192.0.2.0%2F33"] {
        let (status, refusal) = agent.get(&format!("/flows?{query}")).await;
        assert_eq!(
            (status, &refusal["reason"]),
            (400, &json!("BadRequest")),
            "{query}"
        );
    }
}

/// Schemas have no names here.
#[tokio::test]
async fn those_who_hold_seats_are_told_by_what_their_flows_have_in_common() {
    let agent = Agent::start();
    agent.put("shop", "web", &["10.1.0.1"]);
    let (_, page) = agent.get("/connections").await;
    let told = |index: usize| {
        (
            &page["items"][index]["flow"],
            &page["items"][index]["flowSchema"],
        )
    };
    assert_eq!(told(0), (&json!("192.0.2.1"), &json!("#1")));
    assert_eq!(told(1), (&json!("2001:db8:1::/64"), &json!("#2")));
    assert_eq!(told(2), (&json!("shop/web:http"), &json!("#3")));
    assert_eq!(told(3), (&json!("*"), &json!("#4")));
    let first = &page["items"][0];
    assert_eq!(
        (&first["connections"], &first["seats"], &first["handshakes"]),
        (&json!(9), &json!(18), &json!(1))
    );
    assert_eq!(
        (first.get("limit"), &page["truncated"]),
        (None, &json!(false))
    );
    let (_, page) = agent.get("/connections?limit=2").await;
    assert_eq!(page["items"].as_array().unwrap().len(), 2);
    assert_eq!(page["truncated"], true);
    assert_eq!(agent.get("/connections?limit=x").await.0, 400);
}

#[tokio::test]
async fn new_flows_are_followed_and_what_is_left_out_is_counted() {
    let agent = Agent::start();
    agent.put("shop", "web", &["10.1.0.1"]);
    let mut follow = agent.stream("/flows?follow").await;
    let first = follow.next().await;
    assert_eq!(
        (&first["client"], &first["service"]),
        (&json!("192.0.2.1:1"), &json!("shop/web:http"))
    );
    assert_eq!(follow.next().await, json!({"skipped": 1}));
    assert_eq!(follow.next().await["client"], "192.0.2.1:2");
}

#[tokio::test(start_paused = true)]
async fn streams_are_never_silent_for_long() {
    let agent = Agent::start();
    let mut watch = agent.stream("/api/v1/services?watch").await;
    for _ in 0..3 {
        assert_eq!(watch.next().await, json!({"type": "BOOKMARK"}));
    }
    let mut follow = agent.stream("/flows?follow").await;
    while follow.next().await["client"] != "192.0.2.1:3" {}
    assert_eq!(follow.next().await, json!({"skipped": 0}));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_goes_without_a_word_is_noticed() {
    let agent = Agent::start();
    let mut stream = TcpStream::connect(agent.server.address()).await.unwrap();
    let request = b"GET /flows?follow HTTP/1.1\r\nHost: node\r\n\r\n";
    stream.write_all(request).await.unwrap();
    eventually(|| agent.followers() == 1).await;
    drop(stream);
    eventually(|| agent.followers() == 0).await;
}

#[tokio::test]
async fn traffic_is_told_of_all_services_and_of_the_endpoints_of_one() {
    let agent = Agent::start();
    let (status, traffic) = agent.get("/traffic").await;
    assert_eq!((status, &traffic["atMs"]), (200, &json!(1000)));
    let port = &traffic["servicePorts"][0];
    assert_eq!(port["servicePort"], "shop/web:http");
    assert_eq!(
        (&port["connections"], &port["dropped"]),
        (&json!(1), &json!(0))
    );
    let (status, of_service) = agent.get("/traffic/shop/web").await;
    assert_eq!(status, 200);
    assert_eq!(of_service["endpoints"][0]["address"], "10.1.0.1:8080");
    let (status, error) = agent.get("/traffic/shop/other").await;
    assert_eq!((status, &error["reason"]), (404, &json!("NotFound")));
    for path in ["/traffic/", "/traffic/shop", "/traffic/a/b/c"] {
        assert_eq!(agent.get_text(path).await.0, 404, "{path}");
    }
}

#[tokio::test]
async fn settings_and_state_are_shown_and_nothing_can_be_written() {
    let agent = Agent::start();
    assert_eq!(agent.get("/configz").await, (200, json!({"node-lb": {}})));
    assert_eq!(agent.get("/status").await.1["node"], "worker-1");
    assert_eq!(agent.get_text("/readyz/ping").await, (200, "ok".to_owned()));
    for method in ["POST", "PUT", "DELETE"] {
        let reply = request(agent.server.address(), method, "/api/v1/services/shop/web").await;
        assert_eq!((reply.status, &*reply.headers["allow"]), (405, "GET, HEAD"));
    }
}

/// The API of an agent that has no kernel.
pub struct Agent {
    parts: Parts,
    catalog: Arc<Catalog>,
    pub server: Server,
    followed: Arc<()>,
}

impl Agent {
    pub fn start() -> Self {
        Self::start_with(Parts::new(<_>::default()))
    }

    fn start_with(parts: Parts) -> Self {
        Self::serving(parts, |api| api)
    }

    /// Serves what is made of the API.
    pub fn serving<H: Handler>(parts: Parts, handler: impl FnOnce(LocalApi) -> H) -> Self {
        let catalog = Arc::new(Catalog::new());
        let status = || Status {
            node: "worker-1".to_owned(),
            ..Status::default()
        };
        // No test of these traces.
        let (trace, _) = mpsc::channel(1);
        let followed = Arc::new(());
        let api = LocalApi {
            catalog: catalog.clone(),
            flows: Arc::new(ThreeFlows(followed.clone())),
            traffic: Arc::new(OneService),
            initialization: parts.initialization.clone(),
            readiness: Arc::new(Readiness::new()),
            history: Arc::default(),
            configz: Bytes::from_static(br#"{"node-lb":{}}"#),
            status: Arc::new(status),
            explain: explainer(catalog.clone()),
            numbered: Arc::default(),
            line: None,
            trace,
        };
        Self {
            server: parts.serve(handler(api)),
            parts,
            catalog,
            followed,
        }
    }

    /// The number of followers: all holders of the flows except the agent and this struct.
    fn followers(&self) -> usize {
        Arc::strong_count(&self.followed) - 2
    }

    pub fn put(&self, namespace: &str, name: &str, endpoints: &[&str]) {
        let plan = planned(namespace, name, endpoints);
        self.catalog
            .set(&plan.service.clone(), Some(Arc::new(plan)));
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        let (status, body) = self.get_text(path).await;
        let json = serde_json::from_str(&body);
        (status, json.unwrap_or_else(|_| panic!("{path}: {body}")))
    }

    /// Over HTTP/2, because its client joins the parts of a streamed answer.
    async fn get_text(&self, path: &str) -> (u16, String) {
        let mut client = http2(&self.server).await;
        let (status, body) = crate::support::ask_over_http2(&mut client, path)
            .await
            .unwrap();
        (status.as_u16(), body)
    }

    async fn names(&self, path: &str) -> Vec<String> {
        let (status, list) = self.get(path).await;
        assert_eq!(status, 200, "{list}");
        names(&list)
    }

    async fn stream(&self, path: &str) -> Lines {
        let mut client = http2(&self.server).await;
        let answer = client.send_request(get_over_http2(path)).await.unwrap();
        assert_eq!(answer.status(), 200);
        Lines {
            body: answer.into_body(),
            read: Vec::new(),
        }
    }
}

/// Lines of JSON, as they arrive.
struct Lines {
    body: Incoming,
    read: Vec<u8>,
}

impl Lines {
    async fn next(&mut self) -> Value {
        self.try_next().await.expect("the stream ended")
    }

    async fn try_next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<_> = self.read.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = timeout(PATIENCE, self.body.frame()).await.expect("silence");
            self.read.extend(frame?.unwrap().into_data().unwrap());
        }
    }

    async fn expect(&mut self, kind: &str, name: &str) -> Value {
        let event = self.next().await;
        assert_eq!(
            (&event["type"], &event["object"]["name"]),
            (&json!(kind), &json!(name))
        );
        event
    }
}

/// A Service with one connection.
struct OneService;

impl TrafficSource for OneService {
    fn traffic(&self) -> anyhow::Result<Arc<Traffic>> {
        let port = PortTraffic {
            service: "shop/web".to_owned(),
            service_port: "shop/web:http".to_owned(),
            connections: 1,
            ..PortTraffic::default()
        };
        Ok(Arc::new(Traffic {
            at_ms: 1000,
            service_ports: vec![port],
            ..Traffic::default()
        }))
    }

    fn endpoints(&self, service: &ObjectName) -> Option<ServiceEndpoints> {
        let endpoint = EndpointTraffic {
            service_port: "shop/web:http".to_owned(),
            protocol: "TCP".to_owned(),
            address: ([10, 1, 0, 1], 8080).into(),
            ready: true,
            connections: 1,
            failures: 0,
            avoided: false,
            latency_us: None,
        };
        (*service == object("shop", "web")).then(|| ServiceEndpoints {
            at_ms: 1000,
            endpoints: vec![endpoint],
        })
    }
}

/// A source of three flows. It counts its followers.
struct ThreeFlows(Arc<()>);

impl FlowSource for ThreeFlows {
    fn flows(
        &self,
        wanted: &dyn Fn(&FlowReport) -> bool,
        limit: usize,
    ) -> anyhow::Result<(Vec<FlowReport>, bool)> {
        let mut flows: Vec<_> = (1000..1003).map(flow).filter(wanted).collect();
        let more = flows.len() > limit;
        flows.truncate(limit);
        Ok((flows, more))
    }

    fn holders(&self, limit: usize) -> anyhow::Result<(Vec<(Holder, Held)>, bool)> {
        let held = |schema: u32, whose| {
            let held = Held {
                connections: 10 - schema,
                seats: 20 - 2 * schema,
                handshakes: 1,
                frontend: (([10, 96, 0, 1], 80).into(), Protocol::Tcp),
            };
            (Holder { schema, whose }, held)
        };
        let all = [
            held(1, Whose::Source("192.0.2.1/32".parse()?)),
            held(2, Whose::Source("2001:db8:1::/64".parse()?)),
            held(3, Whose::Service(7)),
            held(4, Whose::Schema),
        ];
        Ok((all.into_iter().take(limit).collect(), limit < 4))
    }

    fn follow(&self) -> anyhow::Result<Box<dyn NewFlows>> {
        Ok(Box::new(Counting {
            looks: 0,
            _followed: self.0.clone(),
        }))
    }
}

/// Returns three flows, one per call, and in the first call one that is left out.
struct Counting {
    looks: u16,
    _followed: Arc<()>,
}

impl NewFlows for Counting {
    fn next(&mut self, _: usize) -> anyhow::Result<(Vec<FlowReport>, usize)> {
        self.looks += 1;
        match self.looks {
            1..=3 => Ok((vec![flow(self.looks)], usize::from(self.looks == 1))),
            _ => Ok((Vec::new(), 0)),
        }
    }
}

fn flow(client_port: u16) -> FlowReport {
    FlowReport {
        protocol: "TCP".to_owned(),
        client: ([192, 0, 2, 1], client_port).into(),
        frontend: ([10, 96, 0, 1], 80).into(),
        service: None,
        endpoint: ([10, 1, 0, 1], 8080).into(),
        source_nat: None,
        stage: "established",
        idle_seconds: 0,
        mode: "forward",
        transport: Protocol::Tcp,
    }
}

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| item["name"].as_str().unwrap().to_owned())
        .collect()
}

fn object(namespace: &str, name: &str) -> ObjectName {
    ObjectName::new(namespace, name)
}

fn planned(namespace: &str, name: &str, endpoints: &[&str]) -> ServicePlan {
    let service = Service {
        name: object(namespace, name),
        uid: None,
        created: 0,
        service_type: ServiceType::ClusterIp,
        cluster_ips: vec!["10.96.0.1".parse().unwrap()],
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        ports: vec![ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: 0,
        }],
        internal_traffic_policy: TrafficPolicy::Cluster,
        external_traffic_policy: TrafficPolicy::Cluster,
        load_balancer_source_ranges: Vec::new(),
        health_check_node_port: 0,
        session_affinity: None,
        algorithm: Algorithm::Random,
        weights: Weights::default(),
        slow_start: None,
        removed_endpoints: RemovedEndpoints::Keep,
        max_connections: 0,
        hash_balance_factor: 0,
        max_connections_per_endpoint: 0,
        long_running: false,
    };
    let slice = EndpointSlice {
        name: object(namespace, &format!("{name}-1")),
        service: name.to_owned(),
        weight: 1,
        ports: vec![EndpointPort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 8080,
        }],
        endpoints: endpoints.iter().map(|address| endpoint(address)).collect(),
    };
    let node = LocalNode::new(&Node::default(), &[], &PlanOptions::default());
    plan(&service, &[&slice], &node)
}

fn endpoint(address: &str) -> Endpoint {
    Endpoint {
        address: address.parse().unwrap(),
        ready: true,
        serving: true,
        terminating: false,
        node_name: None,
        zone_hints: Box::default(),
        node_hints: Box::default(),
    }
}
