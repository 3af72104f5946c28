//! HTTP/2 without TLS, by prior knowledge, on the same ports.

use std::time::Duration;

use hyper::StatusCode;
use node_lb::http::{Limits, Request, text};
use tokio::time::{Instant, sleep};

use crate::{
    client::{PATIENCE, get},
    support::{Parts, ask_over_http2, eventually, get_over_http2, http2, steady_clock},
};

const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn both_versions_are_served_on_one_port() {
    let server = Parts::new(<_>::default()).serve(echo_path);
    let mut client = http2(&server).await;
    for path in ["/a", "/b"] {
        let (status, body) = ask_over_http2(&mut client, path).await.unwrap();
        assert_eq!((status, body), (StatusCode::OK, format!("{path}\n")));
        assert_eq!(get(server.address(), path).await.body, format!("{path}\n"));
    }
}

#[tokio::test]
async fn a_large_answer_arrives_whole() {
    let body = "x".repeat(3 << 20);
    let expected = body.clone() + "\n";
    let server = Parts::new(<_>::default()).serve(move |_: Request| {
        let body = body.clone();
        async move { text(StatusCode::OK, body) }
    });
    let (status, body) = ask_over_http2(&mut http2(&server).await, "/")
        .await
        .unwrap();
    assert_eq!(status, StatusCode::OK);
    assert!(body == expected, "{} bytes", body.len());
}

#[tokio::test]
async fn an_idle_connection_is_closed_before_and_after_a_request() {
    steady_clock();
    let limits = Limits {
        header_timeout: SHORT,
        ..Limits::default()
    };
    let server = Parts::new(<_>::default()).serve_within(echo_path, limits);
    let silent = http2(&server).await;
    let mut idle = http2(&server).await;
    ask_over_http2(&mut idle, "/").await.unwrap();
    eventually(|| silent.is_closed() && idle.is_closed()).await;
}

#[tokio::test]
async fn a_connection_that_works_is_not_idle() {
    steady_clock();
    let limits = Limits {
        header_timeout: SHORT,
        ..Limits::default()
    };
    let server = Parts::new(<_>::default()).serve_within(
        async |_: Request| {
            sleep(SHORT * 3).await;
            text(StatusCode::OK, "slow")
        },
        limits,
    );
    let begun = Instant::now();
    let (status, _) = ask_over_http2(&mut http2(&server).await, "/")
        .await
        .unwrap();
    assert_eq!(status, StatusCode::OK);
    assert!(begun.elapsed() >= SHORT * 3);
}

#[tokio::test]
async fn headers_beyond_their_limits_are_refused() {
    let server = Parts::new(<_>::default()).serve(echo_path);
    let mut client = http2(&server).await;
    let mut many = get_over_http2("/");
    for number in 0..100 {
        let name: hyper::header::HeaderName = format!("x-{number}").parse().unwrap();
        many.headers_mut().insert(name, "a".parse().unwrap());
    }
    let mut long = get_over_http2("/");
    let value = "a".repeat(30_000).parse().unwrap();
    long.headers_mut().insert("x-long", value);
    for request in [many, long] {
        client.ready().await.unwrap();
        let answer = tokio::time::timeout(PATIENCE, client.send_request(request)).await;
        assert_eq!(answer.unwrap().unwrap().status(), 431);
    }
    let (status, _) = ask_over_http2(&mut client, "/").await.unwrap();
    assert_eq!(status, StatusCode::OK, "the connection lives on");
}

async fn echo_path(request: Request) -> node_lb::http::Response {
    text(StatusCode::OK, request.uri().path())
}
