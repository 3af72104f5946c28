//! `node-lb admission connections`: who holds the seats of priority levels on this node, live.

use std::{os::unix::net::UnixStream, time::Duration};

use anyhow::{Context as _, bail};
use clap::Args;

use super::Watch;
use crate::{
    agent::local_api::connections::Page,
    cli::{
        local_api::LocalApi,
        output::{Output, aligned},
    },
    http::get,
};

/// How long the agent may be silent: it looks at all flows.
const DEADLINE: Duration = Duration::from_secs(10);

/// Show who holds the seats of priority levels on this node: the flows of each flow schema, those with
/// the most connections first
#[derive(Args, Debug)]
pub struct Command {
    #[command(flatten)]
    agent: LocalApi,

    /// Show at most this many flows
    #[arg(short, long, value_name = "FLOWS", default_value_t = 20)]
    limit: u32,

    #[command(flatten)]
    watch: Watch,

    /// Format of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value = "table")]
    output: Output,
}

impl Command {
    /// # Errors
    /// If no agent answers.
    pub fn run(self) -> anyhow::Result<()> {
        self.watch.print(|| self.output.text(&self.page()?, render))
    }

    fn page(&self) -> anyhow::Result<Page> {
        let path = format!("/connections?limit={}", self.limit);
        let ask = |stream: UnixStream| match get(stream, &path)? {
            (200, body) => Ok(body),
            (404, _) => bail!("it does not know who holds seats; is it of another version?"),
            (code, body) => bail!("it answered {code}: {}", body.trim_end()),
        };
        let body = self.agent.asking(DEADLINE, ask)?;
        serde_json::from_str(&body).context("the agent's answer is of another version")
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
            flow.handshakes.to_string(),
        ]
    }));
    let more = match page.truncated {
        true => "There are more; see --limit.\n",
        false => "",
    };
    aligned(&rows) + more
}
