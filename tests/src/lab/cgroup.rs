//! cgroup v2 directories: what cgroup programs see as "this node's processes".

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::patience::{PATIENCE, patient};

/// A cgroup v2 directory made by the lab.
#[derive(Clone, Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Where the cgroup2 hierarchy is mounted: `/sys/fs/cgroup`, or `.../unified` beside v1.
    pub fn mount_point() -> Result<PathBuf> {
        let mounts = fs::read_to_string("/proc/mounts").context("cannot read /proc/mounts")?;
        mounts
            .lines()
            .filter_map(|line| {
                let mut fields = line.split(' ').skip(1);
                Some((fields.next()?, fields.next()?))
            })
            .find_map(|(dir, kind)| (kind == "cgroup2").then(|| PathBuf::from(dir)))
            .context("no cgroup2 is mounted: mount -t cgroup2 none /sys/fs/cgroup/unified")
    }

    /// Creates the directory, and those above it, if it is missing.
    pub fn create(path: PathBuf) -> Result<Self> {
        fs::create_dir_all(&path)
            .with_context(|| format!("cannot create the cgroup {}", path.display()))?;
        Ok(Self { path })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes `command` start as a member of this cgroup.
    pub fn adopt(&self, command: &mut Command) -> Result<()> {
        let procs = self.path.join("cgroup.procs");
        let file = OpenOptions::new()
            .write(true)
            .open(&procs)
            .with_context(|| format!("cannot open {}", procs.display()))?;
        // SAFETY: the closure makes one write of a constant to an open descriptor ("0" means the
        // writer itself), which is allowed between fork and exec.
        unsafe { command.pre_exec(move || (&file).write_all(b"0")) };
        Ok(())
    }

    /// Kills every process at or below `path` and removes the directories. Missing is fine.
    pub fn remove(path: &Path) -> Result<()> {
        if !path.exists() {
            return Ok(());
        }
        fs::write(path.join("cgroup.kill"), "1")
            .with_context(|| format!("cannot kill the processes of {}", path.display()))?;
        let deadline = Instant::now() + patient(PATIENCE);
        while populated(path)? {
            if Instant::now() > deadline {
                bail!("{} still has processes after {PATIENCE:?}", path.display());
            }
            thread::sleep(Duration::from_millis(2));
        }
        remove_tree(path).with_context(|| format!("cannot remove the cgroup {}", path.display()))
    }
}

fn populated(path: &Path) -> Result<bool> {
    let events = path.join("cgroup.events");
    let text =
        fs::read_to_string(&events).with_context(|| format!("cannot read {}", events.display()))?;
    Ok(text.lines().any(|line| line == "populated 1"))
}

/// cgroup directories hold files that cannot be unlinked, so `remove_dir_all` does not fit.
fn remove_tree(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}
