//! Settings of the kernel's own connection tracking. Flows to Services are in node-lb's tables. But
//! what pods send elsewhere is usually masqueraded by a CNI with the kernel's connection tracking.
//! kube-proxy sets the size and timeouts of that table (its `conntrack.go`), so node-lb does it in
//! its place: otherwise a node would lose connections that it used to keep.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use crate::config::{ConntrackConfig, FlowTimeouts};

/// Where the table's settings are, `net.netfilter.*`. A container that may not write to its own
/// `/proc/sys` has the host's at the first path.
const DIRECTORIES: [&str; 2] = ["/host/proc/sys/net/netfilter", "/proc/sys/net/netfilter"];

/// The table's size: a setting that exists wherever the table does.
const MAX: &str = "max";

/// How often to look for the settings. They exist only once the kernel has the table, possibly in a
/// module that a CNI loads later.
const RETRY: Duration = Duration::from_secs(60);

/// Connections per hash bucket, as in kube-proxy.
const CONNECTIONS_PER_BUCKET: u64 = 4;

/// Applies the configuration once, as soon as the kernel has the table.
///
/// The data plane does not depend on it, so failures are only logged.
pub async fn set_up(config: ConntrackConfig) {
    loop {
        if let Some(directory) = directory() {
            return apply(&settings(config, cores()), &directory);
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn apply(settings: &[Setting], directory: &Path) {
    for setting in settings {
        match setting.apply(directory) {
            Ok(None) => {}
            Ok(Some(before)) => tracing::info!("set {setting}, was {before}"),
            Err(error) => tracing::warn!(
                "cannot set {setting} in {}: {error}; in a container, mount the host's \
                 /proc/sys/net/netfilter at /host/proc/sys/net/netfilter; to leave it as it is, see \
                 conntrack-* in the configuration reference",
                directory.display()
            ),
        }
    }
}

/// The first directory that has settings of the table.
fn directory() -> Option<PathBuf> {
    let mut directories = DIRECTORIES.iter().map(PathBuf::from);
    directories.find(|directory| path(directory, MAX).exists())
}

/// The path of a setting.
fn path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("nf_conntrack_{name}"))
}

/// The number of processors that counts for the table's size.
fn cores() -> u64 {
    thread::available_parallelism().map_or(1, |cores| cores.get() as u64)
}

/// One of the kernel's settings, and its wanted value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    /// Its name after `net.netfilter.nf_conntrack_`.
    name: &'static str,
    wanted: Wanted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Exactly(u64),
    /// A larger value stays: someone has set it on purpose.
    AtLeast(u64),
}

impl Wanted {
    /// What to write if the present value is not as wanted.
    fn value(self) -> u64 {
        let (Self::Exactly(value) | Self::AtLeast(value)) = self;
        value
    }

    fn is_met_by(self, present: u64) -> bool {
        match self {
            Self::Exactly(value) => present == value,
            Self::AtLeast(value) => present >= value,
        }
    }
}

/// The settings that the configuration means on a node with so many cores.
fn settings(config: ConntrackConfig, cores: u64) -> Vec<Setting> {
    use Wanted::{AtLeast, Exactly};

    let mut wanted = Vec::new();
    if config.max_per_core > 0 {
        let max = (u64::from(config.max_per_core) * cores).max(config.min.into());
        wanted.push((MAX, AtLeast(max)));
        wanted.push(("buckets", AtLeast(max / CONNECTIONS_PER_BUCKET)));
    }
    let timeouts = config.timeouts;
    // The defaults for UDP are the kernel's own. If a node has other values, it keeps them, as with
    // kube-proxy.
    let defaults = FlowTimeouts::default();
    for (name, timeout, default) in [
        ("tcp_timeout_established", timeouts.tcp_established, None),
        ("tcp_timeout_close_wait", timeouts.tcp_close_wait, None),
        ("udp_timeout", timeouts.udp, Some(defaults.udp)),
        (
            "udp_timeout_stream",
            timeouts.udp_stream,
            Some(defaults.udp_stream),
        ),
    ] {
        if !timeout.is_zero() && Some(timeout) != default {
            wanted.push((name, Exactly(timeout.as_secs())));
        }
    }
    if config.tcp_be_liberal {
        wanted.push(("tcp_be_liberal", Exactly(1)));
    }
    wanted
        .into_iter()
        .map(|(name, wanted)| Setting { name, wanted })
        .collect()
}

impl Setting {
    /// Writes the value unless it is already as wanted. Returns the previous value if it changed.
    fn apply(self, directory: &Path) -> io::Result<Option<u64>> {
        let path = path(directory, self.name);
        let text = fs::read_to_string(&path)?;
        let present = text.trim().parse().map_err(io::Error::other)?;
        if self.wanted.is_met_by(present) {
            return Ok(None);
        }
        fs::write(path, self.wanted.value().to_string())?;
        Ok(Some(present))
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, value) = (self.name, self.wanted.value());
        write!(f, "net.netfilter.nf_conntrack_{name} to {value}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's settings after a write, if it had `present` before.
    fn written(settings: &[Setting], present: &[(&str, &str)]) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        for (name, value) in present {
            fs::write(path(directory.path(), name), value).unwrap();
        }
        apply(settings, directory.path());
        let read = |name| fs::read_to_string(path(directory.path(), name)).unwrap();
        present
            .iter()
            .map(|(name, _)| read(name).trim().to_owned())
            .collect()
    }

    const KERNEL: [(&str, &str); 6] = [
        (MAX, "65536\n"),
        ("buckets", "65536\n"),
        ("tcp_timeout_established", "432000\n"),
        ("tcp_timeout_close_wait", "60\n"),
        ("udp_timeout", "30\n"),
        ("tcp_be_liberal", "0\n"),
    ];

    #[test]
    fn the_defaults_are_those_of_kube_proxy() {
        let written = written(&settings(ConntrackConfig::default(), 8), &KERNEL);
        let expected = ["262144", "65536", "86400", "3600", "30", "0"];
        assert_eq!(written, expected);
    }

    #[test]
    fn a_small_node_has_room_for_the_minimum() {
        let written = written(&settings(ConntrackConfig::default(), 1), &KERNEL);
        assert_eq!(written[0], "131072");
    }

    #[test]
    fn a_larger_table_is_left_alone() {
        let mut kernel = KERNEL;
        kernel[0].1 = "1048576";
        let written = written(&settings(ConntrackConfig::default(), 2), &kernel);
        assert_eq!(written[0], "1048576");
    }

    #[test]
    fn what_is_configured_is_set_and_nothing_else() {
        let config = ConntrackConfig {
            max_per_core: 0,
            tcp_be_liberal: true,
            timeouts: FlowTimeouts {
                tcp_established: Duration::ZERO,
                udp: Duration::from_secs(10),
                ..FlowTimeouts::default()
            },
            ..ConntrackConfig::default()
        };
        let written = written(&settings(config, 64), &KERNEL);
        let expected = ["65536", "65536", "432000", "3600", "10", "1"];
        assert_eq!(written, expected);
    }

    #[test]
    fn what_the_kernel_does_not_have_stops_nothing() {
        let settings = settings(ConntrackConfig::default(), 2);
        assert_eq!(written(&settings, &KERNEL[3..4]), ["3600"]);
    }
}
