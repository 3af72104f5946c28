//! `node-lb mount-bpffs`: for an init container, on nodes that boot without the BPF file system.

use std::path::Path;

use lb_datapath::preflight::{BPF_FS, provide_bpf_fs};

/// Mount the BPF file system on /sys/fs/bpf, unless it is mounted already
#[derive(Debug, clap::Args)]
pub struct Command {}

impl Command {
    /// # Errors
    /// If the kernel refuses.
    pub fn run(self) -> anyhow::Result<()> {
        let mounted = provide_bpf_fs(Path::new(BPF_FS))?;
        super::print(match mounted {
            true => "mounted the BPF file system on /sys/fs/bpf\n",
            false => "the BPF file system is there\n",
        })
    }
}
