//! Requests for which there is no place are refused at once.

use std::{sync::Arc, time::Duration};

use hyper::StatusCode;
use node_lb::{
    config::HttpConfig,
    http::{Body, Class, Handler, Request, Response, Server, response, text},
};
use tokio::{sync::Semaphore, task::JoinHandle, time::timeout};

use crate::{
    client::{PATIENCE, Reply, get, request},
    support::{Parts, eventually, get_over_http2, http2, steady_clock},
};

#[tokio::test]
async fn beyond_the_limit_the_answer_is_429_and_to_retry_after_a_second() {
    let (parts, gate) = (limited(2, 1), Gate::default());
    let server = parts.serve(gate.clone());
    let held = [hold(&server, "GET", "/"), hold(&server, "HEAD", "/")];
    gate.entered(2).await;

    let refused = get(server.address(), "/").await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(refused.headers["content-type"], "text/plain; charset=utf-8");
    assert_eq!(refused.headers["x-content-type-options"], "nosniff");
    assert_eq!(refused.body, "Too many requests, please try again later.\n");
    let refusals = "node_lb_http_request_terminations_total{code=\"429\",server=\"test\"}";
    assert_eq!(parts.metric(refusals), 1.0);

    // The other kind has places of its own.
    let writing = hold(&server, "DELETE", "/");
    gate.entered(3).await;
    assert_eq!(request(server.address(), "POST", "/").await.status, 429);

    let high = "node_lb_http_current_inflight_requests{request_kind=\"readOnly\"}";
    eventually(|| parts.metric(high) == 2.0).await;
    gate.open();
    for served in held.into_iter().chain([writing]) {
        assert_eq!(served.await.unwrap().status, 200);
    }
    assert_eq!(get(server.address(), "/").await.status, 200);
}

#[tokio::test]
async fn probes_need_no_place_and_streams_none_of_the_others() {
    let (parts, gate) = (limited(1, 1), Gate::default());
    let server = parts.serve(gate.clone());
    let held = hold(&server, "GET", "/");
    gate.entered(1).await;
    let exempt = [
        hold(&server, "GET", "/healthz"),
        hold(&server, "GET", "/watch"),
    ];
    gate.entered(3).await;
    gate.open();
    for served in exempt.into_iter().chain([held]) {
        assert_eq!(served.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn streams_are_limited_apart() {
    let (parts, gate) = (limited(1, 1), Gate::default());
    let server = parts.serve(gate.clone());
    let held: Vec<_> = (0..64).map(|_| hold(&server, "GET", "/watch")).collect();
    gate.entered(64).await;
    let refused = get(server.address(), "/watch").await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.headers["retry-after"], "1");
    let other = hold(&server, "GET", "/");
    gate.entered(65).await;
    gate.open();
    for served in held.into_iter().chain([other]) {
        assert_eq!(served.await.unwrap().status, 200);
    }
    assert_eq!(get(server.address(), "/watch").await.status, 200);
}

#[tokio::test]
async fn zero_means_no_limit() {
    let (parts, gate) = (limited(0, 0), Gate::default());
    let server = parts.serve(gate.clone());
    let held: Vec<_> = (0..100).map(|_| hold(&server, "GET", "/")).collect();
    gate.entered(100).await;
    gate.open();
    for served in held {
        assert_eq!(served.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn what_outlives_its_deadline_keeps_its_place_until_it_ends() {
    steady_clock();
    let parts = Parts::new(HttpConfig {
        max_requests_inflight: 1,
        request_timeout: Duration::from_millis(200),
        ..HttpConfig::default()
    });
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(std::sync::Mutex::new(released));
    let server = parts.serve(move |request: Request| {
        let released = released.clone();
        async move {
            let work = move || released.lock().unwrap().recv();
            let _ = node_lb::http::run_blocking(&request, work).await;
            text(StatusCode::OK, "ok")
        }
    });
    assert_eq!(get(server.address(), "/").await.status, 504);
    assert_eq!(get(server.address(), "/").await.status, 429);
    drop(release);
    eventually(|| parts.metric("node_lb_http_requests_past_deadline") == 0.0).await;
    assert_eq!(get(server.address(), "/").await.status, 200);
}

#[tokio::test]
async fn an_answer_that_is_still_being_taken_keeps_its_place() {
    for per_request_deadline in [true, false] {
        let parts = Parts::new(HttpConfig {
            max_requests_inflight: 1,
            per_request_deadline,
            ..HttpConfig::default()
        });
        let server = parts.serve(async |_: Request| {
            let body = Body::stream(futures_util::stream::pending());
            response(StatusCode::OK, "text/plain", body)
        });
        let mut client = http2(&server).await;
        let answer = client.send_request(get_over_http2("/")).await.unwrap();
        assert_eq!(get(server.address(), "/").await.status, 429);
        drop(answer);
        let mut status = 429;
        while status == 429 {
            status = timeout(PATIENCE, head(&server)).await.unwrap();
        }
        assert_eq!(status, 200);
    }
}

/// The status of an answer; its body never comes.
async fn head(server: &Server) -> u16 {
    let mut client = http2(server).await;
    let answer = client.send_request(get_over_http2("/")).await.unwrap();
    answer.status().as_u16()
}

/// Answers once it is opened.
#[derive(Clone)]
struct Gate {
    entered: Arc<Semaphore>,
    opened: Arc<Semaphore>,
}

impl Default for Gate {
    fn default() -> Self {
        let closed = || Arc::new(Semaphore::new(0));
        Self {
            entered: closed(),
            opened: closed(),
        }
    }
}

impl Gate {
    /// Waits until so many requests have arrived.
    async fn entered(&self, requests: usize) {
        eventually(|| self.entered.available_permits() >= requests).await;
    }

    fn open(&self) {
        self.opened.close();
    }
}

impl Handler for Gate {
    fn class(&self, request: &Request) -> Class {
        match request.uri().path() {
            "/healthz" => Class::Probe,
            "/watch" => Class::Stream,
            _ => Class::Bounded,
        }
    }

    async fn call(&self, _: Request) -> Response {
        self.entered.add_permits(1);
        let _ = self.opened.acquire().await; // closed means open here
        text(StatusCode::OK, "ok")
    }
}

fn limited(read_only: usize, mutating: usize) -> Parts {
    Parts::new(HttpConfig {
        max_requests_inflight: read_only,
        max_mutating_requests_inflight: mutating,
        ..HttpConfig::default()
    })
}

fn hold(server: &Server, method: &'static str, path: &'static str) -> JoinHandle<Reply> {
    let address = server.address();
    tokio::spawn(async move { request(address, method, path).await })
}
