//! Watches: their events, and how they end.

use std::time::Duration;

use node_lb::source::Event;
use serde_json::json;

use crate::{
    follower::Follower,
    objects::{service, slice, undecodable},
};

#[tokio::test(start_paused = true)]
async fn changes_are_applied_as_they_come() {
    let mut follower = Follower::start();
    let watch = follower.listed(&[service("a", 1)], 5).await;
    watch.event("ADDED", &service("b", 6)).await;
    watch.event("MODIFIED", &service("a", 7)).await;
    follower.settle().await;
    assert_eq!((follower.port("a"), follower.port("b")), (8, 7));
    watch.event("DELETED", &service("b", 8)).await;
    follower.settle().await;
    assert_eq!(follower.names(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn watch_that_ends_goes_on_where_it_was() {
    let mut follower = Follower::start();
    let watch = follower.listed(&[service("a", 1)], 5).await;
    watch.event("MODIFIED", &service("a", 7)).await;
    watch.bookmark(11, false).await;
    drop(watch);
    let renewed = follower.call().await;
    assert!(!renewed.is_list());
    assert_eq!(renewed.get("resourceVersion"), Some("11"));
    // In the middle of a line, by a cut connection, and with something that is no event.
    let mut at = renewed.at;
    let mut call = renewed;
    for (text, cut) in [
        (r#"{"type":"MODI"#, false),
        ("", true),
        ("}garbage{\n", false),
    ] {
        let watch = call.stream();
        watch.text(text).await;
        if cut {
            watch.cut().await;
        } else {
            drop(watch);
        }
        call = follower.call().await;
        assert_eq!(call.get("resourceVersion"), Some("11"), "{text:?}");
        assert!(!call.is_list() && call.at > at, "{text:?}");
        at = call.at;
    }
    follower.settle().await;
    assert_eq!(follower.names(), ["a"]);
    assert_eq!(
        follower.metric(r#"node_lb_api_lists_total{resource="services"}"#),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn silent_watch_is_renewed() {
    let mut follower = Follower::start();
    let watch = follower.listed(&[], 5).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    watch.bookmark(6, false).await;
    follower
        .api
        .silent("services", Duration::from_secs(149))
        .await;
    let renewed = follower.call().await;
    assert!(!renewed.is_list());
    assert_eq!(renewed.get("resourceVersion"), Some("6"));
    assert!(watch.is_dropped(), "the dead one is closed");
}

#[tokio::test(start_paused = true)]
async fn watch_that_outlives_its_time_is_renewed() {
    let mut follower = Follower::start();
    drop(follower.listed(&[], 5).await);
    let call = follower.call().await;
    let seconds: u64 = call.get("timeoutSeconds").unwrap().parse().unwrap();
    let (at, watch) = (call.at, call.stream());
    let mut version = 5;
    let renewed = loop {
        tokio::select! {
            renewed = follower.call() => break renewed,
            () = tokio::time::sleep(Duration::from_secs(50)) => {
                version += 1;
                watch.bookmark(version, false).await;
            }
        }
    };
    assert_eq!((renewed.at - at).as_secs(), seconds + 30);
    assert_eq!(
        renewed.get("resourceVersion"),
        Some(version.to_string().as_str())
    );
}

#[tokio::test(start_paused = true)]
async fn gone_history_leads_to_one_list() {
    for in_stream in [true, false] {
        let mut follower = Follower::start();
        let watch = follower.listed(&[service("a", 1)], 5).await;
        match in_stream {
            true => watch.error(410, "Expired", 0).await,
            false => {
                drop(watch);
                follower.call().await.refuse(410, None);
            }
        }
        let asked = tokio::time::Instant::now();
        let _watch = follower.listed(&[service("a", 1)], 50).await;
        assert!(asked.elapsed() < Duration::from_secs(6));
        follower
            .api
            .silent("services", Duration::from_secs(149))
            .await;
        let relists = r#"node_lb_api_relists_total{reason="expired",resource="services"}"#;
        assert_eq!(follower.metric(relists), 1);
        assert_eq!(
            follower.applied,
            ["a"],
            "the same version is not applied again"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn busy_server_is_not_asked_for_a_list() {
    let mut follower = Follower::start();
    let watch = follower.listed(&[service("a", 1)], 5).await;
    watch.error(429, "TooManyRequests", 40).await;
    follower
        .api
        .silent("services", Duration::from_secs(40))
        .await;
    for code in [429, 503, 429] {
        let call = follower.call().await;
        assert!(!call.is_list());
        assert_eq!(call.get("resourceVersion"), Some("5"));
        call.refuse(code, Some(33));
        follower
            .api
            .silent("services", Duration::from_secs(33))
            .await;
    }
    let call = follower.call().await;
    assert!(!call.is_list());
    assert_eq!(
        follower.metric(r#"node_lb_api_lists_total{resource="services"}"#),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn server_from_a_backup_is_believed() {
    let mut follower = Follower::start();
    let watch = follower
        .listed(&[service("a", 90), service("b", 91)], 100)
        .await;
    let cause = json!({"reason": "ResourceVersionTooLarge"});
    let details = json!({"causes": [cause], "retryAfterSeconds": 1});
    let status = json!({"code": 504, "reason": "Timeout", "details": details});
    watch.event("ERROR", &status).await;
    let list = follower.call().await;
    assert_eq!(list.get("resourceVersion"), Some(""));
    let stream = list.stream();
    stream.event("ADDED", &service("a", 20)).await;
    stream.bookmark(30, true).await;
    follower.settle().await;
    assert_eq!((follower.names(), follower.port("a")), (vec!["a"], 21));
    stream.event("MODIFIED", &service("a", 31)).await;
    follower.settle().await;
    assert_eq!(follower.port("a"), 32);
}

#[tokio::test(start_paused = true)]
async fn events_out_of_order_or_twice_do_no_harm() {
    let mut follower = Follower::start();
    let watch = follower
        .listed(&[service("a", 1), service("b", 2)], 5)
        .await;
    watch.event("MODIFIED", &service("a", 9)).await;
    watch.event("MODIFIED", &service("a", 8)).await;
    watch.event("MODIFIED", &service("a", 9)).await;
    watch.event("ADDED", &service("c", 7)).await;
    follower.settle().await;
    assert_eq!(follower.applied, ["a", "b", "a", "c"]);
    assert_eq!(follower.port("a"), 10);
    // An older event of a deleted object, and an older deletion of an object that is back.
    watch.event("DELETED", &service("b", 12)).await;
    watch.event("MODIFIED", &service("b", 11)).await;
    watch.event("DELETED", &service("a", 6)).await;
    watch.event("DELETED", &service("b", 12)).await;
    follower.settle().await;
    assert_eq!(follower.names(), ["a", "c"]);
    watch.event("ADDED", &service("b", 14)).await;
    follower.settle().await;
    assert_eq!(follower.names(), ["a", "b", "c"]);
    drop(watch);
    assert_eq!(follower.call().await.get("resourceVersion"), Some("14"));
}

#[tokio::test(start_paused = true)]
async fn object_that_cannot_be_used_does_not_end_the_watch() {
    let mut follower = Follower::start();
    let watch = follower.listed(&[service("a", 1)], 5).await;
    watch.event("MODIFIED", &undecodable("a", 6)).await;
    watch.event("ADDED", &json!({"metadata": 7})).await;
    watch.event("NOVELTY", &json!({})).await;
    watch.event("DELETED", &json!({"metadata": 7})).await;
    watch.event("BOOKMARK", &json!(null)).await;
    watch.event("ADDED", &service("b", 8)).await;
    follower.settle().await;
    assert_eq!(follower.port("a"), 2, "the last good version stays");
    assert_eq!(follower.names(), ["a", "b"]);
    assert!(follower.problems.contains_key("Service default/a"));

    watch.event("MODIFIED", &service("a", 9)).await;
    follower.settle().await;
    assert!(!follower.problems.contains_key("Service default/a"));
    watch.event("MODIFIED", &undecodable("a", 10)).await;
    watch.event("DELETED", &undecodable("a", 11)).await;
    follower.settle().await;
    assert!(!follower.problems.contains_key("Service default/a"));
    assert_eq!(follower.names(), ["b"]);
    drop(watch);
    assert_eq!(follower.call().await.get("resourceVersion"), Some("11"));
}

#[tokio::test(start_paused = true)]
async fn time_of_a_change_follows_the_slice_that_it_changed() {
    let mut follower = Follower::start_scripted();
    follower.api.serve_empty("services");
    follower.api.serve_empty("nodes");
    let call = follower.api.next("endpointslices").await;
    let selector = "!service.kubernetes.io/headless";
    assert_eq!(call.get("labelSelector"), Some(selector));
    assert_eq!(call.get("fieldSelector"), None);
    let watch = call.stream();
    let history = slice("web-a", 1, "2001-02-03T04:05:06.789Z");
    watch.event("ADDED", &history).await;
    watch.bookmark(5, true).await;
    let batch = follower.batch().await;
    assert!(matches!(batch[..], [Event::Apply(_)]), "{batch:?}");
    follower.settle().await;

    watch
        .event("MODIFIED", &slice("web-a", 6, "2999-01-01T00:00:00.5Z"))
        .await;
    let batch = follower.batch().await;
    let [
        Event::Apply(_),
        Event::EndpointsChanged { slice: changed, at },
    ] = &batch[..]
    else {
        panic!("{batch:?}");
    };
    assert_eq!(changed.to_string(), "default/web-a");
    let since_epoch = at.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(since_epoch, Duration::from_millis(32_472_144_000_500));
    watch.event("MODIFIED", &slice("web-a", 7, "soon")).await;
    let batch = follower.batch().await;
    assert!(matches!(batch[..], [Event::Apply(_)]), "{batch:?}");
}

#[tokio::test(start_paused = true)]
async fn service_that_is_no_longer_ours_goes() {
    let mut follower = Follower::start();
    let watch = follower.listed(&[service("a", 1)], 5).await;
    let mut changed = service("a", 6);
    changed["spec"]["type"] = json!("ExternalName");
    watch.event("MODIFIED", &changed).await;
    follower.settle().await;
    assert_eq!(follower.names(), [""; 0]);
    watch.event("DELETED", &service("a", 7)).await;
    follower.settle().await;
    assert_eq!(follower.deleted, ["a"]);
}
