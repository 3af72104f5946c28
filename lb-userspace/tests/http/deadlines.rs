//! Requests end at their deadline, whatever their handlers and clients do (KEP-4460).

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use node_lb::{
    config::HttpConfig,
    http::{Body, Class, Limits, Request, Response, response, run_blocking, text},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::{
    client::{PATIENCE, Reply, get, read_reply, read_to_close},
    support::{
        Of, Parts, ask_over_http2, eventually, get_over_http2, http2, never_idle, steady_clock,
    },
};

const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_handler_that_never_answers_is_cut_over_http1_and_http2() {
    steady_clock();
    let parts = parts();
    let server = parts.serve(never);
    let reply = get(server.address(), "/").await;
    assert_timed_out(&reply);

    let mut client = http2(&server).await;
    let (status, body) = ask_over_http2(&mut client, "/").await.unwrap();
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    assert!(body.contains(r#""reason":"Timeout""#), "{body}");
    let terminations = "node_lb_http_request_terminations_total{code=\"504\",server=\"test\"}";
    assert_eq!(parts.metric(terminations), 2.0);
    eventually(|| parts.metric("node_lb_http_requests_past_deadline") == 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_its_thread_does_not_block_its_client() {
    never_idle();
    let parts = parts();
    let (release, released) = mpsc::channel::<Infallible>();
    let released = Arc::new(std::sync::Mutex::new(released));
    let server = parts.serve(move |_: Request| {
        let released = released.clone();
        async move {
            // Blocks without any await, so that it cannot be dropped.
            let _ = released.lock().unwrap().recv();
            text(StatusCode::OK, "too late")
        }
    });
    assert_timed_out(&get(server.address(), "/blocked?who=me").await);
    let running = parts.stack.post_timeout().list();
    assert!(running[0].running, "{running:?}");
    assert_eq!(running[0].uri, "/blocked?who=me");
    assert_eq!(parts.metric("node_lb_http_requests_past_deadline"), 1.0);

    drop(release);
    eventually(|| !parts.stack.post_timeout().list()[0].running).await;
    let returned = "node_lb_http_request_post_timeout_total{server=\"test\",status=\"returned\"}";
    assert_eq!(parts.metric(returned), 1.0);
}

#[tokio::test]
async fn work_on_another_thread_is_followed_until_it_really_ends() {
    steady_clock();
    let parts = parts();
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let server = parts.serve(move |request: Request| {
        let told = told.clone();
        async move {
            let work = move || {
                while !told.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                }
            };
            run_blocking(&request, work).await.unwrap();
            text(StatusCode::OK, "too late")
        }
    });
    assert_timed_out(&get(server.address(), "/").await);
    sleep(SHORT).await;
    let listed = parts.stack.post_timeout().list().remove(0);
    assert!(listed.running && listed.overrun_seconds >= SHORT.as_secs_f64());
    stop.store(true, Ordering::Relaxed);
    eventually(|| !parts.stack.post_timeout().list()[0].running).await;
}

#[tokio::test]
async fn an_answer_that_has_begun_is_broken_off_over_http1_and_http2() {
    steady_clock();
    let parts = parts();
    let server = parts.serve(async |_: Request| {
        let first = stream::iter([Bytes::from_static(b"begun")]);
        stream_of(Body::stream(first.chain(stream::pending())))
    });
    let reply = get(server.address(), "/").await;
    assert_eq!(reply.status, 200);
    assert!(
        reply.body.contains("begun") && !reply.body.ends_with("0\r\n\r\n"),
        "{}",
        reply.body
    );

    let mut client = http2(&server).await;
    ask_over_http2(&mut client, "/")
        .await
        .expect_err("the stream is reset");
    let (status, _) = ask_over_http2(&mut client, "/?timeout=foo").await.unwrap();
    assert_eq!(status, 400, "the connection lives on");
    assert_eq!(
        parts.metric("node_lb_http_request_aborts_total{server=\"test\"}"),
        2.0
    );
}

#[tokio::test]
async fn a_hot_loop_of_writes_ends_at_the_deadline() {
    steady_clock();
    let parts = parts();
    let server = parts.serve(async |_: Request| {
        stream_of(Body::stream(stream::repeat(Bytes::from_static(
            &[b'x'; 8192],
        ))))
    });
    let begun = Instant::now();
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    read_to_close(&mut stream).await;
    assert!(begun.elapsed() >= SHORT);
}

#[tokio::test]
async fn the_client_may_ask_for_less_time_but_not_for_more() {
    steady_clock();
    let server = Parts::new(HttpConfig {
        request_timeout: PATIENCE * 2,
        ..HttpConfig::default()
    });
    let server = server.serve(never);
    let reply = get(server.address(), "/?timeout=200ms").await;
    assert_timed_out(&reply);
    assert!(reply.body.contains("200ms"), "{}", reply.body);

    let server = parts().serve(never);
    for timeout in ["1h", "0", "-1s", ""] {
        let begun = Instant::now();
        assert_timed_out(&get(server.address(), &format!("/?timeout={timeout}")).await);
        assert!((SHORT..PATIENCE).contains(&begun.elapsed()), "{timeout}");
    }
}

#[tokio::test]
async fn a_malformed_timeout_is_400_and_the_handler_is_not_called() {
    let called = Arc::new(AtomicBool::new(false));
    let by_handler = called.clone();
    let server = parts().serve(move |_: Request| {
        by_handler.store(true, Ordering::Relaxed);
        async { text(StatusCode::OK, "called") }
    });
    for timeout in ["foo", "10", "1d"] {
        let reply = get(server.address(), &format!("/?timeout={timeout}")).await;
        assert_eq!(
            (reply.status, reply.json()["reason"].as_str()),
            (400, Some("BadRequest"))
        );
        let message = reply.json()["message"].to_string();
        assert!(
            message.contains("invalid timeout specified in the request URL"),
            "{message}"
        );
    }
    assert!(!called.load(Ordering::Relaxed));
}

#[tokio::test]
async fn streams_have_no_deadline_and_do_not_read_the_parameter() {
    steady_clock();
    let parts = parts();
    let server = parts.serve(Of(Class::Stream, async |_: Request| {
        let ticks = stream::unfold(0, async |tick| {
            sleep(SHORT / 3).await;
            (tick < 6).then(|| (Bytes::from(format!("{tick}\n")), tick + 1))
        });
        stream_of(Body::stream(ticks))
    }));
    let mut client = http2(&server).await;
    let (status, body) = ask_over_http2(&mut client, "/?timeout=foo").await.unwrap();
    assert_eq!(
        (status.as_u16(), body.as_str()),
        (200, "0\n1\n2\n3\n4\n5\n")
    );
    let reply = get(server.address(), "/?timeout=1ms").await;
    assert!(
        reply.body.ends_with("0\r\n\r\n"),
        "not whole: {}",
        reply.body
    );
}

#[tokio::test]
async fn a_body_that_never_comes_ends_at_the_deadline_over_http1_and_http2() {
    steady_clock();
    let server = parts().serve(read_body);
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let half = b"POST / HTTP/1.1\r\nHost: node\r\nContent-Length: 5\r\n\r\nx";
    stream.write_all(half).await.unwrap();
    assert_timed_out(&Reply::parse(&read_to_close(&mut stream).await));

    let stream = TcpStream::connect(server.address()).await.unwrap();
    let builder = hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut client, connection) = builder.handshake(io).await.unwrap();
    tokio::spawn(connection);
    let silent = http_body_util::StreamBody::new(stream::pending::<
        Result<hyper::body::Frame<Bytes>, Infallible>,
    >());
    let request = hyper::Request::post("http://node/").body(silent).unwrap();
    let answer = client.send_request(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
}

#[tokio::test]
async fn a_connection_serves_on_after_a_request_was_cut() {
    steady_clock();
    let server = parts().serve(async |request: Request| match request.uri().path() {
        "/never" => never(request).await,
        _ => text(StatusCode::OK, "ok"),
    });
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    for (path, status) in [("/never", 504), ("/", 200), ("/never", 504), ("/", 200)] {
        let head = format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        assert_eq!(read_reply(&mut stream).await.status, status);
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_at_the_deadline() {
    steady_clock();
    let parts = parts();
    let limits = Limits {
        write_timeout: PATIENCE * 2,
        ..Limits::default()
    };
    let server = parts.serve_within(huge_or_small, limits);
    let mut deaf = TcpStream::connect(server.address()).await.unwrap();
    deaf.write_all(REQUEST).await.unwrap();
    parts.wait_for_aborts(1).await;
    assert!(read_to_close(&mut deaf).await.len() < HUGE);
}

#[tokio::test]
async fn an_http2_client_that_opens_no_window_is_cut_at_the_deadline() {
    steady_clock();
    let parts = parts();
    let limits = Limits {
        write_timeout: PATIENCE * 2,
        ..Limits::default()
    };
    let server = parts.serve_within(huge_or_small, limits);
    let mut client = http2(&server).await;
    // The body of the answer is never polled, so its window stays closed, but pings are answered.
    let answer = client.send_request(get_over_http2("/")).await.unwrap();
    parts.wait_for_aborts(1).await;
    answer.into_body().collect().await.expect_err("cut");
}

#[tokio::test]
async fn trickling_in_or_out_buys_no_time() {
    steady_clock();
    let parts = parts();
    let server = parts.serve_within(
        async |request: Request| match request.method().as_str() {
            "POST" => read_body(request).await,
            _ => huge_or_small(request).await,
        },
        Limits::default(),
    );
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let head = b"POST / HTTP/1.1\r\nHost: node\r\nContent-Length: 60000\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let begun = Instant::now();
    while stream.write_all(b"x").await.is_ok() {
        assert!(begun.elapsed() < PATIENCE, "still connected");
        sleep(SHORT / 20).await;
    }

    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(REQUEST).await.unwrap();
    let begun = Instant::now();
    let (mut bytes, mut read) = ([0; 65_536], 0);
    while let Ok(more @ 1..) = stream.read(&mut bytes).await {
        read += more;
        assert!(begun.elapsed() < PATIENCE, "still connected");
        sleep(SHORT / 20).await;
    }
    assert!(read < HUGE);

    let mut client = http2(&server).await;
    let answer = client.send_request(get_over_http2("/")).await.unwrap();
    let mut body = answer.into_body();
    let begun = Instant::now();
    while let Some(Ok(_)) = body.frame().await {
        assert!(begun.elapsed() < PATIENCE, "still connected");
        sleep(SHORT / 20).await;
    }
    assert!(begun.elapsed() >= SHORT / 2);
}

#[tokio::test]
async fn a_client_with_the_server_s_own_deadline_leaves_nothing_behind() {
    steady_clock();
    let parts = parts();
    let heard = Arc::new(AtomicUsize::new(0));
    let server = parts.serve({
        let heard = heard.clone();
        move |request| {
            heard.fetch_add(1, Ordering::Relaxed);
            never(request)
        }
    });
    let asked = 20;
    for _ in 0..asked {
        let reply = tokio::time::timeout(SHORT, get(server.address(), "/?timeout=300ms"));
        // Whichever side ends first.
        if let Ok(reply) = reply.await {
            assert_timed_out(&reply);
        }
    }
    assert_eq!(heard.load(Ordering::Relaxed), asked);
    eventually(|| parts.metric("node_lb_http_requests_past_deadline") == 0.0).await;
    assert!(
        parts
            .stack
            .post_timeout()
            .list()
            .iter()
            .all(|late| !late.running)
    );
}

#[tokio::test]
async fn a_stream_that_is_not_read_is_cut_after_the_write_timeout() {
    steady_clock();
    let parts = parts();
    let limits = Limits {
        write_timeout: SHORT,
        ..Limits::default()
    };
    let endless = Of(Class::Stream, async |request: Request| {
        match request.uri().path() {
            "/small" => text(StatusCode::OK, "small"),
            _ => stream_of(Body::stream(stream::repeat(Bytes::from_static(
                &[b'x'; 8192],
            )))),
        }
    });
    let server = parts.serve_within(endless, limits);
    let mut deaf = TcpStream::connect(server.address()).await.unwrap();
    deaf.write_all(REQUEST).await.unwrap();
    parts.wait_for_aborts(1).await;

    let mut client = http2(&server).await;
    let _unread = client.send_request(get_over_http2("/")).await.unwrap();
    parts.wait_for_aborts(2).await;
}

#[tokio::test]
async fn a_client_that_goes_takes_its_handler_with_it() {
    steady_clock();
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let dropped = Arc::new(AtomicBool::new(false));
    let by_handler = dropped.clone();
    let parts = Parts::new(HttpConfig {
        request_timeout: PATIENCE * 2,
        ..HttpConfig::default()
    });
    let server = parts.serve(move |request: Request| {
        let dropped = Dropped(by_handler.clone());
        async move {
            let _dropped = dropped;
            never(request).await
        }
    });
    let mut client = http2(&server).await;
    let answer = tokio::time::timeout(SHORT, client.send_request(get_over_http2("/"))).await;
    answer.expect_err("no handler answers");
    eventually(|| dropped.load(Ordering::Relaxed)).await;
}

#[tokio::test]
async fn without_the_feature_gate_nothing_is_cut() {
    steady_clock();
    let parts = Parts::new(HttpConfig {
        per_request_deadline: false,
        ..short()
    });
    let server = parts.serve(async |_: Request| {
        sleep(SHORT * 2).await;
        text(StatusCode::OK, "at last")
    });
    let reply = get(server.address(), "/?timeout=foo").await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "at last\n"));
}

#[tokio::test]
async fn a_half_sent_request_line_never_becomes_a_request() {
    steady_clock();
    let limits = Limits {
        header_timeout: SHORT,
        ..Limits::default()
    };
    let server = parts().serve_within(never, limits);
    // The part that HTTP/2's preface and HTTP/1 have in common, and then silence.
    for start in ["", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(start.as_bytes()).await.unwrap();
        let begun = Instant::now();
        let mut rest = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        let _ = read.unwrap_or_else(|_| panic!("{start:?} holds its connection"));
        assert!(begun.elapsed() >= SHORT / 2, "{start:?}");
    }
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: node\r\n\r\n";

/// More than the buffers of both ends can hold.
const HUGE: usize = 64 << 20;

fn short() -> HttpConfig {
    HttpConfig {
        request_timeout: SHORT,
        ..HttpConfig::default()
    }
}

fn parts() -> Parts {
    Parts::new(short())
}

async fn never(_: Request) -> Response {
    std::future::pending().await
}

async fn read_body(request: Request) -> Response {
    match request.into_body().collect().await {
        Ok(_) => text(StatusCode::OK, "whole"),
        Err(error) => text(StatusCode::BAD_REQUEST, error),
    }
}

async fn huge_or_small(request: Request) -> Response {
    match request.uri().path() {
        "/small" => text(StatusCode::OK, "small"),
        _ => text(StatusCode::OK, "x".repeat(HUGE)),
    }
}

fn stream_of(body: Body) -> Response {
    response(StatusCode::OK, "text/plain", body)
}

fn assert_timed_out(reply: &Reply) {
    assert_eq!(reply.status, 504);
    let status = reply.json();
    assert_eq!(
        (&status["kind"], &status["reason"]),
        (&"Status".into(), &"Timeout".into())
    );
}
