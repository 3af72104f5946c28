//! `node-lb admission queues`: the queues for seats of priority levels on this node, live.

use clap::Args;

use super::{ask, more};
use crate::{
    agent::local_api::queues::Page,
    cli::{live::Live, output::aligned},
};

/// Show the queues of priority levels on this node in which connections wait for seats, or that are
/// charged for seats
#[derive(Args, Debug)]
pub struct Command {
    /// Show all queues, also those that are empty
    #[arg(short, long)]
    all: bool,

    /// Show at most this many queues; the agent tells of 10000 at most
    #[arg(short, long, value_name = "QUEUES", default_value_t = 1000)]
    limit: u32,

    #[command(flatten)]
    live: Live,
}

impl Command {
    /// # Errors
    /// If no agent answers.
    pub fn run(self) -> anyhow::Result<()> {
        let all = if self.all { "&all" } else { "" };
        let path = format!("/queues?limit={}{all}", self.limit);
        self.live
            .show(|agent| ask(agent, &path, "its queues"), render)?;
        Ok(())
    }
}

fn render(page: &Page) -> String {
    if page.queues == 0 {
        return "No priority level has queues.\n".to_owned();
    }
    let mut rows =
        vec![["PRIORITY LEVEL", "QUEUE", "SEATS", "WAITING", "OLDEST"].map(str::to_owned)];
    rows.extend(page.items.iter().map(|queue| {
        [
            queue.priority_level.clone(),
            queue.queue.to_string(),
            queue.seats.to_string(),
            queue.waiting.to_string(),
            match queue.oldest_ms {
                Some(wait) => format!("{wait} ms"),
                None => "-".to_owned(),
            },
        ]
    }));
    aligned(&rows) + more(page.truncated)
}
