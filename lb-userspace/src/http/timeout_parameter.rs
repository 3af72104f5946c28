//! `?timeout=`: the longest time that the client wants to wait, in the Kubernetes API's format.

use std::time::Duration;

use hyper::Uri;
use lb_objects::go_duration;

use super::query_value;

/// The time that a request gets: what it asks for, at most `maximum`. It gets `maximum` if it asks
/// for nothing, for zero or for less.
///
/// # Errors
///
/// What is wrong with the parameter, if it is not a duration in Go's format.
pub(super) fn requested_timeout(uri: &Uri, maximum: Duration) -> Result<Duration, String> {
    let Some(text) = query_value(uri, "timeout").filter(|text| !text.is_empty()) else {
        return Ok(maximum);
    };
    let asked = go_duration::parse(&text).map_err(|_| {
        format!(
            "invalid timeout specified in the request URL: {:?} is not a duration; write 500ms, 10s \
             or 1m30s",
            text.chars().take(64).collect::<String>(),
        )
    })?;
    Ok(match asked {
        Duration::ZERO => maximum,
        asked => asked.min(maximum),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const MAXIMUM: Duration = Duration::from_secs(60);

    #[test]
    fn a_timeout_shortens_and_never_extends() {
        for (text, seconds) in [
            ("10s", 10.0),
            ("1.5s", 1.5),
            ("500ms", 0.5),
            ("59s999ms", 59.999),
            ("+2s", 2.0),
            (".5s", 0.5),
            ("250%C2%B5s", 0.000_25),
            ("1m", 60.0),
            ("1h", 60.0),
        ] {
            assert_eq!(ask(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
    }

    #[test]
    fn zero_less_and_nothing_mean_the_maximum() {
        for text in ["", "0", "0s", "-1s", "-0", "+0"] {
            assert_eq!(ask(text), Ok(MAXIMUM), "{text:?}");
        }
        assert_eq!(
            requested_timeout(&Uri::from_static("/"), MAXIMUM),
            Ok(MAXIMUM)
        );
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["foo", "10", "1d", "-", "1 s", "9999999999999999999h"] {
            let error = ask(text).unwrap_err();
            assert!(
                error.starts_with("invalid timeout specified in the request URL"),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn requests_have_the_deadline_that_kube_apiserver_gives_them() {
        let data: Value =
            serde_json::from_str(include_str!("../../admission/tests/data/apf.json")).unwrap();
        let cases = data["g_extras"]["requestDeadline"]["cases"]
            .as_array()
            .unwrap();
        // Streams have no deadline, so they are left out.
        let short = cases.iter().filter(|case| case["longRunning"] == false);
        let mut count = 0;
        for case in short {
            let asked = match &case["timeoutParam"] {
                Value::String(text) => ask(text),
                _ => requested_timeout(&Uri::from_static("/"), MAXIMUM),
            };
            let expected = case["deadline_s"].as_f64().map(Duration::from_secs_f64);
            assert_eq!(asked.ok(), expected, "{case}");
            count += 1;
        }
        assert!(count > 0);
    }

    fn ask(text: &str) -> Result<Duration, String> {
        let uri = format!("/?timeout={}", text.replace(' ', "%20").replace('+', "%2B"));
        requested_timeout(&uri.parse().unwrap(), MAXIMUM)
    }
}
