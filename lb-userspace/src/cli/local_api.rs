//! The agent's local API, for commands that ask it.

use std::{
    io::{BufReader, Read as _},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::Args;

use crate::{config::DEFAULT_SOCKET, docs::Section, http};

/// Where the agent answers.
#[derive(Args, Debug)]
pub struct LocalApi {
    /// Socket of the agent
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
}

impl LocalApi {
    /// The agent that listens at this socket.
    pub fn at(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Connects to the agent and has `ask` ask it. The agent may be silent for `patience`.
    ///
    /// # Errors
    ///
    /// If no agent answers, or `ask` fails; both name the socket.
    pub fn asking<T>(
        &self,
        patience: Duration,
        ask: impl FnOnce(UnixStream) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let connect = || {
            let stream = UnixStream::connect(&self.socket)?;
            stream.set_read_timeout(Some(patience))?;
            ask(stream)
        };
        connect().with_context(|| {
            format!(
                "cannot ask the agent at {}: is it running, and with this --socket? See {}",
                self.socket.display(),
                Section::NoAgent
            )
        })
    }

    /// Asks for a stream, to be read line by line as it comes. The agent may be silent for
    /// `patience`.
    ///
    /// # Errors
    ///
    /// If no agent answers, or it refuses.
    pub fn stream(&self, patience: Duration, path: &str) -> anyhow::Result<BufReader<UnixStream>> {
        let (code, mut answer) = self.asking(patience, |stream| http::open(stream, path))?;
        if code != 200 {
            let mut body = String::new();
            answer.read_to_string(&mut body)?;
            bail!("the agent answered {code}: {}", body.trim_end());
        }
        Ok(answer)
    }
}
