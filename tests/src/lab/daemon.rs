//! Programs that others have written, such as Kubernetes', as child processes of a lab.

use std::{
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::{Context, Result, bail};
use xtask::ebpf::Places;

use super::Host;

/// Where a program is that `cargo xtask setup` builds.
///
/// # Errors
/// If it has not been built.
pub fn program(name: &str) -> Result<PathBuf> {
    let program = Places::from_env().cluster_programs().join(name);
    if !program.is_file() {
        bail!(
            "{} is not there: `cargo xtask setup` builds it",
            program.display()
        );
    }
    Ok(program)
}

/// The same, as a command on `host`.
///
/// # Errors
/// If it has not been built.
pub fn command(host: &Host, name: &str) -> Result<Command> {
    host.command(program(name)?)
}

/// A program that runs until it is dropped or its lab is removed.
#[derive(Debug)]
pub struct Daemon {
    name: &'static str,
    process: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts a program that `cargo xtask setup` builds on `host`, its log in `directory`.
    ///
    /// # Errors
    /// If it has not been built or does not start.
    pub fn start(
        host: &Host,
        name: &'static str,
        arguments: &[String],
        directory: &Path,
    ) -> Result<Self> {
        let mut command = command(host, name)?;
        command.args(arguments);
        Self::run(name, command, directory)
    }

    /// Starts any program in `directory`, its log there under `name`.
    ///
    /// # Errors
    /// If it does not start.
    pub fn run(name: &'static str, mut command: Command, directory: &Path) -> Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let file = OpenOptions::new().create(true).append(true).open(&log);
        let file = file.with_context(|| format!("cannot open {}", log.display()))?;
        command.current_dir(directory);
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        let process = command
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name, process, log })
    }

    /// Fails if the program has ended, with its last output.
    ///
    /// # Errors
    /// See above.
    pub fn check(&mut self) -> Result<()> {
        match self.process.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}:\n{}", self.name, self.last_words()),
        }
    }

    /// The end of its log.
    pub fn last_words(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    ///
    /// # Errors
    /// If that fails.
    pub fn kill(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.process.kill().context("cannot kill it")?;
        self.process.wait().context("cannot wait for it")?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the end of {}'s log:\n{}", self.name, self.last_words());
        }
        // It may already have ended, which is fine.
        let _ = self.end();
    }
}
