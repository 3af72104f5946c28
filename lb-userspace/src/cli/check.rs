//! `node-lb check`: whether this node can run the agent.

use std::{fmt::Write as _, process::ExitCode};

use serde::Serialize;

use super::{findings, output::Output};
use crate::{
    check::{self, Finding, Level},
    config::{Config, Flags},
};

/// Check whether this node can run the agent with these settings, and show obstacles with remedies
///
/// The exit status is 0 if the agent can run, also with warnings, and 1 if it cannot.
#[derive(Debug, clap::Args)]
pub struct Command {
    #[command(flatten)]
    flags: Flags,

    /// Format of the output; JSON is an object with all findings
    #[arg(short, long, value_name = "FORM", value_enum, default_value = "table")]
    output: Output,
}

/// The form of `--output json`.
#[derive(Serialize)]
struct Report {
    /// The level of the worst finding.
    level: Level,
    findings: Vec<Finding>,
}

impl Command {
    /// # Errors
    /// If the configuration is wrong, or no check is possible.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let config = Config::try_from(self.flags)?;
        let findings = super::block_on(check::run(&config))?;
        let level = findings.iter().map(|finding| finding.level).max();
        let level = level.unwrap_or(Level::Ok);
        let report = Report { level, findings };
        super::print(
            &self
                .output
                .text(&report, |report| render(&report.findings))?,
        )?;
        Ok(match level {
            Level::Failure => ExitCode::FAILURE,
            Level::Ok | Level::Warning => ExitCode::SUCCESS,
        })
    }
}

/// The findings, and a summary.
fn render(findings: &[Finding]) -> String {
    let mut text = findings::text(findings);
    let count = |level| findings.iter().filter(|f| f.level == level).count();
    let (failures, warnings) = (count(Level::Failure), count(Level::Warning));
    let verdict = match failures {
        0 => "This node can run node-lb",
        _ => "This node cannot run node-lb",
    };
    writeln!(
        text,
        "\n{verdict}: {failures} failures, {warnings} warnings."
    )
    .expect("a String takes any text");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docs::Section;

    fn finding(check: &str, level: Level, found: &str, remedy: Option<&str>) -> Finding {
        Finding {
            check: check.to_owned(),
            level,
            found: found.to_owned(),
            remedy: remedy.map(str::to_owned),
            section: None,
        }
    }

    #[test]
    fn what_is_wrong_comes_with_its_remedy() {
        let findings = [
            finding("kernel", Level::Ok, "Linux 6.12", None),
            finding("BPF JIT", Level::Warning, "off", Some("switch it on")).see(Section::Rights),
            finding("BTF", Level::Failure, "none\nat all", Some("boot another")),
        ];
        let expected = "\
ok       kernel   Linux 6.12
warning  BPF JIT  off
                  -> switch it on
                     see docs/deploy.md#what-the-agent-may-do
FAILURE  BTF      none
                  at all
                  -> boot another

This node cannot run node-lb: 1 failures, 1 warnings.
";
        assert_eq!(render(&findings), expected);
        assert!(render(&findings[..2]).ends_with("can run node-lb: 0 failures, 1 warnings.\n"));
    }
}
