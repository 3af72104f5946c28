//! Root privileges, for packages and for tests that create network namespaces and load BPF
//! programs.

use std::{
    ffi::OsStr,
    fs,
    io::{IsTerminal, stdin},
    os::unix::fs::MetadataExt,
    process::{Command, Stdio},
};

use anyhow::{Result, bail};

/// How this process can run a command as root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    Root,
    Sudo,
}

impl Privilege {
    /// # Errors
    /// If this is not root, and sudo does not allow it either.
    pub fn detect() -> Result<Self> {
        // The owner of /proc/self is the effective user.
        if fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0) {
            return Ok(Self::Root);
        }
        let succeeds = |arguments: &[&str]| {
            let mut sudo = Command::new("sudo");
            sudo.args(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            sudo.status().is_ok_and(|status| status.success())
        };
        if succeeds(&["-n", "true"]) || stdin().is_terminal() && succeeds(&["--version"]) {
            return Ok(Self::Sudo);
        }
        bail!("this needs root, and sudo is not available without a password here")
    }

    /// A command that runs `program` as root, with the environment that sudo gives it.
    pub fn plain_command(self, program: impl AsRef<OsStr>) -> Command {
        self.with_sudo(&[], program)
    }

    /// A command that runs `program` as root with this process' environment.
    pub fn command(self, program: impl AsRef<OsStr>) -> Command {
        self.with_sudo(&["--preserve-env"], program)
    }

    fn with_sudo(self, options: &[&str], program: impl AsRef<OsStr>) -> Command {
        match self {
            Self::Root => Command::new(program),
            Self::Sudo => {
                let mut command = Command::new("sudo");
                command.args(options).arg("--").arg(program);
                command
            }
        }
    }
}
