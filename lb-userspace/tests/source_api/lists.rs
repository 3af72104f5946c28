//! Lists: streamed or in pages, complete or not.

use std::time::Duration;

use node_lb::source::Event;

use crate::{
    follower::Follower,
    objects::{service, undecodable},
};

#[tokio::test(start_paused = true)]
async fn synced_comes_once_after_every_resource_is_complete() {
    let mut follower = Follower::start_scripted();
    let services = follower.listed(&[service("a", 1)], 5).await;
    assert_eq!((follower.names(), follower.synced), (vec!["a"], 0));
    follower.api.serve_empty("endpointslices");
    follower.settle().await;
    assert!(follower.synced == 0 && !follower.health.all_synced());
    let unsynced = follower
        .health
        .states()
        .into_iter()
        .filter(|state| !state.synced);
    assert_eq!(
        unsynced.map(|state| state.name).collect::<Vec<_>>(),
        ["nodes"]
    );

    let node = follower.api.next("nodes").await;
    assert_eq!(node.get("fieldSelector"), Some("metadata.name=node-1"));
    let nodes = node.stream();
    nodes.bookmark(5, true).await;
    assert_eq!(follower.batch().await, [Event::Synced]);
    assert!(follower.health.all_synced());

    // A new list of one resource does not start over.
    services.error(410, "Expired", 0).await;
    follower.listed(&[service("a", 1)], 9).await;
    assert_eq!(follower.synced, 1);
}

#[tokio::test(start_paused = true)]
async fn only_what_is_for_this_proxy_is_asked_for() {
    let mut follower = Follower::start();
    let call = follower.call().await;
    let selector = "!service.kubernetes.io/service-proxy-name";
    assert_eq!(call.get("labelSelector"), Some(selector));
    assert_eq!(call.get("fieldSelector"), Some("spec.clusterIP!=None"));
    assert_eq!(call.get("allowWatchBookmarks"), Some("true"));
    let seconds: u64 = call.get("timeoutSeconds").unwrap().parse().unwrap();
    assert!((300..=600).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn server_that_cannot_stream_is_asked_for_pages() {
    let mut follower = Follower::start();
    follower.call().await.refuse(422, None);
    let first = follower.call().await;
    assert!(!first.is_watch());
    assert_eq!(first.get("resourceVersion"), Some("0"));
    assert_eq!(first.get("limit"), Some("500"));
    first.page(7, "more", &[service("a", 1)]).await;
    let second = follower.call().await;
    assert_eq!(second.get("continue"), Some("more"));
    assert_eq!(second.get("resourceVersion"), None);
    second.page(8, "", &[service("b", 2)]).await;
    let watch = follower.call().await;
    assert!(watch.is_watch() && !watch.is_list());
    assert_eq!(watch.get("resourceVersion"), Some("8"));
    follower.settle().await;
    assert_eq!((follower.names(), follower.synced), (vec!["a", "b"], 1));
    let pages = r#"node_lb_api_requests_total{code="200",resource="services",verb="list"}"#;
    assert_eq!(follower.metric(pages), 2);
    assert_eq!(
        follower.metric(r#"node_lb_api_lists_total{resource="services"}"#),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn page_is_asked_for_again_after_as_long_as_the_server_says() {
    let mut follower = Follower::start();
    follower.call().await.refuse(422, None);
    follower
        .call()
        .await
        .page(7, "more", &[service("a", 1)])
        .await;
    for (code, seconds) in [(429, 45), (503, 70)] {
        let call = follower.call().await;
        assert_eq!(call.get("continue"), Some("more"));
        let at = call.at;
        call.refuse(code, Some(seconds));
        follower
            .api
            .silent("services", Duration::from_secs(seconds))
            .await;
        let again = follower.call().await;
        assert!(
            again.at - at <= Duration::from_secs(seconds + 1),
            "{seconds} s"
        );
        assert_eq!(again.get("continue"), Some("more"));
        again.refuse(500, None);
    }
    follower.call().await.page(7, "", &[]).await;
    follower.settle().await;
    assert_eq!((follower.names(), follower.synced), (vec!["a"], 1));
}

#[tokio::test(start_paused = true)]
async fn expired_token_begins_the_list_again() {
    let mut follower = Follower::start();
    follower.call().await.refuse(422, None);
    let first = [service("a", 1), service("gone", 2)];
    follower.call().await.page(7, "more", &first).await;
    follower.call().await.refuse(410, None);
    let again = follower.call().await;
    assert_eq!(again.get("continue"), None);
    assert_eq!(again.get("resourceVersion"), Some(""));
    again.page(9, "more", &[service("a", 1)]).await;
    let last = follower.call().await;
    follower.settle().await;
    assert_eq!(follower.deleted, [""; 0], "the list is not complete");
    last.page(9, "", &[service("b", 3)]).await;
    follower.settle().await;
    assert_eq!((follower.names(), follower.synced), (vec!["a", "b"], 1));
}

#[tokio::test(start_paused = true)]
async fn first_list_is_handed_on_as_it_comes() {
    let mut follower = Follower::start();
    let stream = follower.call().await.stream();
    for number in 0..1200 {
        stream
            .event("ADDED", &service(&format!("s{number}"), number))
            .await;
    }
    follower.settle().await;
    assert!(follower.services.len() >= 1000 && follower.synced == 0);
    stream.bookmark(1200, true).await;
    follower.settle().await;
    assert_eq!((follower.services.len(), follower.synced), (1200, 1));
}

#[tokio::test(start_paused = true)]
async fn relist_is_one_change_without_a_state_in_between() {
    let mut follower = Follower::start();
    let objects = [
        service("kept", 1),
        service("changed", 2),
        service("gone", 3),
    ];
    let watch = follower.listed(&objects, 5).await;
    watch.error(410, "Expired", 0).await;
    let list = follower.call().await;
    assert_eq!(list.get("resourceVersion"), Some("5"));
    let stream = list.stream();
    for object in [service("kept", 1), service("changed", 8), service("new", 9)] {
        stream.event("ADDED", &object).await;
    }
    follower.quiet(Duration::from_secs(20)).await;
    stream.bookmark(10, true).await;
    let batch = follower.batch().await;
    assert_eq!(batch.len(), 3, "what is known is not repeated: {batch:?}");
    assert_eq!(follower.names(), ["changed", "kept", "new"]);
    assert_eq!(
        (follower.port("changed"), follower.deleted),
        (9, vec!["gone".to_owned()])
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_deleted_by_a_list_that_breaks_off() {
    let mut follower = Follower::start();
    let watch = follower
        .listed(&[service("a", 1), service("b", 2)], 5)
        .await;
    watch.error(410, "Expired", 0).await;
    let begin = r#"{"kind":"ServiceList","metadata":{"resourceVersion":"6"},"items":["#;
    for broken in [
        "{}",
        "",
        "<html></html>",
        begin,
        r#"{"kind":"Status","code":200}"#,
    ] {
        let call = follower.call().await;
        match call.is_watch() {
            // The first request is for a stream, which the server does not support.
            true => {
                call.refuse(400, None);
                follower.call().await.stream().text(broken).await;
            }
            false => call.stream().text(broken).await,
        }
    }
    let call = follower.call().await;
    let stream = call.stream();
    stream.text(begin).await;
    stream.cut().await;
    follower.settle().await;
    assert_eq!(
        (follower.names(), follower.deleted.len()),
        (vec!["a", "b"], 0)
    );

    // An empty list that is complete does delete.
    follower.call().await.page(9, "", &[]).await;
    follower.settle().await;
    assert_eq!((follower.names(), follower.deleted.len()), (vec![], 2));
}

#[tokio::test(start_paused = true)]
async fn list_is_given_up_after_its_time() {
    let mut follower = Follower::start();
    follower.call().await.refuse(400, None);
    let slow = follower.call().await;
    let at = slow.at;
    let stream = slow.stream();
    stream.text(r#"{"kind":"ServiceList","#).await;
    let again = follower.call().await;
    let waited = (again.at - at).as_secs();
    assert!((60..64).contains(&waited), "{waited} s");
    assert!(!again.is_watch());
}

#[tokio::test(start_paused = true)]
async fn streamed_list_that_breaks_off_begins_again() {
    let mut follower = Follower::start();
    let stream = follower.call().await.stream();
    stream.event("ADDED", &service("a", 1)).await;
    stream.event("ADDED", &service("gone", 2)).await;
    drop(stream);
    follower.listed(&[service("a", 1)], 5).await;
    assert_eq!((follower.names(), follower.synced), (vec!["a"], 1));
}

#[tokio::test(start_paused = true)]
async fn object_that_cannot_be_used_costs_no_other() {
    let mut follower = Follower::start();
    follower.call().await.refuse(422, None);
    let items = [service("a", 1), undecodable("bad", 2), service("c", 3)];
    follower.call().await.page(7, "", &items).await;
    follower.settle().await;
    assert_eq!((follower.names(), follower.synced), (vec!["a", "c"], 1));
    let problem = follower.problems["Service default/bad"][0].to_string();
    assert!(problem.contains("spec.ports"), "{problem}");
    let errors = r#"node_lb_api_decode_errors_total{resource="services"}"#;
    assert_eq!(follower.metric(errors), 1);
}
