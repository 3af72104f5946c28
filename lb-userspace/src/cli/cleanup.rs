//! `node-lb cleanup`: removes everything of node-lb from the kernel.

use std::path::PathBuf;

use super::bpf_root::BpfRoot;

/// Remove all programs and maps of node-lb from the kernel; this ends the connections through it
#[derive(Debug, clap::Args)]
pub struct Command {
    #[command(flatten)]
    bpf_root: BpfRoot,
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Command {
    /// # Errors
    /// If something cannot be removed, or an agent is running.
    pub fn run(self) -> anyhow::Result<()> {
        let removed = lb_datapath::cleanup(&self.bpf_root.path)?;
        super::print(&format!(
            "removed {} maps, {} links and {} filters\n",
            removed.maps, removed.links, removed.filters
        ))
    }
}
