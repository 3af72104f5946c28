//! `node-lb admission`: connection admission from files, without root or kernel; only `levels`,
//! `connections` and `queues` ask the agent, and `record` reads the node's flow tables.

use std::{os::unix::net::UnixStream, time::Duration};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use serde::de::DeserializeOwned;

use super::local_api::LocalApi;
use crate::http::get;

mod check;
mod cluster;
mod connections;
mod crds;
mod defaults;
mod explain;
mod files;
mod levels;
mod plan;
mod queues;
mod record;
mod report;
mod simulate;
mod suggest;

/// Record connections; propose, check, explain, simulate and watch a configuration of connection
/// admission
#[derive(Args, Debug)]
pub struct Command {
    #[command(subcommand)]
    command: Admission,
}

#[derive(Debug, Subcommand)]
enum Admission {
    Plan(plan::Command),
    Check(check::Command),
    Explain(explain::Command),
    Simulate(simulate::Command),
    Levels(levels::Command),
    Connections(connections::Command),
    Queues(queues::Command),
    Record(record::Command),
    Suggest(suggest::Command),
    Defaults(defaults::Command),
    Crds(crds::Command),
}

/// How long the agent may be silent: it looks at all flows, or queues.
const DEADLINE: Duration = Duration::from_secs(10);

/// Asks the agent for what it has at this path. `what` an agent does not know that has no such path.
///
/// # Errors
/// If no agent answers, or it does not know.
fn ask<T: DeserializeOwned>(agent: &LocalApi, path: &str, what: &str) -> anyhow::Result<T> {
    let ask = |stream: UnixStream| match get(stream, path)? {
        (200, body) => Ok(body),
        (404, _) => bail!("it does not know {what}; is it of another version?"),
        (code, body) => bail!("it answered {code}: {}", body.trim_end()),
    };
    let body = agent.asking(DEADLINE, ask)?;
    serde_json::from_str(&body).context("the agent's answer is of another version")
}

/// The last line of a table that may be longer.
fn more(is_truncated: bool) -> &'static str {
    match is_truncated {
        true => "There are more; see --limit.\n",
        false => "",
    }
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            Admission::Plan(command) => command.run(),
            Admission::Check(command) => command.run(),
            Admission::Explain(command) => command.run(),
            Admission::Simulate(command) => command.run(),
            Admission::Levels(command) => command.run(),
            Admission::Connections(command) => command.run(),
            Admission::Queues(command) => command.run(),
            Admission::Record(command) => command.run(),
            Admission::Suggest(command) => command.run(),
            Admission::Defaults(command) => command.run(),
            Admission::Crds(command) => command.run(),
        }
    }
}
