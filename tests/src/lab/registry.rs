//! The labs on this machine, their owners, and how each is removed.
//!
//! Everything a lab puts on the machine has the lab's id in its name, and the registry has a
//! directory per id: what is removed is exactly what carries the name of a registered lab.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::address::Addresses;
use super::bpffs;
use super::cgroup::Cgroup;
use super::limit;
use super::netns::Netns;

/// Where WireGuard has its sockets, one for each device.
pub const WIREGUARD_SOCKETS: &str = "/var/run/wireguard";

/// A lab's name: up to ten lower-case letters and digits. No dash, so that no lab's prefix is the
/// beginning of another's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LabId(String);

impl LabId {
    /// The lab's directory: its record, and a directory per node.
    pub fn dir(&self) -> PathBuf {
        Path::new(ROOT).join(&self.0)
    }

    /// The name of a host's network namespace.
    pub fn netns(&self, host: &str) -> String {
        format!("{}{host}", self.netns_prefix())
    }

    /// A directory in bpffs that belongs to one host.
    pub fn pin_root(&self, host: &str) -> PathBuf {
        Path::new(bpffs::MOUNT_POINT).join(format!("{}{host}", self.pin_prefix()))
    }

    /// The lab's cgroup; all its child processes are at or below it.
    pub fn cgroup(&self) -> Result<PathBuf> {
        Ok(Cgroup::mount_point()?.join(format!("node-lb-lab-{}", self.0)))
    }

    fn netns_prefix(&self) -> String {
        format!("nlb-{}-", self.0)
    }

    /// Begins the names of the lab's WireGuard devices, which are also those of their sockets.
    pub fn wireguard_prefix(&self) -> String {
        format!("wg{}-", self.0)
    }

    fn pin_prefix(&self) -> String {
        format!("node-lb-{}-", self.0)
    }
}

impl FromStr for LabId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        ensure!(
            (1..=10).contains(&text.len()) && text.chars().all(fits),
            "{text:?} is not a lab name: 1 to 10 lower-case letters and digits"
        );
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for LabId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the registry knows of a lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The process that owns the lab; `None` for a lab that stays until it is taken down.
    pub owner: Option<Owner>,
    /// The lab's hosts, for people who want to look inside.
    pub hosts: Vec<HostRecord>,
}

/// A host of a registered lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostRecord {
    pub name: String,
    pub netns: String,
    pub cgroup: PathBuf,
    pub addresses: Addresses,
}

/// A process. The start time distinguishes it from a later one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pid: u32,
    /// In clock ticks since boot.
    started: u64,
}

impl Owner {
    /// The calling process.
    pub fn this_process() -> Result<Self> {
        let pid = process::id();
        let started = start_time(pid).context("/proc shows no start time for this process")?;
        Ok(Self { pid, started })
    }

    /// Whether the process still runs.
    pub fn is_alive(self) -> bool {
        start_time(self.pid) == Some(self.started)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)
    }
}

/// The registry, locked: labs are created and removed one at a time, so none is seen half-removed.
pub struct Registry {
    _lock: Flock<File>,
}

impl Registry {
    /// Waits for the lock.
    pub fn lock() -> Result<Self> {
        fs::create_dir_all(ROOT).with_context(|| format!("cannot create {ROOT}"))?;
        let path = Path::new(ROOT).join(LOCK);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let lock = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, e)| e)
            .with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(Self { _lock: lock })
    }

    /// Registers a lab of this process, under `id` or a name made up for it.
    pub fn claim(&self, id: Option<LabId>) -> Result<LabId> {
        let id = match id {
            Some(id) => id,
            None => self.unused_id()?,
        };
        match fs::create_dir(id.dir()) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                bail!("a lab {id} exists already: remove it with `lab down {id}`")
            }
            Err(e) => {
                return Err(e).with_context(|| format!("cannot create {}", id.dir().display()));
            }
        }
        save(
            &id,
            &Record {
                owner: Some(Owner::this_process()?),
                hosts: Vec::new(),
            },
        )?;
        Ok(id)
    }

    /// Removes everything with a lab's name. Continues after a failure, and reports the first one.
    pub fn remove(&self, id: &LabId) -> Result<()> {
        // Processes first: they may hold namespaces, and an agent would pin again.
        let mut results = vec![id.cgroup().and_then(|path| Cgroup::remove(&path))];
        results.push(limit::remove_all(id));
        for name in entries_with_prefix(Path::new(Netns::DIR), &id.netns_prefix()) {
            results.push(Netns::remove(&name));
        }
        let pins = Path::new(bpffs::MOUNT_POINT);
        for name in entries_with_prefix(pins, &id.pin_prefix()) {
            results.push(remove_dir(&pins.join(name)));
        }
        // WireGuard leaves its socket if it is killed.
        let sockets = Path::new(WIREGUARD_SOCKETS);
        for name in entries_with_prefix(sockets, &id.wireguard_prefix()) {
            let path = sockets.join(name);
            let removed = fs::remove_file(&path);
            results.push(removed.with_context(|| format!("cannot remove {}", path.display())));
        }
        // The directory last: while it exists, the lab is known and can be removed again.
        results
            .into_iter()
            .collect::<Result<()>>()
            .and_then(|()| remove_dir(&id.dir()))
            .with_context(|| format!("lab {id} is not wholly removed"))
    }

    /// Removes labs whose owner has died without removing them. Returns their names.
    pub fn remove_orphans(&self) -> Result<Vec<LabId>> {
        let mut removed = Vec::new();
        for id in all()? {
            // There is no readable record: its owner died while registering it.
            let orphan = load(&id).map_or(true, |r| r.owner.is_some_and(|o| !o.is_alive()));
            if orphan {
                self.remove(&id)?;
                removed.push(id);
            }
        }
        Ok(removed)
    }

    fn unused_id(&self) -> Result<LabId> {
        (0..)
            .map(|n: u32| format!("{}x{n}", process::id() % 1_000_000))
            .find(|name| !Path::new(ROOT).join(name).exists())
            .context("no lab name is free")?
            .parse()
    }
}

/// The names of all registered labs, in order.
pub fn all() -> Result<Vec<LabId>> {
    let mut ids: Vec<LabId> = entries_with_prefix(Path::new(ROOT), "")
        .iter()
        .filter_map(|n| n.parse().ok())
        .collect();
    ids.sort();
    Ok(ids)
}

/// Reads a lab's record.
pub fn load(id: &LabId) -> Result<Record> {
    let path = id.dir().join(RECORD);
    let text = fs::read_to_string(&path).with_context(|| format!("there is no lab {id}"))?;
    serde_json::from_str(&text).with_context(|| format!("cannot read {}", path.display()))
}

/// Replaces a lab's record.
pub fn save(id: &LabId, record: &Record) -> Result<()> {
    let path = id.dir().join(RECORD);
    let fresh = path.with_extension("new");
    fs::write(&fresh, serde_json::to_vec_pretty(record)?)
        .and_then(|()| fs::rename(&fresh, &path))
        .with_context(|| format!("cannot write {}", path.display()))
}

const ROOT: &str = "/run/node-lb-lab";
const LOCK: &str = ".lock";
const RECORD: &str = "lab.json";

/// Field 22 of `/proc/PID/stat`; `None` if there is no such process, or only a zombie.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name, in parentheses, may contain blanks, so fields are counted from behind it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.nth(18)?.parse().ok(),
    }
}

/// The names in a directory that start with `prefix`.
pub(crate) fn entries_with_prefix(dir: &Path, prefix: &str) -> Vec<String> {
    // A missing directory has no entries.
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect()
}

fn remove_dir(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_reach_outside_are_refused() {
        for name in ["", "a-b", "../x", "A", "0123456789a", "a b"] {
            assert!(name.parse::<LabId>().is_err(), "{name:?}");
        }
        assert_eq!(
            "demo1".parse::<LabId>().unwrap().netns("node-1"),
            "nlb-demo1-node-1"
        );
    }

    #[test]
    fn owner_is_told_from_a_later_process_with_the_same_id() {
        let owner = Owner::this_process().unwrap();
        assert!(owner.is_alive());
        assert!(
            !Owner {
                started: owner.started + 1,
                ..owner
            }
            .is_alive()
        );
        assert!(
            !Owner {
                pid: u32::MAX,
                ..owner
            }
            .is_alive()
        );
    }
}
