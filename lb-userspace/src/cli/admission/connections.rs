//! `node-lb admission connections`: who holds the seats of priority levels on this node, live.

use clap::Args;

use super::{ask, more};
use crate::{
    agent::local_api::connections::Page,
    cli::{live::Live, output::aligned},
};

/// Show who holds the seats of priority levels on this node: the flows of each flow schema, those with
/// the most seats first
#[derive(Args, Debug)]
pub struct Command {
    /// Show at most this many flows
    #[arg(short, long, value_name = "FLOWS", default_value_t = 20)]
    limit: u32,

    #[command(flatten)]
    live: Live,
}

impl Command {
    /// # Errors
    /// If no agent answers.
    pub fn run(self) -> anyhow::Result<()> {
        let path = format!("/connections?limit={}", self.limit);
        self.live
            .show(|agent| ask(agent, &path, "who holds seats"), render)?;
        Ok(())
    }
}

fn render(page: &Page) -> String {
    let mut rows = vec![
        [
            "FLOW SCHEMA",
            "PRIORITY LEVEL",
            "FLOW",
            "CONNECTIONS",
            "LIMIT",
            "SEATS",
            "HANDSHAKES",
        ]
        .map(str::to_owned),
    ];
    rows.extend(page.items.iter().map(|flow| {
        [
            flow.flow_schema.clone(),
            flow.priority_level.clone(),
            flow.flow.clone(),
            flow.connections.to_string(),
            flow.limit.map_or("-".to_owned(), |limit| limit.to_string()),
            flow.seats.to_string(),
            flow.handshakes.to_string(),
        ]
    }));
    aligned(&rows) + more(page.truncated)
}
