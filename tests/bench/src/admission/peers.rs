//! The programs to compare with, which a machine may lack.

use std::process::Command;

use anyhow::{Context, Result};

use super::haproxy;

/// Versions of the programs.
#[derive(Clone, Debug)]
pub struct Peers {
    pub haproxy: String,
    pub nft: String,
}

impl Peers {
    /// Asks each program for its version.
    ///
    /// # Errors
    ///
    /// If one is missing: it says which package to install.
    pub fn find() -> Result<Self> {
        Ok(Self {
            haproxy: version(haproxy::PROGRAM, "-v", "haproxy")?,
            nft: version("nft", "--version", "nftables")?,
        })
    }
}

/// The first line of what a program says about its version.
fn version(program: &str, flag: &str, package: &str) -> Result<String> {
    let output = Command::new(program).arg(flag).output();
    let output = output.with_context(|| {
        format!(
            "cannot run {program}, which admission is compared with: install the package {package}, or run \
             `cargo xtask bench --only admission`, which does"
        )
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = version("no-such-program", "-v", "its-package").unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("no-such-program") && text.contains("package its-package"));
    }
}
