//! `node-lb cleanup`: removes everything of node-lb from the kernel.

use std::path::PathBuf;

use crate::config::BPF_ROOT;

/// Remove all programs and maps of node-lb from the kernel; this ends the connections through it
#[derive(Debug, clap::Args)]
pub struct Command {
    /// Directory in which maps and links are pinned
    #[arg(
        long,
        value_name = "DIR",
        env = BPF_ROOT,
        default_value = lb_datapath::pins::DEFAULT_ROOT
    )]
    bpf_root: PathBuf,
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Command {
    /// # Errors
    /// If something cannot be removed, or an agent is running.
    pub fn run(self) -> anyhow::Result<()> {
        let removed = lb_datapath::cleanup(&self.bpf_root)?;
        super::print(&format!(
            "removed {} maps, {} links and {} filters\n",
            removed.maps, removed.links, removed.filters
        ))
    }
}
