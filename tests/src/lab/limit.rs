//! Limits on what a process may use: memory and CPU time.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::cgroup::Cgroup;
use super::registry::{LabId, entries_with_prefix};
use crate::patience::{PATIENCE, patient};

/// What a process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Bytes that it may have in addition to what it has at the moment. Who wants more is killed.
    Memory(u64),
    /// So many in a hundred of one CPU's time.
    Cpu(u64),
}

/// A limit in force; dropped, it is lifted.
#[derive(Debug)]
pub struct Limited {
    group: PathBuf,
    /// Where the processes in it were before.
    before: PathBuf,
}

/// The beginning of the names of cgroups that are made for limits; the lab's name follows.
const PREFIX: &str = "node-lb-limit-";
/// In microseconds.
const PERIOD: u64 = 100_000;

impl Limit {
    /// Limits a process of a lab. `name` distinguishes the limits of one kind that are in force
    /// there at the same time.
    ///
    /// # Errors
    ///
    /// If this machine does not have the controller, or the process is gone.
    pub fn set(self, lab: &LabId, name: &str, process: u32) -> Result<Limited> {
        let controller = self.controller();
        let hierarchy = hierarchy(controller)
            .with_context(|| format!("there is no cgroup controller {controller}"))?;
        let before = hierarchy.join(group_of(process, controller)?);
        let group = hierarchy.join(format!("{PREFIX}{lab}-{controller}-{name}"));
        let limited = Limited { group, before };
        limited.begin(self, process).with_context(|| {
            let group = limited.group.display();
            format!("cannot limit process {process} by {group}: {self:?}")
        })?;
        Ok(limited)
    }

    fn controller(self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::Cpu(_) => "cpu",
        }
    }

    /// Files with their contents, of version 2 or 1.
    fn settings(self, is_v2: bool) -> Vec<(&'static str, String)> {
        match (self, is_v2) {
            (Self::Memory(bytes), true) => vec![("memory.max", bytes.to_string())],
            (Self::Memory(bytes), false) => vec![("memory.limit_in_bytes", bytes.to_string())],
            (Self::Cpu(percent), true) => {
                vec![("cpu.max", format!("{} {PERIOD}", PERIOD * percent / 100))]
            }
            (Self::Cpu(percent), false) => vec![
                ("cpu.cfs_period_us", PERIOD.to_string()),
                ("cpu.cfs_quota_us", (PERIOD * percent / 100).to_string()),
            ],
        }
    }
}

impl Limited {
    fn begin(&self, limit: Limit, process: u32) -> io::Result<()> {
        fs::create_dir_all(&self.group)?;
        let is_v2 = self.group.join("cgroup.controllers").exists();
        for (file, value) in limit.settings(is_v2) {
            fs::write(self.group.join(file), value)?;
        }
        fs::write(self.group.join("cgroup.procs"), process.to_string())
    }

    fn lift(&self) -> io::Result<()> {
        let members = fs::read_to_string(self.group.join("cgroup.procs"))?;
        for process in members.lines() {
            match fs::write(self.before.join("cgroup.procs"), process) {
                // It has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                done => done?,
            }
        }
        remove_group(&self.group)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        if let Err(error) = self.lift() {
            eprintln!("cannot lift {}: {error}", self.group.display());
        }
    }
}

/// Removes the limits of a lab whose processes have ended.
pub(super) fn remove_all(lab: &LabId) -> Result<()> {
    let prefix = format!("{PREFIX}{lab}-");
    for hierarchy in ["memory", "cpu"].into_iter().filter_map(hierarchy) {
        for name in entries_with_prefix(&hierarchy, &prefix) {
            let group = hierarchy.join(name);
            // Version 2 only, where it takes processes out of the lab's own cgroup.
            let _ = fs::write(group.join("cgroup.kill"), "1");
            remove_group(&group)
                .with_context(|| format!("cannot remove the cgroup {}", group.display()))?;
        }
    }
    Ok(())
}

/// Removes a cgroup without processes. One that is being killed leaves it a little later.
fn remove_group(group: &Path) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                if start.elapsed() > patient(PATIENCE) {
                    return Err(error);
                }
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            done => return done,
        }
    }
}

/// Where a controller's hierarchy is mounted: version 2 if it has the controller, else version 1.
fn hierarchy(controller: &str) -> Option<PathBuf> {
    let has = |list: PathBuf| {
        let list = fs::read_to_string(list).unwrap_or_default();
        list.split_whitespace().any(|name| name == controller)
    };
    let v2 = Cgroup::mount_point().ok();
    if let Some(v2) = v2.filter(|v2| has(v2.join("cgroup.controllers"))) {
        // Groups below the root have the controllers that the root gives them.
        let enabled = fs::write(v2.join("cgroup.subtree_control"), format!("+{controller}"));
        return enabled.is_ok().then_some(v2);
    }
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (directory, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = kind == "cgroup" && options.split(',').any(|option| option == controller);
        is_it.then(|| PathBuf::from(directory))
    })
}

/// The cgroup of a process in a controller's hierarchy, relative to where that is mounted.
fn group_of(process: u32, controller: &str) -> Result<PathBuf> {
    let path = format!("/proc/{process}/cgroup");
    let groups = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let find = |wanted: &dyn Fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, group) = (fields.next()?, fields.next()?);
            wanted(controllers).then(|| PathBuf::from(group.trim_start_matches('/')))
        })
    };
    find(&|controllers| controllers.split(',').any(|name| name == controller))
        .or_else(|| find(&|controllers| controllers.is_empty()))
        .with_context(|| format!("process {process} is in no cgroup of {controller}"))
}
