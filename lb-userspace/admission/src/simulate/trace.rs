//! Arrivals in a file: one per line, in order of time.
//!
//! A line is comma-separated values, `t_ns,flow,hold_ns,width,level` (the last two may be left
//! out), a JSON object with those names, or a JSON object that describes a [`Recorded`] connection.
//! Empty lines, lines that start with `#`, and a line of column names before the first arrival are
//! skipped.

use std::io::{BufRead, Read as _};

use lb_objects::{quoted, shortened};
use serde::{Deserialize, Deserializer, de::Error as _};
use thiserror::Error;

use super::{MAX_TIME, MAX_WIDTH, recording::Recorded};

/// Longest line, in bytes.
const MAX_LINE: u64 = 64 * 1024;

/// One arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceArrival {
    /// Of a flow that the trace itself names.
    Named(NamedArrival),
    /// Of a connection that is still to be classified.
    Recorded(Recorded),
}

/// An arrival of a flow, whatever that stands for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedArrival {
    /// When, in nanoseconds.
    pub t_ns: u64,
    /// Name of the flow.
    #[serde(deserialize_with = "name")]
    pub flow: String,
    /// How long it lasts once admitted, in nanoseconds.
    pub hold_ns: u64,
    /// Seats.
    #[serde(default = "one")]
    pub width: u32,
    /// Name of the priority level; without it, the level that the command names.
    #[serde(default)]
    pub level: Option<String>,
}

/// Why a trace cannot be read further. Lines count from 1.
#[derive(Debug, Error)]
pub enum TraceError {
    #[error("line {line}: {rule}")]
    Invalid { line: u64, rule: String },
    #[error("line {line}: cannot be read: {error}")]
    Unreadable { line: u64, error: std::io::Error },
}

/// Reads a trace line by line.
#[derive(Debug)]
pub struct Trace<R> {
    reader: R,
    /// The line that is being read.
    text: Vec<u8>,
    line: u64,
    /// When the last arrival was.
    last: Option<u64>,
}

fn one() -> u32 {
    1
}

/// Flow names may be numbers.
fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Name {
        Text(String),
        Number(u64),
    }
    match Name::deserialize(deserializer) {
        Ok(Name::Text(text)) => Ok(text),
        Ok(Name::Number(number)) => Ok(number.to_string()),
        Err(_) => Err(D::Error::custom("flow must be a string or a number")),
    }
}

impl<R: BufRead> Trace<R> {
    /// A trace that is read from its first line.
    pub fn new(reader: R) -> Self {
        Self {
            reader,
            text: Vec::new(),
            line: 0,
            last: None,
        }
    }

    /// The number of the line that was read last.
    pub fn line(&self) -> u64 {
        self.line
    }

    fn read(&mut self) -> Result<Option<TraceArrival>, TraceError> {
        loop {
            self.text.clear();
            self.line += 1;
            let line = self.line;
            let mut limited = self.reader.by_ref().take(MAX_LINE);
            let read = limited.read_until(b'\n', &mut self.text);
            if read.map_err(|error| TraceError::Unreadable { line, error })? == 0 {
                return Ok(None);
            }
            let invalid = |rule: String| TraceError::Invalid { line, rule };
            if self.text.len() as u64 == MAX_LINE {
                return Err(invalid(format!("has {MAX_LINE} bytes or more")));
            }
            let text =
                str::from_utf8(&self.text).map_err(|_| invalid("is not UTF-8".to_owned()))?;
            let text = text.trim();
            let is_header = self.last.is_none() && text.starts_with("t_ns");
            if text.is_empty() || text.starts_with('#') || is_header {
                continue;
            }
            let arrival = parse(text).map_err(invalid)?;
            let (time, _) = arrival.times();
            if let Some(last) = self.last.filter(|&last| time < last) {
                return Err(invalid(format!(
                    "t_ns {time} is before that of the arrival above, {last}"
                )));
            }
            self.last = Some(time);
            return Ok(Some(arrival));
        }
    }
}

impl TraceArrival {
    /// When it arrives, and how long it lasts, in nanoseconds.
    fn times(&self) -> (u64, u64) {
        match self {
            Self::Named(NamedArrival { t_ns, hold_ns, .. })
            | Self::Recorded(Recorded { t_ns, hold_ns, .. }) => (*t_ns, *hold_ns),
        }
    }
}

impl<R: BufRead> Iterator for Trace<R> {
    type Item = Result<TraceArrival, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

fn parse(text: &str) -> Result<TraceArrival, String> {
    let arrival = match text.starts_with('{') {
        true => parse_object(text).map_err(|error| shortened(&error.to_string()).into_owned())?,
        false => TraceArrival::Named(parse_values(text)?),
    };
    if let TraceArrival::Named(NamedArrival { width, .. }) = &arrival
        && !(1..=MAX_WIDTH).contains(width)
    {
        return Err(format!("width must be 1 to {MAX_WIDTH}"));
    }
    let (t_ns, hold_ns) = arrival.times();
    if t_ns.max(hold_ns) > MAX_TIME {
        return Err("t_ns and hold_ns must be at most ten years".to_owned());
    }
    Ok(arrival)
}

fn parse_object(text: &str) -> serde_json::Result<TraceArrival> {
    #[derive(Deserialize)]
    struct Kind {
        /// Only a recorded connection has one.
        source: Option<serde::de::IgnoredAny>,
    }
    let Kind { source } = serde_json::from_str(text)?;
    match source {
        Some(_) => serde_json::from_str(text).map(TraceArrival::Recorded),
        None => serde_json::from_str(text).map(TraceArrival::Named),
    }
}

fn parse_values(text: &str) -> Result<NamedArrival, String> {
    let mut values = text.split(',').map(str::trim);
    let mut value = |name| match values.next() {
        Some(value) if !value.is_empty() => Ok(value),
        _ => Err(format!("no {name}; expected t_ns,flow,hold_ns,width,level")),
    };
    let arrival = NamedArrival {
        t_ns: number("t_ns", value("t_ns")?)?,
        flow: value("flow")?.to_owned(),
        hold_ns: number("hold_ns", value("hold_ns")?)?,
        width: value("width").map_or(Ok(1), |value| number("width", value))?,
        level: value("level").ok().map(str::to_owned),
    };
    match values.next() {
        None => Ok(arrival),
        Some(more) => Err(format!("unexpected value {} after the level", quoted(more))),
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    let parsed = value.parse();
    parsed.map_err(|_| format!("{name} {} is not a number in range", quoted(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: impl AsRef<[u8]>) -> Result<Vec<TraceArrival>, String> {
        let trace = Trace::new(text.as_ref());
        trace
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())
    }

    #[test]
    fn values_and_objects_say_the_same() {
        let values = "# all\nt_ns,flow,hold_ns,width,level\n\n1,a,2\n3, 7 ,4,5,low\n";
        let objects = r#"{"t_ns":1,"flow":"a","hold_ns":2}
            {"t_ns":3,"flow":7,"hold_ns":4,"width":5,"level":"low"}"#;
        let arrivals = read(values).unwrap();
        assert_eq!(arrivals, read(objects).unwrap());
        let [TraceArrival::Named(first), TraceArrival::Named(second)] = &arrivals[..] else {
            panic!("{arrivals:?}");
        };
        assert_eq!((first.width, first.level.as_deref()), (1, None));
        assert_eq!((second.width, second.level.as_deref()), (5, Some("low")));
    }

    #[test]
    fn recorded_connections_and_named_flows_may_follow_each_other() {
        let recorded = r#"{"t_ns":2,"hold_ns":1,"source":"192.0.2.1","ingress":"External","namespace":"shop","service":"web","port":80,"protocol":"TCP","address":"10.96.0.10"}"#;
        let arrivals = read(format!("1,a,2\n{recorded}\n")).unwrap();
        assert!(
            matches!(&arrivals[1], TraceArrival::Recorded(recorded) if recorded.service == "web")
        );
        for (line, error) in [
            (format!("3,a,2\n{recorded}"), "line 2: t_ns 2 is before"),
            (
                recorded.replace("\"service\":\"web\",", ""),
                "line 1: missing field `service`",
            ),
            (
                recorded.replace("t_ns\":2", "t_ns\":999999999999999999"),
                "line 1: t_ns and hold_ns",
            ),
        ] {
            let found = read(&line).unwrap_err();
            assert!(found.starts_with(error), "{line}: {found}");
        }
    }

    #[test]
    fn errors_name_the_line() {
        for (text, error) in [
            ("1,a,2\n1,a", "line 2: no hold_ns"),
            ("1,a,x", "line 1: hold_ns \"x\" is not a number in range"),
            ("1,a,-2", "line 1: hold_ns"),
            ("\n1,a,2,0", "line 2: width must be 1 to 1000000"),
            ("1,a,2,1000001", "line 1: width must be 1 to 1000000"),
            ("999999999999999999,a,2", "line 1: t_ns and hold_ns must be"),
            ("1,a,2\nt_ns,flow,hold_ns", "line 2: t_ns \"t_ns\" is not"),
            ("5,a,2\n#\n4,a,2", "line 3: t_ns 4 is before"),
            ("1,a,2,3,low,6", "line 1: unexpected value \"6\""),
            ("{\"t_ns\":1}", "line 1: missing field"),
            (
                "{\"t_ns\":1,\"flow\":[],\"hold_ns\":1}",
                "line 1: flow must be",
            ),
            (
                "{\"t_ns\":1,\"flow\":\"a\",\"hold_ns\":1,\"x\":1}",
                "line 1: unknown field",
            ),
        ] {
            let found = read(text).unwrap_err();
            assert!(found.starts_with(error), "{text:?}: {found}");
        }
    }

    #[test]
    fn lines_that_are_no_lines_are_refused_in_few_words() {
        assert_eq!(
            read(b"1,a,2\n1,\xff,2").unwrap_err(),
            "line 2: is not UTF-8"
        );
        assert_eq!(
            read("#".repeat(100_000)).unwrap_err(),
            "line 1: has 65536 bytes or more"
        );
        let error = read("x".repeat(60_000) + ",a,1").unwrap_err();
        assert!(error.len() < 200, "{error}");
        let error = read(format!("{{\"{}\": 1}}", "x".repeat(60_000))).unwrap_err();
        assert!(error.len() < 200, "{error}");
    }
}
