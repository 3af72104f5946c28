//! A `--bpf-root` for one test.

use std::{
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use lb_datapath::{Pins, cleanup, preflight};

use crate::lab::{bpffs::MOUNT_POINT, registry::entries_with_prefix};

/// The beginning of their names; the process id and a number follow.
const PREFIX: &str = "node-lb-test-";

/// A directory for pins, which is removed with its contents.
#[derive(Debug)]
pub struct PinRoot(PathBuf);

impl PinRoot {
    /// A new, empty directory. Those of tests that were killed are removed first.
    ///
    /// # Panics
    /// If this machine cannot run the data plane.
    #[expect(
        clippy::new_without_default,
        reason = "it makes something on the machine"
    )]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        left_behind().for_each(|path| remove(&path));
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = format!("{MOUNT_POINT}/{PREFIX}{}-{number}", process::id());
        preflight::check(Path::new(&path), true).expect("this machine can run the data plane");
        Self(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The pins there of a layout version.
    ///
    /// # Panics
    /// If they cannot be opened.
    pub fn pins(&self, version: u32) -> Pins {
        Pins::open(&self.0, version).expect("nobody else uses this place")
    }
}

impl Drop for PinRoot {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

fn remove(root: &Path) {
    if let Err(error) = cleanup(root) {
        eprintln!("{error}");
    }
}

/// The directories of processes that have ended.
fn left_behind() -> impl Iterator<Item = PathBuf> {
    let pins = Path::new(MOUNT_POINT);
    let names = entries_with_prefix(pins, PREFIX).into_iter();
    let has_owner = |name: &String| {
        let owner = name[PREFIX.len()..].split('-').next();
        owner.is_some_and(|process| Path::new("/proc").join(process).exists())
    };
    names
        .filter(move |name| !has_owner(name))
        .map(|name| pins.join(name))
}
