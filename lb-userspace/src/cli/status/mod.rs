//! `node-lb status`: the state of the agent on this node, and what it cannot do.

mod figures;
#[cfg(test)]
mod tests;

use std::{os::unix::net::UnixStream, process::ExitCode, time::Duration};

use anyhow::{Context as _, bail};
use clap::Args;

use super::{findings, live::Live, local_api::LocalApi};
use crate::{
    agent::{attention::Report, status::Status},
    http::get,
};

/// How long the agent may take to answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// The exit status if something needs attention; 1 and 2 are those of errors.
const NEEDS_ATTENTION: u8 = 3;

/// Show what on this node needs attention, with remedies, and the state of the agent
///
/// The exit status is 0 if nothing needs attention, 3 if something does, and 1 if no agent answers.
#[derive(Args, Debug)]
pub struct Command {
    #[command(flatten)]
    live: Live,
}

impl Command {
    /// # Errors
    /// If no agent answers.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let report = self.live.show(|agent| of(agent).map(Report::of), render)?;
        Ok(match report.attention.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::from(NEEDS_ATTENTION),
        })
    }
}

/// What an agent says of itself.
///
/// # Errors
/// If no agent answers.
pub fn of(agent: &LocalApi) -> anyhow::Result<Status> {
    let body = agent.asking(DEADLINE, ask)?;
    serde_json::from_str(&body)
        .context("the agent's answer is not a status; is it of another version?")
}

/// The body of the agent's answer.
fn ask(stream: UnixStream) -> anyhow::Result<String> {
    match get(stream, "/status")? {
        (200, body) => Ok(body),
        (code, body) => bail!("it answered {code}: {}", body.trim_end()),
    }
}

/// What needs attention first, then all figures.
fn render(report: &Report) -> String {
    let Report { attention, status } = report;
    let node = &status.node;
    let verdict = match attention.len() {
        0 => format!("Nothing needs attention on {node}."),
        1 => format!("One thing needs attention on {node}:"),
        several => format!("{several} things need attention on {node}:"),
    };
    let findings = findings::text(attention);
    format!("{verdict}\n{findings}\n{}", figures::render(status))
}
