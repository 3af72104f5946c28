//! The reports of a guest's first process about the tests, over a serial port that nothing else
//! writes to.
//!
//! A report is a line. After `end` follow as many bytes as the line says, which are the test's
//! output:
//!
//! ```text
//! up RELEASE SECONDS
//! begin NAME
//! end STATUS START END LENGTH NAME
//! complete
//! ```
//!
//! Times are the guest's, in seconds since it was switched on.

use std::time::Duration;

use anyhow::{Context, Result, bail};

/// One report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The kernel runs, and the tests started so long after power-on.
    Up { release: String, after: Duration },
    /// A test has begun.
    Begun { name: String },
    /// A test has ended.
    Ended {
        name: String,
        passed: bool,
        took: Duration,
        output: String,
    },
    /// No test is left.
    Complete,
}

/// Reads bytes and returns reports.
#[derive(Debug, Default)]
pub struct Reader {
    unread: Vec<u8>,
}

impl Reader {
    /// Takes received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
    }

    /// The next complete report.
    ///
    /// # Errors
    ///
    /// If the bytes are not a report. Nothing after them can be read then.
    pub fn next(&mut self) -> Result<Option<Report>> {
        let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') else {
            return Ok(None);
        };
        let line = String::from_utf8_lossy(&self.unread[..end]);
        let (mut report, length) =
            parse(&line).with_context(|| format!("the guest reported {line:?}"))?;
        let rest = end + 1;
        if self.unread.len() < rest + length {
            return Ok(None);
        }
        if let Report::Ended { output, .. } = &mut report {
            *output = String::from_utf8_lossy(&self.unread[rest..rest + length]).into_owned();
        }
        self.unread.drain(..rest + length);
        Ok(Some(report))
    }
}

/// A report's line, and how many bytes of output follow it.
fn parse(line: &str) -> Result<(Report, usize)> {
    let words: Vec<_> = line.split(' ').collect();
    let report = match words[..] {
        ["up", release, after] => Report::Up {
            release: release.to_owned(),
            after: seconds(after)?,
        },
        ["begin", name] => Report::Begun {
            name: name.to_owned(),
        },
        ["end", status, start, end, length, name] => {
            let report = Report::Ended {
                name: name.to_owned(),
                passed: status.parse::<u8>().context("its status")? == 0,
                took: seconds(end)?.saturating_sub(seconds(start)?),
                output: String::new(),
            };
            return Ok((report, length.parse().context("its length")?));
        }
        ["complete"] => Report::Complete,
        _ => bail!("that is no report"),
    };
    Ok((report, 0))
}

fn seconds(text: &str) -> Result<Duration> {
    let seconds = text.parse::<f64>().context("its time")?;
    Duration::try_from_secs_f64(seconds).context("its time")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[u8] = b"up 6.1.0-cloud 2.50\nbegin attach::a\nend 0 3.00 4.25 17 attach::a\n\
                         begin\ncomplete\nx\nend 101 4.25 4.50 0 attach::b\ncomplete\n";

    fn ended(name: &str, passed: bool, milliseconds: u64, output: &str) -> Report {
        Report::Ended {
            name: name.to_owned(),
            passed,
            took: Duration::from_millis(milliseconds),
            output: output.to_owned(),
        }
    }

    fn expected() -> Vec<Report> {
        let up = Report::Up {
            release: "6.1.0-cloud".to_owned(),
            after: Duration::from_millis(2500),
        };
        let begun = Report::Begun {
            name: "attach::a".to_owned(),
        };
        let first = ended("attach::a", true, 1250, "begin\ncomplete\nx\n");
        let second = ended("attach::b", false, 250, "");
        vec![up, begun, first, second, Report::Complete]
    }

    #[test]
    fn reports_are_read_however_they_are_cut() {
        for size in [1, 2, 7, ALL.len()] {
            let mut reader = Reader::default();
            let mut found = Vec::new();
            for chunk in ALL.chunks(size) {
                reader.feed(chunk);
                while let Some(report) = reader.next().unwrap() {
                    found.push(report);
                }
            }
            assert_eq!(found, expected(), "{size} bytes at a time");
        }
    }

    #[test]
    fn what_a_test_prints_is_never_taken_for_a_report() {
        let mut reader = Reader::default();
        reader.feed(b"end 1 0 1 9 attach::a\ncomplete\n");
        let failed = ended("attach::a", false, 1000, "complete\n");
        assert_eq!(reader.next().unwrap(), Some(failed));
        assert_eq!(reader.next().unwrap(), None);
    }

    #[test]
    fn a_report_is_not_given_out_before_all_of_it_has_come() {
        let mut reader = Reader::default();
        reader.feed(b"end 0 0 1 3 attach::a\nab");
        assert_eq!(reader.next().unwrap(), None);
        reader.feed(b"c");
        let whole = ended("attach::a", true, 1000, "abc");
        assert_eq!(reader.next().unwrap(), Some(whole));
    }

    #[test]
    fn what_is_no_report_is_an_error() {
        for text in [
            "hello\n",
            "end ok 0 1 0 attach::a\n",
            "end 0 0 1 -1 attach::a\n",
            "up 6.1 soon\n",
            "up 6.1 -1\n",
            "[    1.5] sysrq: Power Off\n",
        ] {
            let mut reader = Reader::default();
            reader.feed(text.as_bytes());
            let error = format!("{:#}", reader.next().unwrap_err());
            assert!(error.contains(text.trim_end()), "{error}");
        }
    }
}
