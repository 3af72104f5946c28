//! One server follows another on the same socket, as one agent follows another: no client notices.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hyper::StatusCode;
use node_lb::{
    config::HttpConfig,
    http::{Bind as _, Limits, Request, Response, Server, Stack, text},
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::sleep};

use crate::{
    client::{PATIENCE, Reply, any_port, is_refused, read_reply, read_to_close},
    support::Parts,
};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: node\r\n\r\n";

#[tokio::test]
async fn who_is_connected_is_answered_and_who_waits_is_answered_by_the_next() {
    let first = Parts::new(HttpConfig::default());
    let server = serve(&first.stack, any_port(), "first");
    let address = server.address();
    let next = successor(&first.stack);
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut half = TcpStream::connect(address).await.unwrap();
    half.write_all(&REQUEST[..10]).await.unwrap();
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(REQUEST).await.unwrap();
    assert_eq!(read_reply(&mut idle).await.body, "first\n");

    // Until all are accepted.
    first.wait_for_connections(3).await;
    let left = server.leave(PATIENCE).await;
    let mut waiting = TcpStream::connect(address).await.unwrap();
    waiting.write_all(REQUEST).await.unwrap();
    // What is idle after an answer is closed, and the others after theirs.
    assert_eq!(read_to_close(&mut idle).await, b"");
    silent.write_all(REQUEST).await.unwrap();
    half.write_all(&REQUEST[10..]).await.unwrap();
    for mut stream in [silent, half] {
        let answer = Reply::parse(&read_to_close(&mut stream).await);
        assert_eq!((answer.status, &*answer.body), (200, "first\n"));
    }
    left.await.unwrap();

    let _next = serve(&next.stack, address, "next");
    assert_eq!(read_reply(&mut waiting).await.body, "next\n");
}

#[tokio::test]
async fn a_socket_that_is_closed_refuses_although_another_process_has_it() {
    let first = Parts::new(HttpConfig::default());
    let server = serve(&first.stack, any_port(), "first");
    let address = server.address();
    let next = successor(&first.stack);
    assert!(next.stack.listeners().has_inherited());
    server.close(Duration::ZERO).await;
    assert!(is_refused(address).await);
    // The port is free for others, too.
    let _other = serve(&first.stack, address, "other");
    next.stack.listeners().bind(address).unwrap_err();
}

#[tokio::test]
async fn who_does_not_ask_is_not_waited_for() {
    let first = Parts::new(HttpConfig::default());
    let server = serve(&first.stack, any_port(), "first");
    let mut silent = TcpStream::connect(server.address()).await.unwrap();
    // So that it is accepted before.
    first.wait_for_connections(1).await;
    let left = server.leave(Duration::from_millis(50)).await;
    left.await.unwrap();
    assert_eq!(read_to_close(&mut silent).await, b"");
}

/// Connections of a crowd, while servers follow each other as fast as they can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_probe_of_a_crowd_goes_without_an_answer() {
    let mut parts = Parts::new(HttpConfig::default());
    let mut server = serve(&parts.stack, any_port(), "any");
    let address = server.address();
    let stop = Arc::<AtomicBool>::default();
    let crowd: Vec<_> = (0..16)
        .map(|_| tokio::spawn(probe_until(stop.clone(), address)))
        .collect();
    let mut left = Vec::new();
    for _ in 0..50 {
        let next = successor(&parts.stack);
        left.push(server.leave(PATIENCE).await);
        server = serve(&next.stack, address, "any");
        parts = next;
        sleep(Duration::from_millis(20)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut probes = 0;
    for client in crowd {
        probes += client.await.unwrap();
    }
    assert!(probes > 100, "{probes}");
    for task in left {
        task.await.unwrap();
    }
}

async fn probe_until(stop: Arc<AtomicBool>, address: SocketAddr) -> u32 {
    let mut probes = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        if probes % 2 == 0 {
            // Accepted long before it asks.
            sleep(Duration::from_millis(3)).await;
        }
        stream.write_all(REQUEST).await.unwrap();
        assert_eq!(read_reply(&mut stream).await.status, 200);
        probes += 1;
    }
    probes
}

fn serve(stack: &Stack, address: SocketAddr, name: &'static str) -> Server {
    let handler = move |_: Request| async move { answer(name) };
    let listener = stack.listeners().bind(address).unwrap();
    let limits = Limits {
        connections_of_caller: usize::MAX,
        ..Limits::default()
    };
    stack.serve(listener, "test", handler, limits).unwrap()
}

fn answer(name: &str) -> Response {
    text(StatusCode::OK, name)
}

/// What another process has that got the sockets of `stack`.
fn successor(stack: &Stack) -> Parts {
    let next = Parts::new(HttpConfig::default());
    for socket in stack.listeners().after(0).unwrap() {
        next.stack.listeners().inherit(socket).unwrap();
    }
    next
}
