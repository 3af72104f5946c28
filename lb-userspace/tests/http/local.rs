//! Servers on Unix sockets.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    os::unix::{
        fs::PermissionsExt as _,
        net::{UnixListener, UnixStream},
    },
    path::Path,
};

use hyper::StatusCode;
use node_lb::http::{Limits, Request, bind_unix, text};

use crate::support::stack;

#[tokio::test(flavor = "multi_thread")]
async fn a_local_server_answers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/agent.sock");
    let listener = bind_unix(&path).unwrap();
    let handler = async |request: Request| text(StatusCode::OK, request.uri().path());
    let limits = Limits::default();
    let stack = stack();
    let server = stack.serve_locally(listener, "local", handler, limits);
    let server = server.unwrap();

    let answer = get(&path, "/status");
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n/status\n"), "{answer}");
    drop(server);
}

#[test]
fn only_the_owner_may_connect() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let _listener = bind_unix(&path).unwrap();
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    drop(UnixListener::bind(&path).unwrap());
    let _listener = bind_unix(&path).unwrap();
    UnixStream::connect(&path).unwrap();

    let error = bind_unix(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    UnixStream::connect(&path).unwrap();
}

fn get(path: &Path, uri: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    write!(stream, "GET {uri} HTTP/1.0\r\nHost: node-lb\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
