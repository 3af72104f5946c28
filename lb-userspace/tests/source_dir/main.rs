//! Directories of manifests as a source, on a real file system.

mod load;
mod support;
mod watch;
