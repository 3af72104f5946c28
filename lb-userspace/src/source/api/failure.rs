//! Why a request failed, and what to do about it.

use std::{error::Error, time::Duration};

use hyper::{HeaderMap, StatusCode, header::RETRY_AFTER};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

use lb_objects::shortened;

/// How long to wait after a 429 that does not say so.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);
/// The longest wait that a server can ask for. A longer one must be a mistake.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);

/// A failed request. The text says what to do, if that is known.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// 410: the server no longer has the history from which the request continues.
    #[error("the API server no longer has what changed since the last answer ({0})")]
    Expired(String),
    /// The server is behind the version that we have seen: restored from a backup, or lagging.
    #[error("the API server is behind what it said before ({0})")]
    Behind(String),
    /// 429, or a 5xx with Retry-After: the same request may be repeated after that time.
    #[error("the API server asks to come back in {} s ({message})", retry_after.as_secs())]
    Busy {
        retry_after: Duration,
        message: String,
    },
    /// Any other error answer.
    #[error("{}", refusal(*code, message))]
    Refused { code: u16, message: String },
    /// The connection could not be established, or broke.
    #[error("{0}")]
    Unreachable(String),
    /// The answer makes no sense, or is incomplete.
    #[error("the API server's answer is broken: {0}")]
    Broken(String),
    #[error("the API server said nothing for {} s", .0.as_secs())]
    TimedOut(Duration),
}

impl Failure {
    /// What an answer other than 2xx means.
    pub fn of_answer(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let mut status = serde_json::from_slice::<Status>(body).unwrap_or_else(|_| Status {
            message: Some(shortened(String::from_utf8_lossy(body).trim()).into_owned()),
            ..Status::default()
        });
        status.code = Some(code.as_u16().into());
        let header = headers
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        Self::new(status, header)
    }

    /// What an ERROR event in a watch means.
    pub fn of_event(status: Status) -> Self {
        Self::new(status, None)
    }

    fn new(status: Status, retry_after: Option<u64>) -> Self {
        let code = status.code.and_then(|code| u16::try_from(code).ok());
        let code = code.unwrap_or_default();
        let details = status.details.unwrap_or_default();
        let reason = status.reason.unwrap_or_default();
        let message = status.message.filter(|message| !message.is_empty());
        let message = message.unwrap_or_else(|| reason.clone());
        let is_behind = |cause: &str| cause == "ResourceVersionTooLarge";
        let causes = details.causes.iter().flatten();
        if code == 410 || matches!(reason.as_str(), "Expired" | "Gone") {
            return Self::Expired(message);
        }
        if causes
            .filter_map(|cause| cause.reason.as_deref())
            .any(is_behind)
        {
            return Self::Behind(message);
        }
        let asked = details.retry_after_seconds.filter(|seconds| *seconds > 0);
        let asked = retry_after.or(asked.map(i32::unsigned_abs).map(u64::from));
        let asked = asked.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER));
        match (code, asked) {
            (429, None) => Self::Busy {
                retry_after: DEFAULT_RETRY_AFTER,
                message,
            },
            (429 | 500.., Some(retry_after)) => Self::Busy {
                retry_after,
                message,
            },
            _ => Self::Refused { code, message },
        }
    }

    /// An error of the connection, with all its causes.
    pub fn of_connection(error: &(dyn Error + 'static)) -> Self {
        let mut text = String::new();
        let mut next = Some(error);
        while let Some(error) = next {
            let part = error.to_string();
            // Many errors repeat their cause in their own text.
            if !text.contains(&part) {
                if !text.is_empty() {
                    text.push_str(": ");
                }
                text.push_str(&part);
            }
            next = error.source();
        }
        let advice = match text.contains("certificate") {
            true => " (does the configured CA belong to this API server?)",
            false => "",
        };
        Self::Unreachable(format!("cannot reach the API server: {text}{advice}"))
    }

    /// Whether other credentials or another address may help: then the configuration is read again.
    /// That also makes a new connection, by which another server may be found where this one hangs.
    pub fn asks_for_new_configuration(&self) -> bool {
        matches!(
            self,
            Self::Unreachable(_) | Self::TimedOut(_) | Self::Refused { code: 401, .. }
        )
    }

    /// Whether whoever asks has no right to.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused { code: 403, .. })
    }

    /// Whether the server does not know the resource.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }

    /// Whether the server will never accept this request.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                code: 400 | 404 | 405 | 406 | 415 | 422,
                ..
            }
        )
    }
}

fn refusal(code: u16, message: &str) -> String {
    let advice = match code {
        401 => ": the token or client certificate is wrong or has expired",
        403 => ": give the agent's user the verbs list and watch on this resource",
        _ => "",
    };
    format!("the API server answered {code} ({message}){advice}")
}

/// The answer to a request of kube's own client.
///
/// # Errors
/// What went wrong, also if the answer does not come before the deadline.
pub async fn within<T>(
    deadline: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, String> {
    match tokio::time::timeout(deadline, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) => Err(format!("{} ({})", status.message, status.code)),
        Ok(Err(error)) => Err(Failure::of_connection(&error).to_string()),
        Err(_) => Err(Failure::TimedOut(deadline).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u16, retry_after: Option<&str>, body: &str) -> Failure {
        let mut headers = HeaderMap::new();
        if let Some(value) = retry_after {
            headers.insert(RETRY_AFTER, value.parse().unwrap());
        }
        Failure::of_answer(
            StatusCode::from_u16(code).unwrap(),
            &headers,
            body.as_bytes(),
        )
    }

    #[test]
    fn retry_after_comes_from_header_or_body_and_is_bounded() {
        let wait = |failure| match failure {
            Failure::Busy { retry_after, .. } => Some(retry_after.as_secs()),
            _ => None,
        };
        assert_eq!(wait(answer(429, Some("7"), "")), Some(7));
        assert_eq!(wait(answer(503, Some("7"), "")), Some(7));
        assert_eq!(wait(answer(429, None, "")), Some(1));
        assert_eq!(wait(answer(429, Some("soon"), "")), Some(1));
        let body = r#"{"code":429,"details":{"retryAfterSeconds":4}}"#;
        assert_eq!(wait(answer(429, None, body)), Some(4));
        assert_eq!(wait(answer(429, Some("99999999999"), "")), Some(600));
        assert_eq!(wait(answer(503, None, "")), None);
        assert_eq!(wait(answer(403, Some("7"), "")), None);
    }

    #[test]
    fn kinds_of_answers() {
        let expired = r#"{"reason":"Expired","message":"too old"}"#;
        assert!(matches!(answer(410, None, "x"), Failure::Expired(_)));
        assert!(matches!(answer(500, None, expired), Failure::Expired(_)));
        let behind = r#"{"code":504,"reason":"Timeout","message":"Too large resource version",
            "details":{"causes":[{"reason":"ResourceVersionTooLarge"}],"retryAfterSeconds":1}}"#;
        assert!(matches!(answer(504, Some("1"), behind), Failure::Behind(_)));
        assert!(answer(401, None, "").asks_for_new_configuration());
        assert!(!answer(403, None, "").asks_for_new_configuration());
        assert!(answer(422, None, "").is_final() && !answer(500, None, "").is_final());
    }

    #[test]
    fn messages_say_what_to_do() {
        let text = answer(403, None, r#"{"message":"services is forbidden"}"#).to_string();
        assert!(text.contains("services is forbidden") && text.contains("list and watch"));
        let text = answer(401, None, "Unauthorized").to_string();
        assert!(text.contains("expired"), "{text}");
        assert!(answer(500, None, &"x".repeat(5000)).to_string().len() < 300);
    }
}
