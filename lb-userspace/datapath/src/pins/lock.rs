//! The lock by which only one agent at a time uses the pins below a root.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use super::{PinError, create, failed};

/// How long a new agent waits for the previous one to end, on a busy node.
pub const HANDOVER: Duration = Duration::from_secs(10);
/// How often it checks meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// The right to use the pins below a root, until dropped. The kernel takes it back from a process
/// that ends in whatever way.
#[derive(Debug)]
pub struct Lock {
    root: PathBuf,
    directory: File,
}

impl Lock {
    /// Locks `root`, which is created if need be. `None` if an agent has it.
    ///
    /// # Errors
    ///
    /// If the directory cannot be created, opened or locked.
    pub fn try_take(root: &Path) -> Result<Option<Self>, PinError> {
        create(root)?;
        let directory = File::open(root).map_err(failed("open", root))?;
        match directory.try_lock() {
            Ok(()) => Ok(Some(Self {
                root: root.to_owned(),
                directory,
            })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(failed("lock", root)(source)),
        }
    }

    /// Locks `root`. Waits a little for an agent that is just ending.
    pub(super) fn take(root: &Path) -> Result<Self, PinError> {
        let deadline = Instant::now() + HANDOVER;
        loop {
            match Self::try_take(root)? {
                Some(lock) => return Ok(lock),
                None if Instant::now() < deadline => thread::sleep(LOOK),
                None => {
                    return Err(PinError::InUse {
                        root: root.to_owned(),
                    });
                }
            }
        }
    }

    /// Whether the directory at [`Self::root`] is still the one that is locked.
    pub(super) fn holds(&self) -> io::Result<bool> {
        let (locked, now) = (self.directory.metadata()?, fs::metadata(&self.root)?);
        Ok((locked.dev(), locked.ino()) == (now.dev(), now.ino()))
    }

    /// The directory that is locked.
    pub fn root(&self) -> &Path {
        &self.root
    }
}
