//! Checks the workspace's dependencies with cargo-deny and `deny.toml`.

use std::process::Command;

use anyhow::Result;

use crate::cargo::{self, Workspace};

/// The version of cargo-deny that is known to work.
const VERSION: &str = "0.20.2";

/// Checks licences, duplicate versions and sources of everything that Cargo.lock contains for
/// Linux. Advisories are not checked, because their database is fetched by git.
///
/// # Errors
///
/// If something is not allowed, or cargo-deny cannot be installed.
pub fn run(workspace: &Workspace) -> Result<()> {
    let purpose = "checks licences, duplicate versions and sources of dependencies";
    let program = cargo::provide("cargo-deny", VERSION, &[], purpose)?;
    // cargo-deny reads each crate's manifest and licence, so these must be downloaded.
    workspace.run_cargo(["fetch", "--locked"])?;
    let mut deny = Command::new(program);
    deny.current_dir(&workspace.root)
        .args(["--workspace", "--locked", "--offline", "check"])
        .args(["licenses", "bans", "sources"]);
    cargo::run(&mut deny)
}
