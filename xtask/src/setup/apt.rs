//! Debian and Ubuntu packages.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use xtask::ebpf::Release;

use super::on_path;
use crate::{architecture::Architecture, privilege::Privilege, step::Steps};

/// apt. Its package lists are updated at most once, and only if a package is not in them.
pub struct Apt<'a> {
    steps: &'a Steps,
    updated: bool,
    /// For another architecture: options that say so, and give it lists of its own.
    foreign: Option<Vec<String>>,
}

impl<'a> Apt<'a> {
    pub fn new(steps: &'a Steps) -> Self {
        Self {
            steps,
            updated: false,
            foreign: None,
        }
    }

    /// apt for an architecture that this machine may not have. Its lists are below `directory`, from
    /// this machine's sources. It only downloads, and nothing counts as installed. Needs no root.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub fn foreign(steps: &'a Steps, of: Architecture, directory: &Path) -> Result<Self> {
        let make = || {
            fs::create_dir_all(directory.join("state/lists/partial"))?;
            fs::create_dir_all(directory.join("cache/archives/partial"))?;
            // What is installed: nothing.
            fs::write(directory.join("status"), "")
        };
        make().with_context(|| format!("cannot make {}", directory.display()))?;
        let place = |name: &str| directory.join(name).display().to_string();
        let options = [
            format!("APT::Architecture={}", of.debian()),
            format!("APT::Architectures::={}", of.debian()),
            format!("Dir::State={}", place("state")),
            format!("Dir::State::status={}", place("status")),
            format!("Dir::Cache={}", place("cache")),
            // root may keep its files where apt's own user cannot go.
            "APT::Sandbox::User=root".to_owned(),
        ];
        Ok(Self {
            steps,
            updated: false,
            foreign: Some(options.map(|option| format!("--option={option}")).to_vec()),
        })
    }

    /// The version that would be installed, or `None` if no list has the package.
    pub fn candidate(&mut self, package: &str) -> Option<Release> {
        if !on_path("apt-get") {
            return None;
        }
        if let Some(version) = self.listed(package) {
            return Some(version);
        }
        if self.updated || self.update().is_err() {
            return None;
        }
        self.listed(package)
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
        let names = self.names_of(start, end);
        if !names.is_empty() || self.updated || self.update().is_err() {
            return names;
        }
        self.names_of(start, end)
    }

    /// Downloads a package into a directory and returns its file. Needs no root.
    ///
    /// # Errors
    /// If apt fails, with updated lists.
    pub fn download(&mut self, package: &str, directory: &Path) -> Result<PathBuf> {
        self.with_new_lists(|apt| apt.download_once(package, directory))?;
        let packages = packages_in(directory)?;
        packages
            .into_iter()
            .next()
            .with_context(|| format!("apt-get left no package in {}", directory.display()))
    }

    /// Downloads packages, and all others that they need and that are not installed, into a
    /// directory. Returns their files.
    ///
    /// # Errors
    /// If apt fails, with updated lists.
    pub fn download_all(&mut self, packages: &[&str], directory: &Path) -> Result<Vec<PathBuf>> {
        fs::create_dir_all(directory.join("partial"))?;
        let download = |apt: &mut Self| {
            let mut command = apt.client("apt-get");
            command
                .args(["install", "--download-only", "--yes", "--quiet"])
                .arg("--no-install-recommends")
                .arg(format!(
                    "--option=Dir::Cache::archives={}",
                    directory.display()
                ))
                .args(packages);
            let title = format!("downloading {}", packages.join(" "));
            apt.steps.run(&title, &mut command)
        };
        self.with_new_lists(download)?;
        packages_in(directory)
    }

    /// Does something with packages, and does it again with updated lists if that fails: outdated
    /// lists name files that mirrors no longer have.
    fn with_new_lists(&mut self, mut work: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        match work(self) {
            Err(_) if !self.updated => self.update().and_then(|()| work(self)),
            result => result,
        }
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
        self.with_new_lists(|apt| apt.install_once(packages))
            .with_context(by_hand)
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
        let mut command = self.client("apt-get");
        command
            .args(["download", "--quiet", package])
            .current_dir(directory);
        self.steps
            .run(&format!("downloading {package}"), &mut command)
    }

    fn update(&mut self) -> Result<()> {
        self.updated = true;
        let mut command = match self.foreign {
            Some(_) => self.client("apt-get"),
            None => apt_get()?,
        };
        self.steps
            .run("updating the list of packages", command.arg("update"))
    }

    /// A program of apt that changes nothing in this machine.
    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .args(self.foreign.iter().flatten())
            .env("LC_ALL", "C");
        command
    }

    fn listed(&self, package: &str) -> Option<Release> {
        let output = self
            .client("apt-cache")
            .args(["policy", package])
            .output()
            .ok()?;
        parse_candidate(&String::from_utf8_lossy(&output.stdout))
    }

    fn names_of(&self, start: &str, end: &str) -> Vec<String> {
        let output = self.client("apt-cache").args(["pkgnames", start]).output();
        let output = output.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&output)
            .lines()
            .filter(|name| name.ends_with(end))
            .map(str::to_owned)
            .collect()
    }
}

/// The files of packages in a directory.
fn packages_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory)?;
    let files = entries.flatten().map(|entry| entry.path());
    Ok(files
        .filter(|path| path.extension().is_some_and(|end| end == "deb"))
        .collect())
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
