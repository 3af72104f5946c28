//! `node-lb man`: manual pages.

use std::{fs, path::PathBuf};

use anyhow::Context as _;

/// Write a manual page for this program and one for each of its commands
#[derive(Debug, clap::Args)]
pub struct Command {
    /// Where to write them, such as /usr/local/share/man/man1; made if it does not exist
    directory: PathBuf,
}

impl Command {
    /// # Errors
    /// If they cannot be written.
    pub fn run(self) -> anyhow::Result<()> {
        let Self { directory } = self;
        fs::create_dir_all(&directory)
            .and_then(|()| clap_mangen::generate_to(super::definition(), &directory))
            .with_context(|| format!("cannot write manual pages to {}", directory.display()))
    }
}
