//! An API server that is away, or refuses the agent.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{follower::Follower, objects::service};

#[tokio::test(start_paused = true)]
async fn outage_costs_few_requests_and_no_list() {
    let mut follower = Follower::start();
    let watch = follower
        .listed(&[service("a", 1), service("b", 2)], 5)
        .await;
    watch.cut().await;
    let began = Instant::now();
    let mut requests = 0;
    let back = loop {
        let call = follower.call().await;
        assert!(!call.is_list());
        if began.elapsed() > Duration::from_secs(3600) {
            break call;
        }
        requests += 1;
        drop(call); // connection refused
    };
    // 30 to 60 s apart, except for those of the first minute and a few more.
    assert!((60..=140).contains(&requests), "{requests}");
    assert!(
        follower
            .error("services")
            .unwrap()
            .contains("connection refused")
    );
    follower.settle().await;
    assert_eq!(follower.names(), ["a", "b"], "all stays in force");

    // It is back, with its history gone: only differences are passed on.
    back.refuse(410, None);
    let refused = Instant::now();
    follower.applied.clear();
    follower.listed(&[service("b", 7)], 50).await;
    assert_eq!(
        (follower.applied.as_slice(), follower.names()),
        (&["b".to_owned()][..], vec!["b"])
    );
    assert!(
        refused.elapsed() < Duration::from_secs(6),
        "the outage delays no list"
    );
    assert_eq!(follower.error("services"), None);
    assert_eq!(follower.synced, 1);
}

/// However many short outages there have been before, the end of one is noticed soon.
#[tokio::test(start_paused = true)]
async fn outages_in_a_row_are_each_over_soon() {
    let mut follower = Follower::start();
    let mut watch = follower.listed(&[service("a", 1)], 5).await;
    for outage in 0..50_u64 {
        sleep(Duration::from_secs(2)).await;
        watch.cut().await;
        let lasts = Duration::from_millis(200 * (outage % 40));
        let began = Instant::now();
        let back = loop {
            let call = follower.call().await;
            assert!(!call.is_list(), "outage {outage}");
            if began.elapsed() >= lasts {
                break call;
            }
            drop(call); // connection refused
        };
        let late = began.elapsed() - lasts;
        assert!(
            late < Duration::from_secs(8),
            "outage {outage} of {lasts:?}: {late:?} late"
        );
        watch = back.stream();
    }
    assert_eq!(follower.names(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn forbidden_resource_is_named_and_asked_for_again() {
    let mut follower = Follower::start();
    for _ in 0..8 {
        follower.call().await.refuse(403, None);
    }
    let call = follower.call().await;
    let error = follower.error("services").unwrap();
    assert!(
        error.contains("403") && error.contains("list and watch"),
        "{error}"
    );
    assert!(!follower.health.all_synced() && follower.synced == 0);
    let refused = r#"node_lb_api_requests_total{code="403",resource="services",verb="watch"}"#;
    assert_eq!(follower.metric(refused), 8);
    let as_kubernetes_counts = r#"rest_client_requests_total{code="403",host="",method="GET"}"#;
    assert_eq!(follower.metric(as_kubernetes_counts), 8);
    let stream = call.stream();
    stream.bookmark(3, true).await;
    follower.settle().await;
    assert_eq!((follower.synced, follower.error("services")), (1, None));
}

#[tokio::test(start_paused = true)]
async fn answer_that_never_begins_is_given_up() {
    let mut follower = Follower::start();
    let hanging = follower.call().await;
    let again = follower.call().await;
    let waited = (again.at - hanging.at).as_secs();
    assert!((30..33).contains(&waited), "{waited} s");
}

#[tokio::test(start_paused = true)]
async fn source_ends_when_nobody_listens() {
    let mut follower = Follower::start();
    let _watch = follower.listed(&[service("a", 1)], 5).await;
    follower.close();
    sleep(Duration::from_secs(1)).await;
    assert!(follower.source.is_finished());
}
