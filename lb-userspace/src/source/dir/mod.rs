//! A directory of Kubernetes manifests as a source: every `.yaml`, `.yml` and `.json` file directly
//! in it, read once by [`load`] or followed by [`DirSource`].
//!
//! Rules, all for one end, that bad input never loses what is in force:
//! - A file that cannot be read or parsed keeps its last good objects; an invalid object in a good
//!   file keeps its last good version.
//! - An object found in two files is taken from the one whose name sorts first (in one file: from
//!   the first document). When that goes, the other takes over.
//! - Hidden files and editors' leftovers are not looked at; symbolic links are followed, so that
//!   mounted ConfigMaps work.
//! - A directory that goes away keeps everything, and is read again when it is back.

mod directory;
mod document;
mod ledger;
mod manifest;
mod watch;

use std::path::Path;

use directory::Directory;
use lb_objects::{Object, Problem};

pub use watch::DirSource;

/// Reads a directory once. Objects come in the order of their references, problems in that of
/// their files.
///
/// # Errors
/// If `path` is not a directory that can be listed. Anything wrong inside it is a [`Problem`].
pub fn load(path: impl AsRef<Path>) -> anyhow::Result<(Vec<Object>, Vec<Problem>)> {
    let mut directory = Directory::open(path.as_ref())?;
    directory.read_all()?;
    Ok((directory.objects(), directory.problems()))
}
