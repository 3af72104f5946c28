//! `/readyz`, and what is refused until the agent knows the whole cluster (KEP-4568).

use std::{sync::Arc, time::Duration};

use http_body_util::BodyExt as _;
use hyper::{StatusCode, Uri};
use node_lb::{
    health::{initialization::Initialization, readiness::Readiness},
    http::{Class, Request, Response, text},
    source::health::SourceHealth,
};

use crate::{
    client::get,
    support::{Of, Parts},
};

#[tokio::test]
async fn failed_checks_are_named_and_their_reasons_withheld() {
    let readiness = Readiness::new();
    let latch = readiness.add_latch("maps", "nothing written");
    assert_eq!(
        ask(&readiness, "/readyz").await,
        (
            500,
            "[+]ping ok\n[-]maps failed: reason withheld\nreadyz check failed\n".into()
        )
    );
    let (status, reason) = ask(&readiness, "/readyz/maps").await;
    assert_eq!(
        (status, reason.as_str()),
        (500, "internal server error: nothing written\n")
    );
    assert_eq!(ask(&readiness, "/readyz/ping").await, (200, "ok".into()));
    assert_eq!(ask(&readiness, "/readyz/other").await.0, 404);

    latch.meet();
    assert_eq!(ask(&readiness, "/readyz").await, (200, "ok".into()));
    assert_eq!(
        ask(&readiness, "/readyz?verbose").await,
        (200, "[+]ping ok\n[+]maps ok\nreadyz check passed\n".into())
    );
}

#[tokio::test]
async fn a_condition_comes_and_goes_and_says_why() {
    let readiness = Readiness::new();
    let detection = readiness.add_condition("pods");
    assert_eq!(ask(&readiness, "/readyz").await, (200, "ok".into()));
    detection.set(Some("no network; set one"));
    let (status, told) = ask(&readiness, "/readyz").await;
    assert_eq!(status, 500);
    assert!(told.contains("[-]pods failed"), "{told}");
    assert_eq!(
        ask(&readiness, "/readyz/pods").await,
        (500, "internal server error: no network; set one\n".into())
    );
    detection.set(None);
    assert_eq!(ask(&readiness, "/readyz").await, (200, "ok".into()));
}

#[tokio::test]
async fn a_process_that_is_told_to_stop_is_not_ready_any_more() {
    let readiness = Readiness::new();
    let shutdown = readiness.add_shutdown();
    assert_eq!(ask(&readiness, "/readyz").await, (200, "ok".into()));
    shutdown.meet();
    let (status, told) = ask(&readiness, "/readyz").await;
    assert_eq!(status, 500);
    assert!(told.contains("[-]shutdown failed"), "{told}");
    let (status, reason) = ask(&readiness, "/readyz/shutdown").await;
    assert_eq!(
        (status, reason.as_str()),
        (500, "internal server error: process is shutting down\n")
    );
}

#[tokio::test]
async fn checks_can_be_excluded_by_name() {
    let readiness = Readiness::new();
    readiness.add_latch("a/b", "missing");
    readiness.add_latch("c", "missing");
    assert_eq!(
        ask(&readiness, "/readyz?exclude=a%2Fb&exclude=c").await,
        (200, "ok".into())
    );
    assert_eq!(
        ask(
            &readiness,
            "/readyz?exclude=a/b&exclude=d&exclude=c&verbose"
        )
        .await,
        (
            200,
            "[+]ping ok\n[+]a/b excluded: ok\n[+]c excluded: ok\n\
             warn: some health checks cannot be excluded: no matches for \"d\"\n\
             readyz check passed\n"
                .into()
        )
    );
    assert_eq!(ask(&readiness, "/readyz?exclude=c").await.0, 500);
}

#[tokio::test(start_paused = true)]
async fn each_resource_is_a_check_and_the_post_start_check_waits_for_all() {
    let readiness = Readiness::new();
    let source = Arc::new(SourceHealth::new(["nodes", "services"]));
    readiness.add_informers(&source);
    let initialization = Arc::new(Initialization::new(source.clone()));
    let waiting = tokio::spawn(readiness.wait_for(initialization.clone(), LIMIT));
    source.synced("nodes");
    let (status, told) = ask(&readiness, "/readyz").await;
    assert_eq!(status, 500);
    assert!(told.contains("[+]informer-sync/nodes ok\n"), "{told}");
    assert!(told.contains("[-]informer-sync/services failed"), "{told}");
    assert!(
        told.contains("[-]poststarthook/cache-initialization failed"),
        "{told}"
    );

    source.synced("services");
    assert!(!waiting.is_finished(), "the maps have nothing yet");
    initialization.finish();
    waiting.await.unwrap();
    assert_eq!(ask(&readiness, "/readyz").await, (200, "ok".into()));
}

#[tokio::test(start_paused = true)]
async fn the_post_start_check_gives_up_at_its_limit_and_succeeds() {
    let source = Arc::new(SourceHealth::new(["services"]));
    let initialization = Arc::new(Initialization::new(source));
    let readiness = Readiness::new();
    let waiting = tokio::spawn(readiness.wait_for(initialization, LIMIT));
    tokio::time::sleep(LIMIT - Duration::from_secs(1)).await;
    assert_eq!(ask(&readiness, "/readyz").await.0, 500);
    waiting.await.unwrap();
    assert_eq!(ask(&readiness, "/readyz").await, (200, "ok".into()));
}

#[tokio::test]
async fn until_the_cluster_is_known_only_what_needs_it_whole_is_refused() {
    let parts = Parts::uninitialized(<_>::default());
    for class in [Class::Probe, Class::Bounded] {
        let server = parts.serve(Of(class, ok));
        assert_eq!(get(server.address(), "/").await.status, 200, "{class:?}");
    }
    for class in [Class::Wide, Class::Stream] {
        let server = parts.serve(Of(class, ok));
        let refused = get(server.address(), "/").await;
        assert_eq!(refused.status, 429, "{class:?}");
        assert_eq!(refused.headers["retry-after"], "1");
        let status = refused.json();
        assert_eq!(status["reason"], "TooManyRequests");
        assert_eq!(status["details"]["retryAfterSeconds"], 1);
        assert!(
            status["message"].as_str().unwrap().contains("services"),
            "{status}"
        );
    }
    let refusals = "node_lb_http_request_terminations_total{code=\"429\",server=\"test\"}";
    assert_eq!(parts.metric(refusals), 2.0);

    parts.initialization.finish();
    for class in [Class::Wide, Class::Stream] {
        let server = parts.serve(Of(class, ok));
        assert_eq!(get(server.address(), "/").await.status, 200, "{class:?}");
    }
}

const LIMIT: Duration = Duration::from_secs(60);

async fn ok(_: Request) -> Response {
    text(StatusCode::OK, "ok")
}

async fn ask(readiness: &Readiness, uri: &str) -> (u16, String) {
    let answer = readiness.answer(&uri.parse::<Uri>().unwrap());
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}
