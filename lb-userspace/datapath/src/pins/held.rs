//! Pins that others remove while the agent runs. The agent holds its links and maps open, so that
//! nothing ends with a pin. [`crate::restore`] pins them again, so that nothing ends with the
//! agent.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{LATER_LINKS, LINKS, LinkPin, Lock, MAPS, PinError, Pins, create, failed};
use crate::{bpf::Link, preflight::is_bpf_fs};

/// What a process holds open besides its pins.
#[derive(Debug, Default)]
pub(super) struct Held {
    links: Mutex<BTreeMap<LinkPin, Arc<Link>>>,
    /// The lock of a root that was made again.
    lock: Mutex<Option<Lock>>,
}

impl Pins {
    /// A link that this process holds or finds pinned; `None` if there is none.
    ///
    /// # Errors
    ///
    /// If it is pinned and cannot be opened.
    pub(crate) fn open_link(&self, pin: LinkPin) -> io::Result<Option<Arc<Link>>> {
        let mut links = self.held.links();
        if let Some(link) = links.get(&pin) {
            return Ok(Some(link.clone()));
        }
        match Link::open(&self.link(pin)) {
            Ok(link) => {
                let link = Arc::new(link);
                links.insert(pin, link.clone());
                Ok(Some(link))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Pins a link and holds it. If there is no place for pins at the moment, it is only held:
    /// [`Self::restore`] pins it once there is one.
    ///
    /// # Errors
    ///
    /// If it cannot be pinned for another reason.
    pub(crate) fn keep_link(&self, pin: LinkPin, link: Link) -> io::Result<()> {
        match link.pin(&self.link(pin)) {
            Err(error) if !no_place(&error) => return Err(error),
            _ => {}
        }
        self.held.links().insert(pin, Arc::new(link));
        Ok(())
    }

    /// Detaches a link's program and removes the pin. Returns whether there was a link.
    ///
    /// # Errors
    ///
    /// If the pin exists and cannot be removed, or the program cannot be detached.
    pub fn remove_link(&self, pin: LinkPin) -> Result<bool, PinError> {
        let path = self.link(pin);
        let Some(link) = self.held.links().remove(&pin) else {
            return super::remove_link(&path);
        };
        link.detach().map_err(failed("detach", &path))?;
        super::remove(&path)?;
        Ok(true)
    }

    /// The links that this process holds and that have lost their pins, and where these belong.
    pub(crate) fn links_without_pin(&self) -> Vec<(PathBuf, Arc<Link>)> {
        let links = self.held.links();
        let links = links
            .iter()
            .map(|(pin, link)| (self.link(*pin), link.clone()));
        links.filter(|(path, _)| is_missing(path)).collect()
    }

    /// Makes the directories again, if they are gone, and locks them.
    ///
    /// # Errors
    ///
    /// If there is no BPF file system any more, another agent has taken the place, or the kernel
    /// refuses.
    pub(crate) fn provide_place(&self) -> Result<(), PinError> {
        let root = self.root();
        // Nothing can be pinned either where that cannot be told.
        if !is_bpf_fs(root).unwrap_or(false) {
            return Err(PinError::NoBpfFs {
                root: root.to_owned(),
            });
        }
        create(&self.directory.join(MAPS))?;
        create(&self.directory.join(LINKS))?;
        create(&self.directory.join(LATER_LINKS))?;
        let mut again = self.held.lock();
        let lock = again.as_ref().unwrap_or(&self.lock);
        if !lock.holds().map_err(failed("look at", root))? {
            let lock = Lock::try_take(root)?;
            *again = Some(lock.ok_or_else(|| PinError::InUse {
                root: root.to_owned(),
            })?);
        }
        Ok(())
    }
}

// Whole after each change.
impl Held {
    fn lock(&self) -> MutexGuard<'_, Option<Lock>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<LinkPin, Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether nothing can be pinned because the directory is gone, or the file system.
fn no_place(error: &io::Error) -> bool {
    use io::ErrorKind::{NotFound, PermissionDenied};
    // The kernel answers EPERM where there is another file system.
    matches!(error.kind(), NotFound | PermissionDenied)
}

/// Whether there is nothing at a path. What cannot be told may be there.
pub(crate) fn is_missing(path: &Path) -> bool {
    path.try_exists().is_ok_and(|exists| !exists)
}
