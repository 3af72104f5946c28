//! An HTTP request to one of the agent's servers, for commands.

use std::io::{Read, Write};

use anyhow::Context as _;

/// Requests `path` over a connection; returns the status code and the body of the answer.
///
/// # Errors
/// If the connection fails, or the answer is not HTTP.
pub fn get(mut stream: impl Read + Write, path: &str) -> anyhow::Result<(u16, String)> {
    write!(stream, "GET {path} HTTP/1.0\r\nHost: node-lb\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .context("it did not answer in HTTP")?;
    let code = head
        .split_whitespace()
        .nth(1)
        .and_then(|code| code.parse().ok());
    let code = code.with_context(|| format!("it answered {:?}", head.lines().next()))?;
    Ok((code, body.to_owned()))
}
