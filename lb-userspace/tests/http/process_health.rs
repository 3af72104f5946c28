//! `/healthz` and `/livez`.

use std::{sync::Arc, time::Duration};

use lb_objects::{IpFamily, Node};
use node_lb::{
    health::{
        clock::Clock,
        proxy::{HealthEndpoints, ProxyHealth},
        readiness::Readiness,
    },
    http::{Limits, Listening, Server, bind},
    metrics::Metrics,
};
use serde_json::{Value, json};

use crate::{
    client::{Reply, any_port, get, request},
    clock::ManualClock,
    support::share,
    vectors,
};

/// Half of the time after which a pending change is stale in the vectors.
const SYNC_PERIOD: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_family_is_stale_as_upstream_has_it() {
    let vectors = &vectors()["proxyHealth"];
    let agent = Agent::new();
    agent.health.set_node(Some(&Node::default()));
    for (number, step) in vectors["sequence"].as_array().unwrap().iter().enumerate() {
        for action in step["do"].as_array().unwrap() {
            agent.apply(action.as_str().unwrap());
        }
        agent.check(step, &format!("step {number}")).await;
    }
    agent.check_counters(vectors["sequence"].as_array().unwrap());
}

#[tokio::test]
async fn a_node_is_eligible_as_upstream_has_it() {
    let vectors = &vectors()["proxyHealth"];
    let agent = Agent::new();
    for (number, step) in vectors["node"].as_array().unwrap().iter().enumerate() {
        agent.health.set_node(node(&step["node"]).as_ref());
        agent.check(step, &format!("node {number}")).await;
    }
    agent.check_counters(vectors["node"].as_array().unwrap());
}

#[tokio::test]
async fn a_good_answer_carries_the_current_time_and_a_bad_one_the_last_update() {
    let agent = Agent::new();
    agent.health.set_node(Some(&Node::default()));
    agent.apply("updated IPv4");
    agent.apply("advance 2s");
    agent.apply("updated IPv6");
    agent.apply("advance 2s");
    let families = json!({
        "IPv4": {"lastUpdated": "2023-11-14T22:13:20.123456789Z", "healthy": true},
        "IPv6": {"lastUpdated": "2023-11-14T22:13:22.123456789Z", "healthy": true},
    });
    let good = agent.get("/healthz").await;
    assert_eq!(
        good.json(),
        json!({
            "lastUpdated": "2023-11-14T22:13:24.123456789Z",
            "currentTime": "2023-11-14T22:13:24.123456789Z",
            "nodeEligible": true,
            "healthy": true,
            "status": families,
        })
    );
    assert!(!good.body.contains('\n'));

    agent.health.set_node(None);
    assert_eq!(
        agent.get("/healthz").await.json(),
        json!({
            "lastUpdated": "2023-11-14T22:13:22.123456789Z",
            "currentTime": "2023-11-14T22:13:24.123456789Z",
            "nodeEligible": false,
            "healthy": true,
            "status": families,
        })
    );
}

#[tokio::test]
async fn nothing_reported_yet_is_no_family_and_gos_zero_time() {
    let agent = Agent::new();
    assert_eq!(
        agent.get("/healthz").await.json(),
        json!({
            "lastUpdated": "0001-01-01T00:00:00Z",
            "currentTime": "2023-11-14T22:13:20.123456789Z",
            "nodeEligible": false,
            "healthy": true,
        })
    );
}

#[tokio::test]
async fn staleness_begins_at_the_oldest_pending_change_and_exactly_in_time() {
    let agent = Agent::new();
    agent.apply("updated IPv4");
    agent.apply("queued IPv4");
    agent.apply("advance 9s");
    agent.apply("queued IPv4");
    assert_eq!(agent.get("/livez").await.status, 200);
    agent.apply("advance 1s");
    assert_eq!(agent.get("/livez").await.status, 503);
}

#[tokio::test]
async fn any_method_is_answered_and_other_paths_do_not_exist() {
    let agent = Agent::new();
    for method in ["GET", "POST", "PUT"] {
        let reply = request(agent.server.address(), method, "/livez?verbose").await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.headers["content-type"], "application/json");
        assert_eq!(reply.headers["x-content-type-options"], "nosniff");
    }
    for path in ["/", "/healthz/", "/metrics", "*"] {
        let reply = request(agent.server.address(), "GET", path).await;
        assert_eq!(reply.status, 404, "{path}");
    }
}

struct Agent {
    clock: ManualClock,
    metrics: Metrics,
    health: Arc<ProxyHealth>,
    server: Server,
}

impl Agent {
    fn new() -> Self {
        let clock = ManualClock::new();
        let metrics = Metrics::new();
        let health = Arc::new(ProxyHealth::new(SYNC_PERIOD, clock.clone()));
        let endpoints = HealthEndpoints::new(health.clone(), Arc::new(Readiness::new()), &metrics);
        let listener = bind(any_port()).unwrap();
        let limits = Limits::default();
        Self {
            clock,
            metrics,
            health,
            server: Server::start(
                Listening::alone(listener).unwrap(),
                Arc::new(endpoints),
                limits,
                share(&limits),
            )
            .unwrap(),
        }
    }

    fn apply(&self, action: &str) {
        match action.split_once(' ').unwrap() {
            ("updated", family) => self.health.updated(parse_family(family)),
            ("queued", family) => self.health.queued(parse_family(family)),
            ("advance", time) => self.clock.advance(humantime::parse_duration(time).unwrap()),
            _ => panic!("unknown action {action}"),
        }
    }

    async fn get(&self, path: &str) -> Reply {
        get(self.server.address(), path).await
    }

    async fn check(&self, expect: &Value, step: &str) {
        let healthz = self.get("/healthz").await;
        let livez = self.get("/livez").await;
        assert_eq!(json!(healthz.status), expect["healthz"], "{step}");
        assert_eq!(json!(livez.status), expect["livez"], "{step}");
        let eligible = expect.get("eligible").unwrap_or(&Value::Bool(true));
        assert_eq!(healthz.json()["nodeEligible"], *eligible, "{step}");
        assert_eq!(livez.json().get("nodeEligible"), None, "{step}");
        assert_eq!(self.health.is_healthy(), expect["healthy"], "{step}");
        let now = humantime::format_rfc3339_nanos(self.clock.wall()).to_string();
        for body in [healthz.json(), livez.json()] {
            assert_eq!(body["healthy"], expect["healthy"], "{step}");
            assert_eq!(body["currentTime"], now, "{step}");
            if let Some(is_now) = expect.get("lastUpdatedIsNow") {
                assert_eq!(body["lastUpdated"] == now, *is_now, "{step}");
            }
            for (family, healthy) in expect["status"].as_object().into_iter().flatten() {
                assert_eq!(body["status"][family]["healthy"], *healthy, "{step}");
            }
        }
    }

    fn check_counters(&self, steps: &[Value]) {
        for (endpoint, counter) in [
            ("healthz", &self.metrics.healthz),
            ("livez", &self.metrics.livez),
        ] {
            for code in [200, 503] {
                let answers = steps.iter().filter(|step| step[endpoint] == code);
                let counted = counter.with_label_values(&[&code.to_string()]).get();
                assert_eq!(counted, answers.count() as u64, "{endpoint} {code}");
            }
        }
    }
}

fn node(node: &Value) -> Option<Node> {
    let taints = node["taints"].as_array().into_iter().flatten();
    (!node.is_null()).then(|| Node {
        taints: taints.map(|key| key.as_str().unwrap().into()).collect(),
        deleting: node["deletionTimestamp"] == true,
        ..Node::default()
    })
}

fn parse_family(text: &str) -> IpFamily {
    match text {
        "IPv4" => IpFamily::V4,
        "IPv6" => IpFamily::V6,
        _ => panic!("unknown family {text}"),
    }
}
