//! JSON over HTTP, as etcd and WebDriver speak it: one request, one answer.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, StatusCode, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Sends a request on a new connection from the network namespace of this thread. `Value::Null` is no
/// body.
///
/// # Errors
/// If there is no answer, or not in JSON.
pub async fn ask(
    method: Method,
    address: SocketAddr,
    path: &str,
    body: &Value,
) -> Result<(StatusCode, Value)> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let body = match body {
        Value::Null => Bytes::new(),
        body => body.to_string().into(),
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, address.to_string())
        .body(Full::new(body))?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let text = answer.into_body().collect().await?.to_bytes();
    let answer = serde_json::from_slice(&text);
    let answer = answer.with_context(|| {
        let text = String::from_utf8_lossy(&text);
        format!("{status} to {path} is not JSON: {text}")
    })?;
    Ok((status, answer))
}
