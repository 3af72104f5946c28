//! Findings as text.

use std::fmt::Write as _;

use super::output::plain;
use crate::check::{Finding, Level};

/// A line per finding, below it its remedy and where the documentation says more. Names of objects, and what others say of them, may be anything;
/// a terminal gets only what does nothing to it.
pub fn text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.len()).max();
    let width = width.unwrap_or_default();
    let mut text = String::new();
    let mut rest = findings.iter().peekable();
    while let Some(finding) = rest.next() {
        let Finding {
            check,
            level,
            found,
            remedy,
            section,
        } = finding;
        let label = match level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Failure => "FAILURE",
        };
        // Some errors, such as the verifier's, have several lines.
        let indented = |text: &str| {
            let lines: Vec<_> = text.trim_end().split('\n').map(plain).collect();
            lines.join(&format!("\n{:1$}", "", width + 11))
        };
        let found = indented(found);
        writeln!(text, "{label:7}  {check:width$}  {found}").expect("a String takes any text");
        if let Some(remedy) = remedy {
            let remedy = indented(remedy);
            writeln!(text, "{:9}{:width$}  -> {remedy}", "", "").expect("a String takes any text");
        }
        // Once for those of a kind.
        let next = rest.peek().and_then(|next| next.section);
        if let Some(section) = section.filter(|section| next != Some(*section)) {
            writeln!(text, "{:9}{:width$}     see {section}", "", "")
                .expect("a String takes any text");
        }
    }
    text
}
