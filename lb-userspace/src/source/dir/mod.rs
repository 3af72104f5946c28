//! A directory of Kubernetes manifests as a source: every `.yaml`, `.yml` and `.json` file directly
//! in it, read once by [`load`] or followed by [`DirSource`].
//!
//! Rules, so that bad input never loses what is in force:
//! - If a file cannot be read or parsed, its last good objects stay. An invalid object in a good
//!   file stays in its last good version.
//! - If two files define an object, the file with the name that sorts first is used (in one file,
//!   the first document). When that definition is removed, the other is used.
//! - Hidden files and editors' leftovers are ignored. Symbolic links are followed, so that mounted
//!   ConfigMaps work.
//! - If the directory disappears, everything stays. It is read again when it is back.

mod directory;
mod document;
mod ledger;
mod manifest;
mod watch;

use std::path::Path;

use directory::Directory;
use lb_objects::{Object, Problem};

pub use self::{directory::is_manifest, watch::DirSource};

/// Reads a directory once. Objects are sorted by reference, problems by file.
///
/// # Errors
/// If `path` is not a directory that can be listed. Anything wrong inside it is a [`Problem`].
pub fn load(path: impl AsRef<Path>) -> anyhow::Result<(Vec<Object>, Vec<Problem>)> {
    let mut directory = Directory::open(path.as_ref())?;
    directory.read_all()?;
    Ok((directory.objects(), directory.problems()))
}
