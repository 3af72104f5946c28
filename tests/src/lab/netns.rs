//! Named network namespaces, entered in-process.
//!
//! `ip netns exec` is avoided on purpose: it mounts a fresh `/sys`, which hides the pins in bpffs
//! and the cgroup tree from the program it starts.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, umount2};
use nix::sched::{CloneFlags, setns};

/// An open network namespace that also has a name below `/run/netns`, so that `ip netns` shows it.
#[derive(Debug)]
pub struct Netns {
    name: String,
    handle: File,
}

impl Netns {
    /// Where iproute2 keeps its named namespaces.
    pub const DIR: &str = "/run/netns";

    /// Opens the namespace `name` that iproute2 has created.
    pub fn open(name: &str) -> Result<Self> {
        let path = Self::path_of(name);
        let handle = File::open(&path)
            .with_context(|| format!("cannot open the network namespace {}", path.display()))?;
        Ok(Self {
            name: name.to_owned(),
            handle,
        })
    }

    /// The name below [`Netns::DIR`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` on a thread of its own inside this namespace and returns what it returned.
    ///
    /// Sockets the work creates stay in the namespace, wherever they are used later. A panic of
    /// the work is passed on to the caller.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| self.enter().map(|()| work()));
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
        .with_context(|| format!("cannot enter the network namespace {}", self.name))
    }

    /// Moves the calling thread, and the threads it starts, into this namespace for good.
    pub fn enter(&self) -> io::Result<()> {
        Ok(setns(&self.handle, CloneFlags::CLONE_NEWNET)?)
    }

    /// A command that will run inside this namespace, everything else unchanged.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let handle = self
            .handle
            .try_clone()
            .context("cannot copy a namespace handle")?;
        let mut command = Command::new(program);
        // SAFETY: the closure makes one system call on an open descriptor, which is allowed
        // between fork and exec; it neither allocates nor takes a lock.
        unsafe { command.pre_exec(move || Ok(setns(&handle, CloneFlags::CLONE_NEWNET)?)) };
        Ok(command)
    }

    /// Removes the name `name`; the kernel ends the namespace when its last user is gone.
    pub fn remove(name: &str) -> Result<()> {
        let path = Self::path_of(name);
        // If it is not mounted, creation stopped half-way, and only the file must be removed.
        let _ = umount2(&path, MntFlags::MNT_DETACH);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(e).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    fn path_of(name: &str) -> PathBuf {
        Path::new(Self::DIR).join(name)
    }
}
