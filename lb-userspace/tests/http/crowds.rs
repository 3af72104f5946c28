//! Callers that take up connections and do nothing with them. They come from addresses of
//! 127.0.0.0/8, the node itself from the address that the server listens on.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Once,
    time::Duration,
};

use bytes::Bytes;
use hyper::StatusCode;
use node_lb::{
    config::HttpConfig,
    http::{
        ConnectionBudget, Handler, Limits, Listening, Request, Response, Server, bind,
        raise_descriptor_limit, response, text,
    },
};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpSocket, TcpStream},
    time::{Instant, timeout},
};

use crate::{
    client::{PATIENCE, Reply, any_port, read_reply, read_to_close},
    support::{Parts, eventually},
};

const NODE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const PROBE: Ipv4Addr = Ipv4Addr::new(127, 200, 0, 1);
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 100, 0, 1);

const KEEP_ALIVE: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n";
const SILENT: &[u8] = b"";
const HALF: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: node\r\nHalf: a";
const SLOW_READER: &[u8] = b"GET /huge HTTP/1.1\r\nHost: node\r\n\r\n";
const HALF_OF_HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Time-outs that never come: whatever frees a place is not one of them.
const NEVER: Duration = Duration::from_secs(24 * 3600);

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_of_one_caller_keep_nobody_out() {
    for number in [600, 5000] {
        Crowd::of(SILENT, number, one_caller)
            .await
            .assert_harmless()
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_of_many_callers_keep_nobody_out() {
    Crowd::of(SILENT, 5000, many_callers)
        .await
        .assert_harmless()
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_requests_keep_nobody_out() {
    for bytes in [HALF, HALF_OF_HTTP2] {
        Crowd::of(bytes, 1500, one_caller)
            .await
            .assert_harmless()
            .await;
        Crowd::of(bytes, 1500, many_callers)
            .await
            .assert_harmless()
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_readers_keep_nobody_out() {
    Crowd::of(SLOW_READER, 600, one_caller)
        .await
        .assert_harmless()
        .await;
    Crowd::of(SLOW_READER, 1500, many_callers)
        .await
        .assert_harmless()
        .await;
}

/// The node's own connections are not limited by caller.
#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_of_the_node_itself_keep_nobody_out() {
    Crowd::of(SILENT, 3000, |_| NODE)
        .await
        .assert_harmless()
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_keep_coming_keep_nobody_out() {
    let (_parts, server) = serve(Limits::default());
    let address = server.address();
    let flood = tokio::spawn(async move {
        let mut open = Vec::new();
        for number in 0.. {
            if let Ok(stream) = connect(many_callers(number), address).await {
                open.push(stream);
            }
            if open.len() == 2000 {
                open.clear();
            }
        }
    });
    probe_for(address, Duration::from_secs(3)).await;
    flood.abort();
}

#[tokio::test]
async fn a_caller_with_too_many_connections_loses_its_oldest() {
    let limits = Limits {
        connections_of_caller: 2,
        ..patient()
    };
    let (parts, server) = serve(limits);
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(connect(STRANGER, server.address()).await.unwrap());
    }
    let mut other = connect(PROBE, server.address()).await.unwrap();
    let [first, second, third] = &mut streams[..] else {
        unreachable!();
    };
    assert_eq!(read_to_close(first).await, b"");
    for stream in [second, third, &mut other] {
        assert_eq!(ask(stream).await.status, 200);
    }
    assert_eq!(parts.closed("caller-limit"), 1.0);
    assert_eq!(parts.closed("full"), 0.0);
}

#[tokio::test]
async fn whoever_was_answered_before_stays_when_strangers_come() {
    for idle in [PROBE, NODE] {
        let (parts, server) = serve(few());
        let mut probe = connect(idle, server.address()).await.unwrap();
        assert_eq!(ask(&mut probe).await.status, 200);
        let mut strangers = Vec::new();
        for number in 0..50 {
            strangers.push(
                connect(many_callers(number), server.address())
                    .await
                    .unwrap(),
            );
        }
        eventually(|| parts.closed("full") >= 42.0).await;
        assert_eq!(ask(&mut probe).await.status, 200, "{idle}");
        assert_eq!(
            parts.metric(r#"node_lb_http_connections{server="test"}"#),
            8.0
        );
    }
}

/// Each of them has been answered before.
#[tokio::test]
async fn the_caller_with_the_most_connections_loses_one() {
    let (parts, server) = serve(few());
    let mut one = connect(PROBE, server.address()).await.unwrap();
    assert_eq!(ask(&mut one).await.status, 200);
    let mut many = Vec::new();
    for number in 0..8 {
        let mut stream = connect(STRANGER, server.address()).await.unwrap();
        if number == 0 {
            assert_eq!(ask(&mut stream).await.status, 200);
        }
        many.push(stream);
    }
    assert_eq!(read_to_close(&mut many[0]).await, b"");
    assert_eq!(ask(&mut one).await.status, 200);
    assert_eq!(parts.closed("full"), 1.0);
}

#[tokio::test]
async fn a_request_under_way_is_not_broken_off_for_a_newcomer() {
    let limits = few();
    let gate = std::sync::Arc::new(tokio::sync::Notify::new());
    let opened = gate.clone();
    let parts = Parts::new(HttpConfig::default());
    let handler = move |_: Request| {
        let gate = opened.clone();
        async move {
            gate.notified().await;
            text(StatusCode::OK, "at last")
        }
    };
    let server = parts.serve_within(handler, limits);
    let mut busy = connect(STRANGER, server.address()).await.unwrap();
    busy.write_all(KEEP_ALIVE).await.unwrap();
    let mut idle = Vec::new();
    for number in 0..30 {
        idle.push(
            connect(many_callers(number), server.address())
                .await
                .unwrap(),
        );
    }
    eventually(|| parts.closed("full") >= 23.0).await;
    gate.notify_one();
    assert_eq!(read_reply(&mut busy).await.status, 200);
}

/// Each healthCheckNodePort has a server.
#[tokio::test]
async fn all_servers_together_have_one_budget() {
    let parts = Parts::new(HttpConfig::default());
    let budget = ConnectionBudget::new(20, std::sync::Arc::new(parts.metrics.http.clone()));
    let limits = patient();
    let servers: Vec<_> = (0..10)
        .map(|_| {
            let listener = bind(any_port()).unwrap();
            let handler = std::sync::Arc::new(answer);
            let listening = Listening::alone(listener).unwrap();
            Server::start(listening, handler, limits, budget.share("test", &limits)).unwrap()
        })
        .collect();
    let mut crowd = Vec::new();
    for number in 0..100 {
        let server = &servers[number % 9];
        crowd.push(
            connect(many_callers(number), server.address())
                .await
                .unwrap(),
        );
    }
    eventually(|| parts.closed("full") >= 80.0).await;
    let open = r#"node_lb_http_connections{server="test"}"#;
    eventually(|| parts.metric(open) == 20.0).await;
    for server in &servers {
        let mut probe = connect(PROBE, server.address()).await.unwrap();
        assert_eq!(ask(&mut probe).await.status, 200);
    }
}

/// A crowd of connections that are open and do nothing.
struct Crowd {
    parts: Parts,
    server: Server,
    from: fn(usize) -> Ipv4Addr,
    _streams: Vec<TcpStream>,
}

impl Crowd {
    /// Each one sends `bytes`, and comes from the address of its number.
    async fn of(bytes: &[u8], number: usize, from: fn(usize) -> Ipv4Addr) -> Self {
        static RAISED: Once = Once::new();
        RAISED.call_once(raise_descriptor_limit);
        let (parts, server) = serve(patient());
        let mut streams = Vec::with_capacity(number);
        for index in 0..number {
            let mut stream = connect(from(index), server.address()).await.unwrap();
            // It may have been closed already.
            let _ = stream.write_all(bytes).await;
            streams.push(stream);
        }
        Self {
            parts,
            server,
            from,
            _streams: streams,
        }
    }

    /// Probes of the node and of others are answered, and the server has no more connections open
    /// than it may have, nor one caller more than its part.
    async fn assert_harmless(&self) {
        probe_for(self.server.address(), Duration::ZERO).await;
        let limits = Limits::default();
        let most = match (self.from)(0) == (self.from)(1) && (self.from)(0) != NODE {
            true => limits.connections_of_caller + 1, // and the last probe
            false => limits.connections,
        };
        let open = r#"node_lb_http_connections{server="test"}"#;
        eventually(|| self.parts.metric(open) <= most as f64).await;
    }
}

impl Parts {
    fn closed(&self, reason: &str) -> f64 {
        let labels = format!("{{reason=\"{reason}\",server=\"test\"}}");
        self.metric(&format!("node_lb_http_connections_closed_total{labels}"))
    }
}

/// Asks again and again, as the node and as somebody else; all have to be answered, and most of
/// them soon.
async fn probe_for(server: SocketAddr, time: Duration) {
    let begun = Instant::now();
    let mut took = Vec::new();
    while took.len() < 20 || begun.elapsed() < time {
        for from in [NODE, PROBE] {
            let begun = Instant::now();
            let probe = async {
                let mut stream = connect(from, server).await.unwrap();
                ask(&mut stream).await
            };
            let reply = timeout(PATIENCE, probe).await;
            let reply = reply.unwrap_or_else(|_| panic!("no answer for {from}"));
            assert_eq!(reply.status, 200);
            took.push(begun.elapsed());
        }
    }
    took.sort_unstable();
    let (median, most) = (took[took.len() / 2], took[took.len() - 1]);
    println!("{} probes: median {median:?}, at most {most:?}", took.len());
    assert!(median < Duration::from_secs(1), "half took {median:?}");
}

/// Asks on a connection that stays open.
async fn ask(stream: &mut TcpStream) -> Reply {
    stream.write_all(KEEP_ALIVE).await.unwrap();
    read_reply(stream).await
}

async fn connect(from: Ipv4Addr, server: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    // What a slow reader is sent stays with the server.
    socket.set_recv_buffer_size(4096)?;
    socket.connect(server).await
}

fn one_caller(_: usize) -> Ipv4Addr {
    STRANGER
}

fn many_callers(number: usize) -> Ipv4Addr {
    let [.., high, low] = (number as u32 % 2500).to_be_bytes();
    Ipv4Addr::new(127, 50, high, low)
}

fn patient() -> Limits {
    Limits {
        header_timeout: NEVER,
        write_timeout: NEVER,
        ..Limits::default()
    }
}

/// So few connections that half of the last ones are kept alive.
fn few() -> Limits {
    Limits {
        connections: 8,
        ..patient()
    }
}

/// With the layers of an agent whose requests have no deadline to speak of.
fn serve(limits: Limits) -> (Parts, Server) {
    let parts = Parts::new(HttpConfig {
        request_timeout: NEVER,
        ..HttpConfig::default()
    });
    let server = parts.serve_within(Probed, limits);
    (parts, server)
}

/// A health server, with something to read slowly.
struct Probed;

impl Handler for Probed {
    fn class(&self, _: &Request) -> node_lb::http::Class {
        node_lb::http::Class::Probe
    }

    async fn call(&self, request: Request) -> Response {
        answer(request).await
    }
}

async fn answer(request: Request) -> Response {
    static HUGE: [u8; 8 << 20] = [b'x'; 8 << 20];
    match request.uri().path() {
        "/huge" => response(StatusCode::OK, "text/plain", Bytes::from_static(&HUGE)),
        _ => text(StatusCode::OK, "ok"),
    }
}
