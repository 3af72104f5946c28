//! `node-lb probe`: what the probes of the agent's pod run.

use std::{io::Read as _, os::unix::net::UnixStream, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};

use crate::{agent::vitals::Verdict, config::PROBE_SOCKET};

/// How long the agent may take to answer.
const DEADLINE: Duration = Duration::from_secs(4);

/// Ask the agent of this pod how it is; exits with 1 if it is not live, or not ready. For probes:
/// two agents on one node share the ports that other probes ask
#[derive(Args, Debug)]
pub struct Command {
    /// What to ask
    #[arg(value_enum)]
    question: Question,

    /// Socket of the agent
    #[arg(long, value_name = "PATH", env = PROBE_SOCKET)]
    probe_socket: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Question {
    /// Whether the agent gets on with its work
    Live,
    /// Whether the agent serves, or has served and stands by
    Ready,
}

impl Command {
    /// # Errors
    /// If the agent does not answer, or is not what it is asked for.
    pub fn run(self) -> anyhow::Result<()> {
        let path = self.probe_socket.display();
        let verdict = self
            .ask()
            .with_context(|| format!("cannot ask the agent at {path}"))?;
        let (name, problem) = match self.question {
            Question::Live => ("live", verdict.live),
            Question::Ready => ("ready", verdict.ready),
        };
        match problem {
            Some(problem) => bail!("not {name}: {problem}"),
            None => super::print("ok\n"),
        }
    }

    fn ask(&self) -> anyhow::Result<Verdict> {
        let mut stream = UnixStream::connect(&self.probe_socket)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(serde_json::from_str(&text)?)
    }
}
