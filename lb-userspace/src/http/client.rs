//! An HTTP request to one of the agent's servers, for commands.

use std::io::{BufRead, BufReader, Read, Write};

use anyhow::Context as _;

/// Requests `path` over a connection; returns the status code and the body of the answer.
///
/// # Errors
/// If the connection fails, or the answer is not HTTP.
pub fn get(mut stream: impl Read + Write, path: &str) -> anyhow::Result<(u16, String)> {
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
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

/// Asks for `path` over a connection; returns the answer's code, and its body to be read as it
/// comes.
///
/// # Errors
/// If the connection fails, or the answer is not HTTP.
pub fn open<S: Read + Write>(mut stream: S, path: &str) -> anyhow::Result<(u16, BufReader<S>)> {
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = BufReader::new(stream);
    let mut line = String::new();
    answer.read_line(&mut line)?;
    let code = line
        .split_whitespace()
        .nth(1)
        .and_then(|code| code.parse().ok());
    let code = code.with_context(|| format!("it answered {:?}", line.trim_end()))?;
    while !line.trim_end().is_empty() {
        line.clear();
        answer.read_line(&mut line)?;
    }
    Ok((code, answer))
}
