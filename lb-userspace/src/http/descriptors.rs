//! File descriptors: how many the process may have.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Connections of all servers together. One that is idle costs a few kilobytes.
const MOST_CONNECTIONS: u64 = 2048;

/// Raises the limit of the process's open files to what it may be, as Go's runtime does for
/// kube-proxy: the usual soft limit, 1024, is for programs that use `select`.
pub fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}

/// As many as leave half of the descriptors to everything else.
pub(super) fn most_connections() -> usize {
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(MOST_CONNECTIONS, |(soft, _)| soft);
    usize::try_from(MOST_CONNECTIONS.min(soft / 2)).unwrap_or(usize::MAX)
}
