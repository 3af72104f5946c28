//! The place of the data plane's maps, for commands that look there themselves.

use std::path::PathBuf;

use clap::Args;

use crate::config::BPF_ROOT;

/// Where maps and links are pinned.
#[derive(Args, Debug)]
pub struct BpfRoot {
    /// Directory in which maps and links are pinned
    #[arg(
        id = "bpf_root",
        long = "bpf-root",
        value_name = "DIR",
        env = BPF_ROOT,
        default_value = lb_datapath::pins::DEFAULT_ROOT
    )]
    pub path: PathBuf,
}
