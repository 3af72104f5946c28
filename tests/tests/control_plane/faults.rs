//! Everything that a server between an agent and its API server can do wrong: no state is lost, and
//! the agent does what docs/api-server.md says.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::ensure;
use k8s_openapi::api::core::v1::Service;
use lb_tests::{
    Cluster, Family, Request,
    control_plane::{Asked, Fault, Rule, service},
};
use serde_json::json;

use super::support::{Everywhere, WEB, answers, begin_afresh, cluster, cluster_ip, pods, serve};

const WATCHES: &[Asked] = &[Asked::Watch];
const ALL: &[Asked] = &[
    Asked::List,
    Asked::NextPage,
    Asked::StreamedList,
    Asked::Watch,
];

/// Faults of watches, one after the other on one cluster under load. None of them causes a list.
#[test]
fn no_fault_of_a_watch_loses_state_or_leads_to_a_list() {
    let mut cluster = cluster();
    let service = serve(&mut cluster, WEB, 2, json!({ "type": "NodePort" }));
    let load = Everywhere::start(&cluster, &service);
    let busy = |code, retry_after| Fault::Answer { code, retry_after };
    let faults = [
        ("429 with Retry-After", busy(429, Some(2)), 6),
        ("429", busy(429, None), 6),
        ("503 with Retry-After", busy(503, Some(1)), 6),
        ("503", busy(503, None), 6),
        ("cut before the answer", Fault::Cut, 6),
        ("late", Fault::Delay(Duration::from_secs(2)), 6),
        ("cut within an event", Fault::CutWithin { event: 1 }, 6),
        ("garbage", Fault::Garbage { after: 1 }, 6),
        ("every event twice", Fault::Twice, usize::MAX),
        ("events swapped", Fault::Swapped, usize::MAX),
    ];
    for (number, (name, fault, times)) in faults.into_iter().enumerate() {
        begin_afresh(&mut cluster);
        let started = Instant::now();
        cluster
            .front
            .add(Rule::new(fault.clone(), WATCHES).times(times));
        // All watches end here. The next ones meet the fault before there is anything to watch.
        cluster.front.cut();
        if times != usize::MAX {
            cluster
                .until(|cluster| {
                    let left = cluster.front.faults_left();
                    ensure!(left == 0, "{name}: {left} of {times} watches to come");
                    Ok(())
                })
                .unwrap();
        }
        changes_arrive(&mut cluster, &format!("fault-{number}"));
        let struck = cluster.front.faults_struck();
        assert!(struck >= strikes(&fault), "{name}: struck {struck} times");
        cluster.front.clear();
        let lists = cluster.front.lists();
        assert_eq!(lists, 0, "{name}: {:?}", cluster.front.requests());
        let watches = cluster.front.requests().len();
        // Six watches started again. Each was refused or broken off once, or twice if the next one
        // broke as well.
        assert!(watches <= 40, "{name}: {watches} requests");
        if let Fault::Answer {
            retry_after: Some(seconds),
            ..
        } = fault
        {
            let asked = Duration::from_secs(seconds.into());
            assert!(started.elapsed() >= asked, "{name}: did not wait");
        }
    }
    load.assert_no_failures();
}

/// How often a fault of six watches occurs at least while a Service is created, changed and
/// deleted: the watches of Services and EndpointSlices on both nodes have events.
fn strikes(fault: &Fault) -> usize {
    match fault {
        Fault::Answer { .. } | Fault::Cut | Fault::Delay(_) => 6,
        Fault::CutWithin { .. } | Fault::Garbage { .. } => 4,
        // At least three events of a Service, and as many of its slices.
        Fault::Twice => 12,
        // Only events that come at the same time can be swapped: those of the slices of both
        // families.
        Fault::Swapped => 1,
    }
}

/// Lists that are refused or break are requested again, and cause no deletion.
#[test]
fn faults_of_lists_are_waited_out_with_what_is_in_force_in_force() {
    let mut cluster = cluster();
    let service = serve(&mut cluster, WEB, 2, json!({ "type": "NodePort" }));
    let load = Everywhere::start(&cluster, &service);
    let busy = |code, retry_after| Fault::Answer { code, retry_after };
    let lists = [Asked::StreamedList];
    for (name, fault) in [
        ("429 with Retry-After", busy(429, Some(1))),
        ("503", busy(503, None)),
        ("cut", Fault::Cut),
        ("cut within a list", Fault::CutWithin { event: 1 }),
    ] {
        begin_afresh(&mut cluster);
        cluster.front.add(Rule::new(fault, &lists).times(6));
        // Watches that cannot be continued. Each new list meets the fault once.
        cluster
            .front
            .add(Rule::new(busy(410, None), WATCHES).times(6));
        cluster.front.cut();
        cluster
            .until(|cluster| {
                ensure!(cluster.front.faults_left() == 0, "faults are left");
                let found = cluster.front.lists();
                ensure!(found >= 12, "{found} lists");
                Ok(())
            })
            .unwrap();
        changes_arrive(&mut cluster, &name.to_lowercase().replace(' ', "-"));
        let found = cluster.front.lists();
        assert_eq!(found, 12, "{name}: one list each, asked for twice");
        let struck = cluster.front.faults_struck();
        assert_eq!(struck, 12, "{name}: six lists and the watches before them");
        cluster.front.clear();
    }
    load.assert_no_failures();
}

/// During an outage there are watches at growing intervals, and no lists.
#[test]
fn an_outage_is_met_with_few_requests_and_no_list() {
    let mut cluster = cluster();
    let service = serve(&mut cluster, WEB, 1, json!({ "type": "NodePort" }));
    let load = Everywhere::start(&cluster, &service);
    cluster.front.forget();
    let refusal = Fault::Answer {
        code: 500,
        retry_after: None,
    };
    cluster.front.add(Rule::new(refusal, ALL));
    let start = Instant::now();
    cluster.front.cut();
    cluster.live_for(Duration::from_secs(20)).unwrap();
    let requests = cluster.front.requests();
    let most = WATCHERS * most_attempts(start.elapsed());
    assert_eq!(cluster.front.lists(), 0, "{requests:?}");
    let count = requests.len();
    assert!((2 * WATCHERS..=most).contains(&count), "{count} requests");
    let struck = cluster.front.faults_struck();
    assert!(struck >= WATCHERS, "{struck} requests were refused");
    cluster.front.clear();
    changes_arrive(&mut cluster, "after-outage");
    assert_eq!(cluster.front.lists(), 0, "{:?}", cluster.front.requests());
    load.assert_no_failures();
}

/// Two agents follow three resources each that they need. That of ServiceCIDRs comes beside them.
const WATCHERS: usize = 6;

/// The most attempts in a time of less than a minute, if the waits after them are at least 0.8,
/// 1.6, 3.2 and then 4 s.
fn most_attempts(time: Duration) -> usize {
    let waits = (0..).map(|number| Duration::from_millis((800 << number.min(5)).min(4000)));
    let attempts = waits.scan(Duration::ZERO, |at, wait| {
        let attempt = *at;
        *at += wait;
        Some(attempt)
    });
    attempts.take_while(|at| *at <= time).count()
}

/// Creates a Service, changes it and deletes it, and waits each time until the agents have
/// followed.
#[track_caller]
fn changes_arrive(cluster: &mut Cluster, name: &str) {
    let services = cluster.client().of::<Service>();
    let spec = json!({ "selector": { "app": WEB } });
    let made = services.create(service(name, spec)).unwrap();
    let ip = cluster_ip(&made, Family::V4);
    let pods = pods(cluster, WEB).unwrap().len();
    answers(cluster, SocketAddr::new(ip, 80), pods);
    let ports = json!([{ "name": "http", "port": 8000, "targetPort": 8080 }]);
    services
        .patch(name, json!({ "spec": { "ports": ports } }))
        .unwrap();
    answers(cluster, SocketAddr::new(ip, 8000), pods);
    services.delete(name).unwrap();
    cluster
        .until(|cluster| {
            let answer = Request::http(SocketAddr::new(ip, 8000)).send(cluster.lab().node(1));
            ensure!(answer.is_err(), "{name} is served still");
            Ok(())
        })
        .unwrap();
}
