//! Debian and Ubuntu packages.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use xtask::ebpf::Release;

use super::on_path;
use crate::{privilege::Privilege, step::Steps};

/// apt. Its package lists are updated at most once, and only if a package is not in them.
pub struct Apt<'a> {
    steps: &'a Steps,
    updated: bool,
}

impl<'a> Apt<'a> {
    pub fn new(steps: &'a Steps) -> Self {
        Self {
            steps,
            updated: false,
        }
    }

    /// The version that would be installed, or `None` if no list has the package.
    pub fn candidate(&mut self, package: &str) -> Option<Release> {
        if !on_path("apt-get") {
            return None;
        }
        if let Some(version) = listed(package) {
            return Some(version);
        }
        if self.updated || self.update().is_err() {
            return None;
        }
        listed(package)
    }

    /// The first of `packages` that can be installed.
    pub fn first_available<'p>(&mut self, packages: &[&'p str]) -> Option<&'p str> {
        packages
            .iter()
            .find(|package| self.candidate(package).is_some())
            .copied()
    }

    /// The packages with names that start and end like this.
    pub fn names(&mut self, start: &str, end: &str) -> Vec<String> {
        if !on_path("apt-get") {
            return Vec::new();
        }
        let names = names_of(start, end);
        if !names.is_empty() || self.updated || self.update().is_err() {
            return names;
        }
        names_of(start, end)
    }

    /// Downloads a package into a directory and returns its file. Needs no root.
    ///
    /// # Errors
    /// If apt fails, with updated lists.
    pub fn download(&mut self, package: &str, directory: &Path) -> Result<PathBuf> {
        let result = self.download_once(package, directory);
        match result {
            Err(_) if !self.updated => self
                .update()
                .and_then(|()| self.download_once(package, directory))?,
            result => result?,
        }
        let entries = fs::read_dir(directory)?;
        let mut files = entries.flatten().map(|entry| entry.path());
        files
            .find(|path| path.extension().is_some_and(|end| end == "deb"))
            .with_context(|| format!("apt-get left no package in {}", directory.display()))
    }

    /// # Errors
    /// Without apt, without root, or if apt fails.
    pub fn install(&mut self, packages: &[&str]) -> Result<()> {
        if packages.is_empty() {
            return Ok(());
        }
        let by_hand = format!("apt-get install {}", packages.join(" "));
        if !on_path("apt-get") {
            bail!("there is no apt-get on this machine (on Debian: `{by_hand}`)");
        }
        let by_hand = || format!("run `{by_hand}` as root, then try again");
        Privilege::detect().with_context(by_hand)?;
        let result = self.install_once(packages);
        // Outdated lists name files that mirrors no longer have.
        let result = match result {
            Err(_) if !self.updated => self.update().and_then(|()| self.install_once(packages)),
            result => result,
        };
        result.with_context(by_hand)
    }

    fn install_once(&self, packages: &[&str]) -> Result<()> {
        let mut command = apt_get()?;
        command
            .args(["install", "--yes", "--no-install-recommends"])
            .args(packages);
        self.steps
            .run(&format!("installing {}", packages.join(" ")), &mut command)
    }

    fn download_once(&self, package: &str, directory: &Path) -> Result<()> {
        let mut command = Command::new("apt-get");
        command
            .args(["download", "--quiet", package])
            .current_dir(directory);
        self.steps
            .run(&format!("downloading {package}"), &mut command)
    }

    fn update(&mut self) -> Result<()> {
        self.updated = true;
        self.steps
            .run("updating the list of packages", apt_get()?.arg("update"))
    }
}

fn apt_get() -> Result<Command> {
    // sudo drops the environment; env(1) sets the variables that keep apt from asking questions.
    let mut command = Privilege::detect()?.plain_command("env");
    command.args([
        "DEBIAN_FRONTEND=noninteractive",
        "NEEDRESTART_MODE=a",
        "LC_ALL=C",
        "apt-get",
    ]);
    // Another apt may be running, for instance the first update of a new machine.
    command.args(["--option", "DPkg::Lock::Timeout=300", "--quiet"]);
    Ok(command)
}

fn listed(package: &str) -> Option<Release> {
    let mut command = Command::new("apt-cache");
    let output = command
        .args(["policy", package])
        .env("LC_ALL", "C")
        .output()
        .ok()?;
    parse_candidate(&String::from_utf8_lossy(&output.stdout))
}

fn names_of(start: &str, end: &str) -> Vec<String> {
    let output = Command::new("apt-cache").args(["pkgnames", start]).output();
    let output = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output)
        .lines()
        .filter(|name| name.ends_with(end))
        .map(str::to_owned)
        .collect()
}

/// The upstream part of the candidate's version, from `apt-cache policy`.
fn parse_candidate(policy: &str) -> Option<Release> {
    let version = policy
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("Candidate:"))?
        .trim();
    let without_epoch = version.split_once(':').map_or(version, |(_, rest)| rest);
    Release::parse(without_epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidate_is_read_from_policy() {
        let policy = "llvm-22-dev:\n  Installed: (none)\n  Candidate: 1:22.1.8-1~deb12u1\n  \
                      Version table:\n     1:22.1.8-1~deb12u1 500\n";
        assert_eq!(parse_candidate(policy), Some(Release::new(22, 1, 8)));
        let web = "rustc-web:\n  Installed: (none)\n  Candidate: 1.96.0+dfsg1-1~deb12u2\n";
        assert_eq!(parse_candidate(web), Some(Release::new(1, 96, 0)));
    }

    #[test]
    fn package_that_no_list_has_has_no_candidate() {
        assert_eq!(
            parse_candidate("rustup:\n  Installed: (none)\n  Candidate: (none)\n"),
            None
        );
        assert_eq!(parse_candidate(""), None);
    }
}
