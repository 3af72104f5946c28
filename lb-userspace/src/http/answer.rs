//! Answers that all servers give in the same form.

use std::{fmt, time::Duration};

use bytes::Bytes;
use hyper::{
    StatusCode,
    header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS},
};
use serde_json::json as object;

use super::{Body, Response};

/// A JSON answer. `body` is sent unchanged.
pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Response {
    response(status, "application/json", body.into())
}

/// A plain text answer. It ends with a line feed, for users of `curl`.
pub fn text(status: StatusCode, message: impl fmt::Display) -> Response {
    response(status, "text/plain; charset=utf-8", format!("{message}\n"))
}

/// The answer for a path that does not exist here.
pub fn not_found() -> Response {
    text(StatusCode::NOT_FOUND, "404 page not found")
}

/// An answer of any content type. A header tells browsers not to guess another one.
pub fn response(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// An error in the form of the Kubernetes API, an object of kind Status. `reason` is one word for
/// programs, such as `NotFound`.
pub fn error_status(code: StatusCode, reason: &str, message: impl fmt::Display) -> Response {
    json(code, status_object(code, reason, message).to_string())
}

/// 429, with the time after which to try again in whole seconds, as a header and in the Status.
pub fn too_many_requests(retry_after: Duration, message: impl fmt::Display) -> Response {
    let code = StatusCode::TOO_MANY_REQUESTS;
    let mut status = status_object(code, "TooManyRequests", message);
    status["details"] = object!({ "retryAfterSeconds": retry_after.as_secs() });
    let mut response = json(code, status.to_string());
    let seconds = HeaderValue::from(retry_after.as_secs());
    response.headers_mut().insert(RETRY_AFTER, seconds);
    response
}

fn status_object(code: StatusCode, reason: &str, message: impl fmt::Display) -> serde_json::Value {
    object!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message.to_string(),
        "reason": reason,
        "code": code.as_u16(),
    })
}
