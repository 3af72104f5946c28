//! Durations in the format of Go, and so of Kubernetes: `1h30m`, `500ms`, `-1.5s`.

use std::time::Duration;

/// The longest duration in Go, in nanoseconds.
const LONGEST: u128 = i64::MAX as u128;
/// How many digits after the point can make a difference, with any unit.
const FRACTION_DIGITS: usize = 13;

/// The text is not a duration in Go's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Reads a duration by the rules of Go's `time.ParseDuration`. Negative durations become zero.
///
/// # Errors
/// If the text is empty, a number has no unit, or the duration is longer than 292 years.
pub fn parse(text: &str) -> Result<Duration, Malformed> {
    let (is_negative, magnitude) = match text.strip_prefix('-') {
        Some(magnitude) => (true, magnitude),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let nanoseconds = match magnitude {
        "" => return Err(Malformed),
        "0" => 0,
        terms => sum(terms)?,
    };
    Ok(match is_negative {
        true => Duration::ZERO,
        false => Duration::from_nanos(nanoseconds),
    })
}

/// The sum of numbers with units, in nanoseconds.
fn sum(mut terms: &str) -> Result<u64, Malformed> {
    let mut sum: u128 = 0;
    while !terms.is_empty() {
        let (number, rest) = split(terms, |c| !is_numeric(c));
        let (unit, rest) = split(rest, is_numeric);
        // At most a number of 20 digits, times units of at most an hour: no overflow.
        sum += scaled(number, nanoseconds_in(unit)?)?;
        if sum > LONGEST {
            return Err(Malformed);
        }
        terms = rest;
    }
    u64::try_from(sum).map_err(|_| Malformed)
}

/// A decimal number of units, in nanoseconds.
fn scaled(number: &str, unit: u64) -> Result<u128, Malformed> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return Err(Malformed);
    }
    let digits = |text: &str| match text {
        "" => Ok(0),
        text => text.parse::<u64>().map(u128::from).map_err(|_| Malformed),
    };
    let fraction = &fraction[..fraction.len().min(FRACTION_DIGITS)];
    let unit = u128::from(unit);
    let part = digits(fraction)? * unit / 10_u128.pow(fraction.len() as u32);
    Ok(digits(whole)? * unit + part)
}

fn nanoseconds_in(unit: &str) -> Result<u64, Malformed> {
    Ok(match unit {
        "ns" => 1,
        // Written with the micro sign, or with the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(Malformed),
    })
}

fn is_numeric(c: char) -> bool {
    c.is_ascii_digit() || c == '.'
}

/// Splits a text before the first character for which `is_such` holds.
fn split(text: &str, is_such: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(is_such).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_sums_of_numbers_with_units() {
        for (text, nanoseconds) in [
            ("0", 0),
            ("+0", 0),
            ("-0", 0),
            ("0s", 0),
            ("10s", 10_000_000_000),
            ("+2s", 2_000_000_000),
            ("-5s", 0),
            ("1h30m", 5_400_000_000_000),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("59s999ms", 59_999_000_000),
            ("10s1ns", 10_000_000_001),
            ("250us", 250_000),
            ("250\u{b5}s", 250_000),
            ("250\u{3bc}s", 250_000),
            ("0.3333333333333333333h", 1_199_999_999_999),
            ("2562047h47m16.854775807s", i64::MAX as u64),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanoseconds)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_malformed() {
        for text in [
            "",
            "10",
            "foo",
            "s",
            ".s",
            ".",
            "-",
            "+",
            "--1s",
            "1s-",
            "1s2",
            "1.2.3s",
            "1d",
            "1week",
            "1 s",
            " 1s",
            "1e3s",
            "inf",
            "99999999999999999999h",
            "2562047h47m16.854775808s",
        ] {
            assert_eq!(parse(text), Err(Malformed), "{text:?}");
        }
    }
}
