//! What a client can and cannot do to a server.

use std::{sync::Arc, time::Duration};

use http_body_util::BodyExt;
use hyper::StatusCode;
use node_lb::http::{Exchange, Handler, Limits, Listening, Request, Response, Server, bind, text};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use crate::{
    client::{PATIENCE, any_port, get, is_refused, read_reply, read_to_close},
    support::{share, steady_clock},
};

const SHORT: Duration = Duration::from_millis(300);
const KEEP_ALIVE: &[u8] = b"GET / HTTP/1.1\r\nHost: node\r\n\r\n";

#[tokio::test]
async fn a_connection_serves_one_request_after_the_other() {
    let server = start(ok, Limits::default());
    let mut stream = connect(&server).await;
    for _ in 0..3 {
        stream.write_all(KEEP_ALIVE).await.unwrap();
        let reply = read_reply(&mut stream).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, "ok\n"));
        assert_eq!(reply.headers["x-content-type-options"], "nosniff");
    }
}

#[tokio::test]
async fn a_client_that_shuts_down_its_side_is_still_answered() {
    let server = start(ok, Limits::default());
    let mut stream = connect(&server).await;
    stream.write_all(KEEP_ALIVE).await.unwrap();
    stream.shutdown().await.unwrap();
    assert!(read_to_close(&mut stream).await.ends_with(b"ok\n"));
}

#[tokio::test]
async fn headers_that_trickle_in_are_cut_off_at_the_header_timeout() {
    steady_clock();
    let limits = Limits {
        header_timeout: SHORT,
        ..Limits::default()
    };
    let server = start(ok, limits);
    let mut stream = connect(&server).await;
    let begun = Instant::now();
    stream.write_all(b"GET / HTTP/1.1\r\nSlow: ").await.unwrap();
    while stream.write_all(b"a").await.is_ok() {
        assert!(begun.elapsed() < PATIENCE, "still connected");
        sleep(SHORT / 20).await;
    }
    assert!(begun.elapsed() >= SHORT);
}

#[tokio::test]
async fn an_idle_connection_is_closed_at_the_header_timeout() {
    steady_clock();
    let limits = Limits {
        header_timeout: SHORT,
        ..Limits::default()
    };
    let server = start(ok, limits);
    let mut silent = connect(&server).await;
    assert_eq!(read_to_close(&mut silent).await, b"");

    let mut idle = connect(&server).await;
    idle.write_all(KEEP_ALIVE).await.unwrap();
    assert!(read_to_close(&mut idle).await.ends_with(b"ok\n"));
}

#[tokio::test]
async fn oversized_headers_get_431_and_nothing_more_is_read() {
    let server = start(ok, Limits::default());
    let long = format!("GET / HTTP/1.1\r\nLong: {}", "a".repeat(1 << 20));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(100));
    for head in [long, many] {
        let reply = send(&server, head.as_bytes()).await;
        assert!(reply.starts_with("HTTP/1.1 431"), "{reply}");
    }
}

#[tokio::test]
async fn garbage_gets_400() {
    let server = start(ok, Limits::default());
    let requests: [&[u8]; 4] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 looks like TLS\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ];
    for request in requests {
        let reply = send(&server, request).await;
        assert!(reply.starts_with("HTTP/1.1 400"), "{request:?}: {reply}");
    }
    assert_eq!(get(server.address(), "/").await.status, 200);
}

#[tokio::test]
async fn a_body_beyond_its_limit_is_refused_declared_or_not() {
    let limits = Limits {
        body_bytes: 10,
        ..Limits::default()
    };
    let server = start(echo, limits);
    let declared = |length| {
        let body = "x".repeat(length);
        format!("POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
    };
    let chunked = |length| {
        let body = "x".repeat(length);
        format!(
            "POST / HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
             {length:x}\r\n{body}\r\n0\r\n\r\n"
        )
    };
    let cases = [
        (declared(10), "200"),
        (declared(11), "413"),
        (chunked(10), "200"),
        (chunked(11), "400"),
    ];
    for (request, status) in cases {
        let reply = send(&server, request.as_bytes()).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status}")), "{reply}");
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_at_the_write_timeout() {
    steady_clock();
    let limits = Limits {
        write_timeout: SHORT,
        ..Limits::default()
    };
    let server = start(huge, limits);
    let mut deaf = connect(&server).await;
    deaf.write_all(KEEP_ALIVE).await.unwrap();
    sleep(SHORT * 4).await;
    assert!(read_to_close(&mut deaf).await.len() < HUGE);
}

#[tokio::test]
async fn a_layer_can_move_the_write_deadline() {
    steady_clock();
    let limits = Limits {
        write_timeout: Duration::from_secs(3600),
        ..Limits::default()
    };
    let server = start(Hurried(huge), limits);
    let mut deaf = connect(&server).await;
    deaf.write_all(KEEP_ALIVE).await.unwrap();
    sleep(SHORT * 4).await;
    assert!(read_to_close(&mut deaf).await.len() < HUGE);
}

#[tokio::test]
async fn a_crowded_server_does_not_keep_connections_alive() {
    let limits = Limits {
        connections: 2,
        ..Limits::default()
    };
    let server = start(ok, limits);
    let mut early = connect(&server).await;
    early.write_all(KEEP_ALIVE).await.unwrap();
    let reply = read_reply(&mut early).await;
    assert_eq!(reply.headers.get("connection"), None);

    let mut late = connect(&server).await;
    late.write_all(KEEP_ALIVE).await.unwrap();
    let answer = read_to_close(&mut late).await;
    assert!(
        String::from_utf8(answer)
            .unwrap()
            .contains("connection: close")
    );
}

#[tokio::test]
async fn closing_without_grace_cuts_connections_and_frees_the_port() {
    steady_clock();
    let server = start(never, Limits::default());
    let address = server.address();
    let mut busy = connect(&server).await;
    busy.write_all(KEEP_ALIVE).await.unwrap();
    let mut idle = connect(&server).await;
    sleep(SHORT).await; // both accepted
    server.close(Duration::ZERO).await;
    assert_eq!(read_to_close(&mut busy).await, b"");
    assert_eq!(read_to_close(&mut idle).await, b"");
    assert!(is_refused(address).await);
    bind(address).expect("the port is free at once");
}

#[tokio::test]
async fn closing_with_grace_lets_requests_finish() {
    let entered = Arc::new(Notify::new());
    let finish = Arc::new(Notify::new());
    let gate = (entered.clone(), finish.clone());
    let handler = move |_: Request| {
        let (entered, finish) = gate.clone();
        async move {
            entered.notify_one();
            finish.notified().await;
            text(StatusCode::OK, "finished")
        }
    };
    let server = start(handler, Limits::default());
    let address = server.address();
    let mut busy = connect(&server).await;
    busy.write_all(KEEP_ALIVE).await.unwrap();
    entered.notified().await;
    let closing = tokio::spawn(server.close(PATIENCE));
    while !is_refused(address).await {
        sleep(SHORT / 20).await;
    }
    finish.notify_one();
    assert!(read_to_close(&mut busy).await.ends_with(b"finished\n"));
    closing.await.unwrap();
}

#[tokio::test]
async fn grace_ends() {
    steady_clock();
    let server = start(never, Limits::default());
    let mut busy = connect(&server).await;
    busy.write_all(KEEP_ALIVE).await.unwrap();
    sleep(SHORT).await; // accepted
    timeout(PATIENCE, server.close(SHORT)).await.unwrap();
    assert_eq!(read_to_close(&mut busy).await, b"");
}

#[tokio::test]
async fn a_dropped_server_closes() {
    let server = start(ok, Limits::default());
    let address = server.address();
    let mut idle = connect(&server).await;
    drop(server);
    assert_eq!(read_to_close(&mut idle).await, b"");
    assert!(is_refused(address).await);
}

/// More than the buffers of both ends take.
const HUGE: usize = 64 << 20;

async fn ok(_: Request) -> Response {
    text(StatusCode::OK, "ok")
}

async fn echo(request: Request) -> Response {
    match request.into_body().collect().await {
        Ok(body) => node_lb::http::json(StatusCode::OK, body.to_bytes()),
        Err(error) => text(StatusCode::BAD_REQUEST, error),
    }
}

async fn never(_: Request) -> Response {
    std::future::pending().await
}

async fn huge(request: Request) -> Response {
    match request.uri().path() {
        "/small" => text(StatusCode::OK, "small"),
        _ => text(StatusCode::OK, "x".repeat(HUGE)),
    }
}

/// A layer that sets its own deadline.
struct Hurried<H>(H);

impl<H: Handler> Handler for Hurried<H> {
    async fn call(&self, request: Request) -> Response {
        let exchange = request.extensions().get::<Exchange>().unwrap();
        exchange.set_deadline(exchange.arrival() + SHORT);
        self.0.call(request).await
    }
}

fn start(handler: impl Handler, limits: Limits) -> Server {
    let listener = bind(any_port()).unwrap();
    let listening = Listening::alone(listener).unwrap();
    Server::start(listening, Arc::new(handler), limits, share(&limits)).unwrap()
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.address()).await.unwrap()
}

/// Sends all of `bytes` that the server takes, and returns all it says.
async fn send(server: &Server, bytes: &[u8]) -> String {
    let mut stream = connect(server).await;
    let (mut reader, mut writer) = stream.split();
    let write = async {
        let _ = writer.write_all(bytes).await; // it may hang up before it has seen all
    };
    let read = async {
        let mut answer = Vec::new();
        let _ = reader.read_to_end(&mut answer).await; // a reset leaves what came before
        answer
    };
    let ((), answer) = timeout(PATIENCE, async { tokio::join!(write, read) })
        .await
        .expect("the server keeps the connection open");
    String::from_utf8(answer).unwrap()
}
