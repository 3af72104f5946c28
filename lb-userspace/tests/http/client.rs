//! A client that sees the raw bytes, and can misbehave.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Longer than anything here takes, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct Reply {
    pub status: u16,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }

    pub fn parse(bytes: &[u8]) -> Self {
        let text = str::from_utf8(bytes).unwrap();
        let (head, body) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("not a response: {text:?}"));
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap();
        Self {
            status: status.parse().unwrap(),
            headers: lines
                .map(|line| line.split_once(": ").unwrap())
                .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
                .collect(),
            body: body.to_owned(),
        }
    }
}

pub async fn get(server: SocketAddr, path: &str) -> Reply {
    request(server, "GET", path).await
}

pub async fn request(server: SocketAddr, method: &str, path: &str) -> Reply {
    request_of(server, "node", method, path).await
}

/// By this name of the server.
pub async fn request_of(server: SocketAddr, host: &str, method: &str, path: &str) -> Reply {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let mut stream = TcpStream::connect(server).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    Reply::parse(&read_to_close(&mut stream).await)
}

/// Everything that the server sends until the connection is closed, in whatever way.
pub async fn read_to_close(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
    // After a reset, what was read before remains.
    let _ = read.expect("the server keeps the connection open");
    bytes
}

/// Reads one response with a body of `content-length` and leaves the connection open.
pub async fn read_reply(stream: &mut TcpStream) -> Reply {
    let mut bytes = Vec::new();
    loop {
        let read = timeout(PATIENCE, stream.read_buf(&mut bytes)).await;
        assert_ne!(read.unwrap().unwrap(), 0, "closed after {bytes:?}");
        if !bytes.windows(4).any(|window| window == b"\r\n\r\n") {
            continue;
        }
        let reply = Reply::parse(&bytes);
        if reply.body.len() == reply.headers["content-length"].parse::<usize>().unwrap() {
            return reply;
        }
    }
}

pub async fn is_refused(server: SocketAddr) -> bool {
    TcpStream::connect(server).await.is_err()
}

pub fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}
