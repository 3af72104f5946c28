//! Where maps and links are kept while no agent runs: `ROOT/v<VERSION>/{maps,links,later-links}` on a
//! BPF file system.
//!
//! Names contain no dots, which that file system does not allow.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::{bpf::Link, clsact, hooks::SocketHook, preflight};

mod held;
mod lock;
mod name;

pub(crate) use held::is_missing;
pub use lock::{HANDOVER, Lock};
pub use name::{LinkPin, UnknownPin};

/// Default of `--bpf-root`.
pub const DEFAULT_ROOT: &str = "/sys/fs/bpf/node-lb";

const MAPS: &str = "maps";
const LINKS: &str = "links";
/// Links of hooks that earlier versions do not know, which refuse to start beside strange pins in `links`.
const LATER_LINKS: &str = "later-links";
/// How the names of directories begin in which programs are only tried out.
const TRIAL: &str = "trial-";

/// The pins of one agent. They are locked against other agents as long as this lives.
#[derive(Debug)]
pub struct Pins {
    lock: Lock,
    directory: PathBuf,
    held: held::Held,
}

/// Where maps are pinned: enough to look at them, which needs no lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapPins(PathBuf);

/// Why pins cannot be used or removed.
#[derive(Debug, Error)]
pub enum PinError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(
        "{} is in use by another node-lb: stop that one first, or give this one another --bpf-root",
        root.display()
    )]
    InUse { root: PathBuf },
    #[error(
        "{} belongs to a node-lb with another map layout (this one has version {version}): stop that \
         agent and run `node-lb cleanup` (which ends connections through it), or give another \
         --bpf-root",
        directory.display()
    )]
    OtherVersion { directory: PathBuf, version: u32 },
    #[error(
        "{} is not on a BPF file system any more: programs and maps end with this process; mount one \
         there again (mount -t bpf bpf {})",
        root.display(),
        preflight::BPF_FS
    )]
    NoBpfFs { root: PathBuf },
    #[error("cannot remove TC filters: {0}")]
    Filters(io::Error),
    #[error(
        "{} was not made by node-lb: remove it, or give another --bpf-root",
        path.display()
    )]
    Foreign { path: PathBuf },
}

/// What [`cleanup`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub maps: usize,
    pub links: usize,
    /// TC filters, on kernels without TCX.
    pub filters: usize,
}

impl Pins {
    /// Locks `root`, and creates the missing directories under it. Waits a little for an agent that
    /// is just ending.
    ///
    /// # Errors
    ///
    /// If another agent uses `root`, or as [`Self::open_locked`].
    pub fn open(root: &Path, version: u32) -> Result<Self, PinError> {
        Self::open_locked(Lock::take(root)?, version)
    }

    /// Creates the missing directories under the root that is locked.
    ///
    /// # Errors
    ///
    /// If there is something under it of another version than `version`: its programs might still
    /// be attached, and would see the same packets.
    pub fn open_locked(lock: Lock, version: u32) -> Result<Self, PinError> {
        let root = lock.root();
        let ours = format!("v{version}");
        for name in names(root)? {
            let path = root.join(&name);
            match version_of(&name) {
                None if name.starts_with(TRIAL) => {}
                None => return Err(PinError::Foreign { path }),
                Some(_) if name == ours => {}
                Some(_) => {
                    return Err(PinError::OtherVersion {
                        directory: path,
                        version,
                    });
                }
            }
        }

        let directory = root.join(ours);
        create(&directory.join(MAPS))?;
        create(&directory.join(LINKS))?;
        create(&directory.join(LATER_LINKS))?;
        Ok(Self {
            lock,
            directory,
            held: held::Held::default(),
        })
    }

    /// The value of `--bpf-root`.
    pub fn root(&self) -> &Path {
        self.lock.root()
    }

    /// Where the maps are pinned.
    pub fn of_maps(&self) -> MapPins {
        MapPins(self.directory.join(MAPS))
    }

    /// The path at which a map is pinned, whether it exists or not.
    pub fn map(&self, name: &str) -> PathBuf {
        self.of_maps().path(name)
    }

    /// Names of the pinned maps.
    ///
    /// # Errors
    ///
    /// If the directory cannot be read.
    pub fn maps(&self) -> Result<BTreeSet<String>, PinError> {
        self.of_maps().names()
    }

    /// Renames a map's pin from `from` to `to`, and replaces what is pinned there. It is no error
    /// if there is no pin `from`.
    ///
    /// # Errors
    ///
    /// If the pin exists and cannot be renamed.
    pub fn rename_map(&self, from: &str, to: &str) -> Result<(), PinError> {
        let path = self.map(from);
        match fs::rename(&path, self.map(to)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("rename", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Removes a map's pin. The map is freed once no program uses it. Returns whether there was a
    /// pin.
    ///
    /// # Errors
    ///
    /// If the pin exists and cannot be removed.
    pub fn remove_map(&self, name: &str) -> Result<bool, PinError> {
        remove(&self.map(name))
    }

    /// The path at which a link is pinned, whether it exists or not.
    pub fn link(&self, pin: LinkPin) -> PathBuf {
        let directory = match pin {
            LinkPin::Socket(SocketHook::Release) => LATER_LINKS,
            _ => LINKS,
        };
        self.directory.join(directory).join(pin.to_string())
    }

    /// The pinned links.
    ///
    /// # Errors
    ///
    /// If the directory cannot be read, or contains anything else.
    pub fn links(&self) -> Result<Vec<LinkPin>, PinError> {
        let mut pins = Vec::new();
        for directory in [LINKS, LATER_LINKS].map(|name| self.directory.join(name)) {
            for name in names(&directory)? {
                let pin = name.parse().map_err(|UnknownPin| PinError::Foreign {
                    path: directory.join(name),
                })?;
                pins.push(pin);
            }
        }
        Ok(pins)
    }
}

impl MapPins {
    /// Those below `root` of agents with this version of the maps' layout.
    pub fn below(root: &Path, version: u32) -> Self {
        Self(root.join(format!("v{version}")).join(MAPS))
    }

    /// The path at which a map is pinned, whether it exists or not.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Names of the pinned maps.
    ///
    /// # Errors
    ///
    /// If the directory cannot be read.
    pub fn names(&self) -> Result<BTreeSet<String>, PinError> {
        names(&self.0)
    }
}

/// Detaches every program that an agent with this `root` attached, in this network namespace or by
/// a link, and removes the maps of all versions. It is no error if something does not exist.
///
/// # Errors
///
/// If an agent is running, or something remains: it was not made by node-lb, or cannot be removed.
pub fn cleanup(root: &Path) -> Result<Removed, PinError> {
    let lock = match root.try_exists().map_err(failed("look at", root))? {
        true => Some(Lock::take(root)?),
        false => None,
    };
    let mut removed = Removed {
        filters: clsact::remove_except(|_| false).map_err(PinError::Filters)?,
        ..Removed::default()
    };
    if lock.is_none() {
        return Ok(removed);
    }

    let mut foreign = None;
    for name in names(root)? {
        let directory = root.join(&name);
        if name.starts_with(TRIAL) {
            fs::remove_dir_all(&directory).map_err(failed("remove", &directory))?;
            continue;
        }
        if version_of(&name).is_none() {
            foreign = Some(directory);
            continue;
        }
        // Programs first, because no program may run on without its maps' names.
        removed.links += remove_all(&directory.join(LINKS), remove_link)?;
        removed.links += remove_all(&directory.join(LATER_LINKS), remove_link)?;
        removed.maps += remove_all(&directory.join(MAPS), remove)?;
        remove_directory(&directory)?;
    }
    match foreign {
        Some(path) => Err(PinError::Foreign { path }),
        None => match fs::remove_dir(root) {
            Err(error) if is_mount_point(&error) => Ok(removed),
            done => done.map(|()| removed).map_err(failed("remove", root)),
        },
    }
}

/// Whether a directory cannot be removed because it is what a container has of the node's file
/// system. It stays, empty. The kernel looks first at the mount above, which may be read-only.
fn is_mount_point(error: &io::Error) -> bool {
    use io::ErrorKind::{ReadOnlyFilesystem, ResourceBusy};
    matches!(error.kind(), ResourceBusy | ReadOnlyFilesystem)
}

/// The root of pins for a process that only tries programs out, below that of an agent, which does
/// not mind it.
pub fn trial_root(root: &Path) -> PathBuf {
    root.join(format!("{TRIAL}{}", std::process::id()))
}

/// The version in a directory's name, if it is one of ours.
fn version_of(name: &str) -> Option<u32> {
    name.strip_prefix('v')?.parse().ok()
}

fn create(directory: &Path) -> Result<(), PinError> {
    fs::create_dir_all(directory).map_err(failed("create", directory))
}

/// The names in a directory, sorted, so that reports do not depend on the file system's order.
fn names(directory: &Path) -> Result<BTreeSet<String>, PinError> {
    fs::read_dir(directory)
        .and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect()
        })
        .map_err(failed("read", directory))
}

/// Removes the files of a directory, and the directory. Returns how many files there were.
fn remove_all(
    directory: &Path,
    remove: impl Fn(&Path) -> Result<bool, PinError>,
) -> Result<usize, PinError> {
    if !directory
        .try_exists()
        .map_err(failed("look at", directory))?
    {
        return Ok(0);
    }
    let names = names(directory)?;
    for name in &names {
        remove(&directory.join(name))?;
    }
    remove_directory(directory)?;
    Ok(names.len())
}

/// Detaches the program at once. If only the pin were removed, the kernel would choose the time.
fn remove_link(path: &Path) -> Result<bool, PinError> {
    match Link::open(path).and_then(|link| link.detach()) {
        Ok(()) => remove(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(failed("detach", path)(source)),
    }
}

fn remove(path: &Path) -> Result<bool, PinError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(failed("remove", path)(source)),
    }
}

fn remove_directory(directory: &Path) -> Result<(), PinError> {
    fs::remove_dir(directory).map_err(failed("remove", directory))
}

pub(crate) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PinError {
    let path = path.to_owned();
    move |source| PinError::Io {
        action,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_directories_are_told_from_others() {
        assert_eq!(version_of("v1"), Some(1));
        assert_eq!(version_of("v"), None);
        assert_eq!(version_of("v1-old"), None);
        assert_eq!(version_of("maps"), None);
    }
}
