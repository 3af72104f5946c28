//! HTTP as curl and load balancers use it with the agent's servers: one GET, one answer.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::lab::Host;
use crate::patience::patient;

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    pub status: u16,
    /// By name in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

/// Requests `path` from `address` on a new connection from `host`.
///
/// # Errors
/// If there is no answer within ten seconds ([`patient`]), or not in HTTP/1.1.
pub fn get(host: impl AsRef<Host>, address: SocketAddr, path: &str) -> Result<HttpAnswer> {
    let host = host.as_ref();
    host.netns()
        .run(|| here(address, path))?
        .with_context(|| format!("{host}: GET http://{address}{path}"))
}

/// The same from the network namespace of this thread.
///
/// # Errors
/// As [`get`].
pub fn here(address: SocketAddr, path: &str) -> Result<HttpAnswer> {
    let text = exchange(address, path)?;
    parse(&text).with_context(|| format!("this is not HTTP/1.1: {text:?}"))
}

const DEADLINE: Duration = Duration::from_secs(10);

fn exchange(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, patient(DEADLINE))?;
    stream.set_read_timeout(Some(patient(DEADLINE)))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn parse(text: &str) -> Option<HttpAnswer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?;
    let headers = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()));
    Some(HttpAnswer {
        status: status.parse().ok()?,
        headers: headers.collect(),
        body: body.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_headers_and_body_are_told_apart() {
        let text = "HTTP/1.1 503 Service Unavailable\r\nX-Weight: 0\r\n\r\n{}\n";
        let answer = parse(text).unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (503, "{}\n"));
        assert_eq!(answer.headers["x-weight"], "0");
        assert_eq!(parse("SSH-2.0-OpenSSH\r\n\r\n"), None);
    }
}
