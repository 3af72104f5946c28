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
    // 30 to 60 s apart, except for the first few.
    assert!((60..=130).contains(&requests), "{requests}");
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
