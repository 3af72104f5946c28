//! `/readyz`, and what is refused while the caches are not initialised (KEP-4568).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::BodyExt as _;
use hyper::{StatusCode, Uri};
use node_lb::{
    health::{caches::Caches, readiness::Readiness},
    http::{Body, Class, Request, Response, response, text},
    source::health::SourceHealth,
};

use crate::{
    client::get,
    support::{Of, Parts, get_over_http2, http2},
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
    let caches = Arc::new(Caches::new(["nodes", "services"]));
    let readiness = Readiness::new();
    let source = Arc::new(SourceHealth::new(["nodes", "services"]));
    readiness.add_informers(&source);
    let waiting = tokio::spawn(readiness.wait_for_caches(caches.clone(), LIMIT));
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
    caches.initialized("nodes");
    caches.initialized("services");
    waiting.await.unwrap();
    assert_eq!(ask(&readiness, "/readyz").await, (200, "ok".into()));

    // One that starts over does not make the agent unready: what needs it is refused meanwhile.
    caches.reinitializing("services");
    assert_eq!(ask(&readiness, "/readyz").await, (200, "ok".into()));
}

#[tokio::test(start_paused = true)]
async fn the_post_start_check_gives_up_at_its_limit_and_succeeds() {
    let caches = Arc::new(Caches::new(["services"]));
    let readiness = Readiness::new();
    let waiting = tokio::spawn(readiness.wait_for_caches(caches.clone(), LIMIT));
    tokio::time::sleep(LIMIT - Duration::from_secs(1)).await;
    assert_eq!(ask(&readiness, "/readyz").await.0, 500);
    waiting.await.unwrap();
    assert_eq!(ask(&readiness, "/readyz").await, (200, "ok".into()));
    caches.initialized("services");
    caches.reinitializing("services");
    assert_eq!(ask(&readiness, "/readyz").await.0, 200, "it runs once");
}

#[tokio::test]
async fn while_a_cache_is_not_initialised_only_what_needs_it_whole_is_refused() {
    let parts = Parts::new(<_>::default());
    parts.caches.reinitializing("services");
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

        parts.caches.initialized("services");
        assert_eq!(get(server.address(), "/").await.status, 200, "{class:?}");
        parts.caches.reinitializing("services");
    }
    let refusals = "node_lb_http_request_terminations_total{code=\"429\",server=\"test\"}";
    assert_eq!(parts.metric(refusals), 2.0);
}

#[tokio::test]
async fn a_cache_that_starts_over_ends_its_streams_without_an_error() {
    let parts = Parts::new(<_>::default());
    let server = parts.serve(Of(Class::Stream, async |_: Request| {
        let first = stream::iter([Bytes::from_static(b"first\n")]);
        let body = Body::stream(first.chain(stream::pending()));
        response(StatusCode::OK, "application/json", body)
    }));
    let mut client = http2(&server).await;
    let mut body = client
        .send_request(get_over_http2("/"))
        .await
        .unwrap()
        .into_body();
    assert_eq!(
        body.frame().await.unwrap().unwrap().into_data().unwrap(),
        "first\n"
    );
    parts.caches.reinitializing("services");
    assert_eq!(body.collect().await.unwrap().to_bytes(), "");
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
