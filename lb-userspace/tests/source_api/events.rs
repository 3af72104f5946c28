//! Events on Services: what is written, and how rarely.

use std::time::Duration;

use hyper::Method;
use lb_objects::ObjectName;
use node_lb::{
    events::{EventType, Notice, Recorder, Scope},
    flows::Limit,
    metrics::Metrics,
    source::api::ApiSource,
};
use serde_json::json;
use tokio::time::{Instant, advance, sleep};

use crate::fake::{Call, FakeApi};

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const UID: &str = "0b6d1a52-5a0f-4a39-9a0a-000000000001";

struct Events {
    api: FakeApi,
    metrics: Metrics,
    recorder: Recorder,
}

impl Events {
    fn start() -> Self {
        let (api, client) = FakeApi::start();
        let metrics = Metrics::new();
        let source = ApiSource::with_client(client, "node-1", metrics.api.clone());
        let recorder = Recorder::start(source.writer(), "node-1", metrics.events.clone());
        Self {
            api,
            metrics,
            recorder,
        }
    }

    async fn call(&mut self) -> Call {
        self.api.next("events").await
    }

    /// A metric's value; zero if there is none.
    fn metric(&self, series: &str) -> u64 {
        let text = String::from_utf8(self.metrics.encode()).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(series));
        value.map_or(0, |value| value.trim().parse().unwrap())
    }

    fn dropped(&self, reason: &str) -> u64 {
        self.metric(&format!(
            "node_lb_events_dropped_total{{reason=\"{reason}\"}}"
        ))
    }
}

fn notice(note: &str) -> Notice {
    Notice {
        service: ObjectName {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
        },
        uid: Some(UID.parse().unwrap()),
        event_type: EventType::Warning,
        reason: "FailedToStartServiceHealthcheck",
        action: "Listen",
        note: note.to_owned(),
        scope: Scope::Node,
    }
}

#[tokio::test(start_paused = true)]
async fn event_has_what_kubectl_and_the_api_server_ask_for() {
    let mut events = Events::start();
    events.recorder.record(notice("cannot listen"));
    let call = events.call().await;
    assert_eq!((&call.method, call.path.as_str()), (&Method::POST, EVENTS));
    let mut event = call.object.clone();
    let name = event["metadata"]["name"].take();
    assert!(name.as_str().unwrap().starts_with("web."), "{name}");
    let time = event["eventTime"].take();
    let time = time.as_str().unwrap();
    assert!(time.ends_with('Z') && time.len() == "2026-01-01T00:00:00.123456Z".len());
    let expected = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": null, "namespace": "default"},
        "eventTime": null,
        "reportingController": "node-lb",
        "reportingInstance": "node-lb-node-1",
        "action": "Listen",
        "reason": "FailedToStartServiceHealthcheck",
        "type": "Warning",
        "note": "node node-1: cannot listen",
        "regarding": {
            "apiVersion": "v1", "kind": "Service", "namespace": "default", "name": "web", "uid": UID,
        },
    });
    assert_eq!(event, expected);
    call.written();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(events.metric("node_lb_events_total{result=\"created\"}"), 1);
    let request = "node_lb_api_requests_total{code=\"201\",resource=\"events\",verb=\"create\"}";
    assert_eq!(events.metric(request), 1);
}

#[tokio::test(start_paused = true)]
async fn repetitions_become_a_series_of_one_event() {
    let mut events = Events::start();
    for _ in 0..10 {
        events.recorder.record(notice("a"));
    }
    let created = events.call().await;
    let name = created.object["metadata"]["name"].clone();
    created.written();
    let patched = events.call().await;
    assert_eq!(patched.method, Method::PATCH);
    assert_eq!(patched.path, format!("{EVENTS}/{}", name.as_str().unwrap()));
    assert_eq!(patched.object["series"]["count"], 2);
    patched.written();

    // The rest is written when the series is over.
    let began = Instant::now();
    let last = events.call().await;
    assert_eq!(last.object["series"]["count"], 10);
    assert!(last.object["series"]["lastObservedTime"].is_string());
    let waited = began.elapsed().as_secs();
    assert!((360..400).contains(&waited), "{waited} s");
    last.written();
    events.api.silent("events", Duration::from_secs(3600)).await;
    assert_eq!(events.metric("node_lb_events_total{result=\"counted\"}"), 8);
}

#[tokio::test(start_paused = true)]
async fn each_limit_of_a_service_port_is_one_event_however_often_it_is_met() {
    let mut events = Events::start();
    let service = notice("").service;
    for limit in [Limit::HalfOpen, Limit::SnatPorts, Limit::FlowTable] {
        let at_limit = Notice::at_limit(
            &service,
            UID.parse().ok(),
            "default/web:http TCP (IPv4)",
            limit,
        );
        events.recorder.record(at_limit.clone());
        let call = events.call().await;
        let event = &call.object;
        let reason = match limit {
            Limit::HalfOpen => "HalfOpenFlowsExhausted",
            Limit::SnatPorts => "SourceNATPortsExhausted",
            Limit::FlowTable => "FlowTableFull",
        };
        assert_eq!(event["reason"], reason);
        assert_eq!(event["type"], "Warning");
        let note = event["note"].as_str().unwrap();
        assert!(note.starts_with("node node-1: default/web:http TCP (IPv4): "));
        call.written();
        // The next flood, some minutes later.
        sleep(Duration::from_secs(200)).await;
        events.recorder.record(at_limit);
        let again = events.call().await;
        assert_eq!(again.method, Method::PATCH, "{reason}");
        assert_eq!(again.object["series"]["count"], 2);
        again.written();
    }
    assert_eq!(events.dropped("rate_limited"), 0);
}

#[tokio::test(start_paused = true)]
async fn event_that_has_expired_is_made_anew() {
    let mut events = Events::start();
    events.recorder.record(notice("a"));
    events.call().await.written();
    events.recorder.record(notice("a"));
    events.call().await.refuse(404, None);
    let anew = events.call().await;
    assert_eq!(anew.method, Method::POST);
    assert_eq!(anew.object["series"]["count"], 2);
}

#[tokio::test(start_paused = true)]
async fn one_service_cannot_flood_the_api_server() {
    let mut events = Events::start();
    for number in 0..100 {
        events.recorder.record(notice(&number.to_string()));
    }
    for _ in 0..25 {
        events.call().await.written();
    }
    events.api.silent("events", Duration::from_secs(60)).await;
    assert_eq!(events.dropped("rate_limited"), 75);
}

#[tokio::test(start_paused = true)]
async fn api_server_that_is_away_blocks_nobody_and_gets_few_requests() {
    let mut events = Events::start();
    for number in 0..5000 {
        let mut notice = notice("a");
        notice.service.name = format!("web-{number}");
        events.recorder.record(notice);
    }
    // All of them beyond the queue's size.
    assert!(events.dropped("queue_full") >= 3990);
    let first = events.call().await;
    let object = first.object.clone();
    drop(first); // connection refused
    for _ in 0..3 {
        let again = events.call().await;
        assert_eq!(again.object, object);
        drop(again);
    }
    let next = events.call().await;
    assert_ne!(next.object, object);
    assert_eq!(events.dropped("failed"), 1);
    // The time that the server asks for is waited.
    let asked = Instant::now();
    next.refuse(429, Some(7));
    events.call().await.written();
    assert!(asked.elapsed() >= Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn forbidden_is_not_tried_again_until_there_is_another_event() {
    let mut events = Events::start();
    events.recorder.record(notice("a"));
    events.call().await.refuse(403, None);
    events.api.silent("events", Duration::from_secs(3600)).await;
    assert_eq!(events.dropped("forbidden"), 1);
    events.recorder.record(notice("a"));
    events.call().await.written();
    advance(Duration::from_secs(1)).await;
    assert_eq!(events.dropped("forbidden"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_every_node_finds_is_one_event() {
    let mut names = Vec::new();
    for node in ["a", "b"] {
        let mut events = Events::start();
        let mut notice = notice(node);
        notice.note = "unknown algorithm".to_owned();
        notice.scope = Scope::Cluster;
        events.recorder.record(notice);
        let call = events.call().await;
        assert_eq!(call.object["note"], "unknown algorithm");
        names.push(call.object["metadata"]["name"].clone());
        call.refuse(409, None); // another node was first
        sleep(Duration::from_secs(60)).await;
        assert_eq!(events.dropped("failed"), 0);
    }
    assert_eq!(names[0], names[1]);
}

#[tokio::test(start_paused = true)]
async fn long_notes_are_cut_to_what_an_event_takes() {
    let mut events = Events::start();
    events.recorder.record(notice(&"\u{e4}".repeat(2000)));
    let call = events.call().await;
    let note = call.object["note"].as_str().unwrap();
    assert!((1000..=1024).contains(&note.len()), "{}", note.len());
}
