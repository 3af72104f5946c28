//! Events on Services: what is written, and how rarely.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use hyper::Method;
use lb_objects::ObjectName;
use node_lb::{
    events::{EventType, Notice, Recorder, Scope},
    flows::Limit,
    map_writer::NotProgrammed,
    metrics::Metrics,
    source::api::ApiSource,
};
use serde_json::json;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

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
        Self::of("node-1")
    }

    fn of(node: &str) -> Self {
        let (api, client) = FakeApi::start();
        let metrics = Metrics::new();
        let source = ApiSource::with_client(client, node, metrics.api.clone());
        let recorder = Recorder::start(source.writer(), node, metrics.events.clone());
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
        service: ObjectName::new("default", "web"),
        uid: Some(UID.parse().unwrap()),
        event_type: EventType::Warning,
        reason: "FailedToStartServiceHealthcheck",
        action: "Listen",
        note: note.to_owned(),
        scope: Scope::Node,
    }
}

/// The same of one of many Services.
fn of_service(number: usize) -> Notice {
    let mut notice = notice("a");
    notice.service = ObjectName::new("default", format!("web-{number}"));
    notice.uid = Some(Uuid::from_u128(number as u128 + 1));
    notice
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
        "note": "on node-1, perhaps on others: cannot listen",
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
    events.recorder.record(notice("a"));
    let created = events.call().await;
    let name = created.object["metadata"]["name"].clone();
    created.written();
    for _ in 0..9 {
        events.recorder.record(notice("a"));
    }
    let patched = events.call().await;
    assert_eq!(patched.method, Method::PATCH);
    assert_eq!(patched.path, format!("{EVENTS}/{}", name.as_str().unwrap()));
    assert_eq!(patched.object["series"]["count"], 10);
    patched.written();

    // What comes then is written half an hour later, all at once.
    let began = Instant::now();
    for _ in 0..1000 {
        events.recorder.record(notice("a"));
        sleep(Duration::from_secs(1)).await;
    }
    let last = events.call().await;
    assert_eq!(last.object["series"]["count"], 1010);
    assert!(last.object["series"]["lastObservedTime"].is_string());
    let waited = began.elapsed().as_secs();
    assert!((1790..1850).contains(&waited), "{waited} s");
    last.written();
    events.api.silent("events", Duration::from_secs(3600)).await;
    let counted = events.metric("node_lb_events_total{result=\"counted\"}");
    assert_eq!(counted, 1008);
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
        assert!(note.contains(" default/web:http TCP (IPv4): "), "{note}");
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

/// Whatever the API server answers, there are 25 requests at most, and then one each ten seconds.
#[tokio::test(start_paused = true)]
async fn an_agent_has_a_budget_of_requests() {
    for code in [201, 409, 500] {
        let mut events = Events::start();
        for number in 0..5000 {
            events.recorder.record(of_service(number));
        }
        let began = Instant::now();
        let mut requests = 0;
        while began.elapsed() < Duration::from_secs(600) {
            match events.call().await {
                call if code == 201 => call.written(),
                call => call.refuse(code, None),
            }
            requests += 1;
        }
        assert!(
            requests <= 25 + 60 + 1,
            "{requests} requests answered {code}"
        );
        let least = if code == 500 { 15 } else { 80 };
        assert!(requests >= least, "{requests} requests answered {code}");
        // All that is no more than may wait for a request.
        let lost = events.dropped("queue_full") + events.dropped("over_budget");
        assert!(lost >= 4800, "{lost}");
    }
}

#[tokio::test(start_paused = true)]
async fn api_server_that_is_away_or_busy_gets_ever_fewer_requests() {
    let mut events = Events::start();
    for number in 0..10 {
        events.recorder.record(of_service(number));
    }
    let mut last = Instant::now();
    let mut gaps = Vec::new();
    for _ in 0..6 {
        let call = events.call().await;
        gaps.push(call.at - last);
        last = call.at;
        drop(call); // connection refused
    }
    // Waits double, whichever Event is next, and are stretched by less than that.
    assert!(gaps[5] > gaps[1] * 4, "{gaps:?}");
    // What is asked for is waited for.
    let asked = Instant::now();
    events.call().await.refuse(429, Some(300));
    events.call().await.written();
    assert!(asked.elapsed() >= Duration::from_secs(300));
}

/// Each of a hundred nodes finds that five thousand Services have no room, again each second and
/// each time with other numbers.
#[tokio::test(start_paused = true)]
async fn full_maps_on_many_nodes_are_one_event_for_each_service_and_few_requests() {
    const NODES: usize = 100;
    const SERVICES: usize = 5000;
    let (mut api, client) = FakeApi::start();
    let metrics = Metrics::new();
    let recorders: Vec<_> = (0..NODES)
        .map(|node| {
            let node = format!("node-{node}");
            let source = ApiSource::with_client(client.clone(), &node, metrics.api.clone());
            Recorder::start(source.writer(), &node, metrics.events.clone())
        })
        .collect();
    let finding = tokio::spawn(async move {
        for second in 0..2 {
            for number in 0..SERVICES {
                for recorder in &recorders {
                    let error = NotProgrammed::Endpoints {
                        wanted: 3,
                        free: second,
                        size: 9,
                    };
                    let Notice { service, uid, .. } = of_service(number);
                    recorder.record(Notice::not_programmed(&service, uid, error.reason()));
                }
                // The writers take what is queued.
                if number % 500 == 0 {
                    sleep(Duration::from_millis(1)).await;
                }
            }
            sleep(Duration::from_secs(1)).await;
        }
        recorders
    });
    let (mut names, mut requests, mut counts) = (BTreeMap::<String, String>::new(), 0, 0);
    let began = Instant::now();
    let time = Duration::from_secs(7000);
    let left = || time.saturating_sub(began.elapsed());
    while let Some(call) = api.next_within("events", left()).await {
        if call.method == Method::PATCH {
            counts += 1;
            call.written();
            continue;
        }
        requests += 1;
        let name = call.object["metadata"]["name"].as_str().unwrap().to_owned();
        let service = call.object["regarding"]["name"]
            .as_str()
            .unwrap()
            .to_owned();
        match names.insert(name, service.clone()) {
            None => call.written(),
            Some(before) => {
                assert_eq!(before, service);
                call.refuse(409, None);
            }
        }
    }
    // Of each node: what it may send at once, and what may wait. No more within two hours.
    let most = NODES * (25 + 128);
    assert!(requests <= most, "{requests} requests");
    // The count is written by one node, at the first repetition and half an hour later.
    assert!(counts <= 2 * names.len(), "{counts} counts");
    // Nodes tell of different Services, so that nearly all are told of.
    assert!(names.len() > SERVICES * 9 / 10, "{} Events", names.len());
    let services: BTreeSet<_> = names.values().collect();
    assert_eq!(services.len(), names.len(), "one Event for each Service");
    drop(finding.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn forbidden_is_not_tried_again_until_there_is_another_event() {
    let mut events = Events::start();
    events.recorder.record(notice("a"));
    events.call().await.refuse(403, None);
    events.api.silent("events", Duration::from_secs(3600)).await;
    assert_eq!(events.dropped("forbidden"), 1);
    // Nor with the same one again, for some hours.
    events.recorder.record(notice("a"));
    events.recorder.record(notice("b"));
    let call = events.call().await;
    assert!(call.object["note"].as_str().unwrap().ends_with(": b"));
    call.written();
    events.api.silent("events", Duration::from_secs(60)).await;
    assert_eq!(events.dropped("forbidden"), 1);
}

#[tokio::test(start_paused = true)]
async fn the_same_cause_is_one_event_of_all_nodes() {
    for scope in [Scope::Node, Scope::Cluster] {
        let mut names = Vec::new();
        for node in ["a", "b"] {
            let mut events = Events::of(node);
            let notice = || Notice {
                scope,
                ..notice("unknown algorithm")
            };
            events.recorder.record(notice());
            let call = events.call().await;
            let expected = match scope {
                Scope::Node => format!("on {node}, perhaps on others: unknown algorithm"),
                Scope::Cluster => "unknown algorithm".to_owned(),
            };
            assert_eq!(call.object["note"], expected);
            names.push(call.object["metadata"]["name"].clone());
            call.refuse(409, None); // another node was first
            // It stays that node's, however often it happens here.
            for _ in 0..100 {
                events.recorder.record(notice());
                events.api.silent("events", Duration::from_secs(60)).await;
            }
            assert_eq!(events.dropped("failed"), 0);
        }
        assert_eq!(names[0], names[1]);
    }
}

#[tokio::test(start_paused = true)]
async fn long_notes_are_cut_to_what_an_event_takes() {
    let mut events = Events::start();
    events.recorder.record(notice(&"\u{e4}".repeat(2000)));
    let call = events.call().await;
    let note = call.object["note"].as_str().unwrap();
    assert!((1000..=1024).contains(&note.len()), "{}", note.len());
}
