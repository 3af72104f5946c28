//! `node-lb agent`: balances this node's traffic until stopped.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::{
    agent,
    config::{Config, Flags},
};

/// Run the agent, which balances this node's traffic to Services. After it stops, programs and
/// maps stay in force
#[derive(Debug, clap::Args)]
pub struct Command {
    #[command(flatten)]
    flags: Flags,
}

impl Command {
    /// # Errors
    /// If the configuration is wrong or the agent cannot run.
    pub fn run(self) -> anyhow::Result<()> {
        // The callers of kube's client report failed requests better than it does.
        let filter = EnvFilter::try_from_env("NODE_LB_LOG")
            .unwrap_or_else(|_| "info,kube_client=off".into());
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .init();
        let config = Config::try_from(self.flags)?;
        super::block_on(agent::run(config))?
    }
}
