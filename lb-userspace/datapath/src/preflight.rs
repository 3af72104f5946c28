//! Checks whether this node can run the data plane. Reports everything that is missing at once, in
//! plain words.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use aya::util::KernelVersion;
use nix::{
    mount::{MsFlags, mount},
    sys::statfs::{BPF_FS_MAGIC, CGROUP2_SUPER_MAGIC, statfs},
};
use thiserror::Error;

/// The oldest kernel on which the programs are tested.
pub const OLDEST_KERNEL: (u8, u8) = (6, 1);

/// The usual mount point of the BPF file system.
pub const BPF_FS: &str = "/sys/fs/bpf";
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// Something that this node lacks.
#[derive(Debug, Error)]
pub enum Unmet {
    #[error(
        "missing privileges: {} (run as root, or in a container with `privileged: true` or these \
         capabilities added)",
        capabilities.join(", ")
    )]
    Capabilities { capabilities: Vec<&'static str> },
    #[error(
        "Linux {found} is too old: node-lb needs {}.{} or later",
        OLDEST_KERNEL.0, OLDEST_KERNEL.1
    )]
    Kernel { found: String },
    #[error(
        "the kernel has no BTF ({KERNEL_BTF} is missing): it has to be built with \
         CONFIG_DEBUG_INFO_BTF=y, as the kernels of all current distributions are"
    )]
    Btf,
    #[error(
        "{} is not on a BPF file system: mount one there (mount -t bpf bpf {BPF_FS}), or give another \
         --bpf-root",
        root.display()
    )]
    NoBpfFs { root: PathBuf },
    #[error(
        "cannot mount the BPF file system on {BPF_FS}: {source}; mount it on the host (mount -t bpf bpf \
         {BPF_FS}) and, in a container, mount the host's {BPF_FS} there"
    )]
    MountBpfFs { source: io::Error },
    #[error(
        "no cgroup2 hierarchy is mounted, which socket translation needs: mount one (mount -t cgroup2 \
         none /sys/fs/cgroup), or run with --socket-lb=off"
    )]
    Cgroup2,
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
}

/// Facts about a node that meets all requirements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Whether the BPF file system was not mounted before, and is now. In a container with mounts
    /// that do not reach the host, pins do not outlive it, so this deserves a warning.
    pub mounted_bpf_fs: bool,
    /// Where the cgroup2 hierarchy is mounted.
    pub cgroup2: Option<PathBuf>,
}

/// Checks everything that the data plane needs, and mounts the BPF file system if it is missing.
/// `sockets` says whether programs are to be attached to cgroups.
///
/// # Errors
///
/// Everything that is missing.
pub fn check(bpf_root: &Path, sockets: bool) -> Result<Ready, Vec<Unmet>> {
    let mut unmet = Vec::new();
    let mut note = |result: Result<(), Unmet>| unmet.extend(result.err());
    note(capabilities());
    note(kernel().map(drop));
    note(btf());

    let cgroup2 = cgroup2_root();
    note(match &cgroup2 {
        Ok(None) if sockets => Err(Unmet::Cgroup2),
        _ => Ok(()),
    });
    let mut mounted_bpf_fs = false;
    note(provide_bpf_fs(bpf_root).map(|mounted| mounted_bpf_fs = mounted));

    match cgroup2 {
        Err(error) => {
            unmet.push(error);
            Err(unmet)
        }
        Ok(cgroup2) if unmet.is_empty() => Ok(Ready {
            mounted_bpf_fs,
            cgroup2,
        }),
        Ok(_) => Err(unmet),
    }
}

/// Whether this process may load and attach programs.
///
/// # Errors
///
/// Names the missing capabilities.
pub fn capabilities() -> Result<(), Unmet> {
    let status = read("/proc/self/status")?;
    let capabilities = missing_capabilities(effective_capabilities(&status).unwrap_or(0));
    if capabilities.is_empty() {
        return Ok(());
    }
    Err(Unmet::Capabilities { capabilities })
}

/// The `CapEff` line of `/proc/self/status`, a mask.
fn effective_capabilities(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Whether this process may mount file systems.
pub fn may_mount() -> bool {
    let status = read("/proc/self/status").unwrap_or_default();
    effective_capabilities(&status).is_some_and(|effective| effective & SYS_ADMIN != 0)
}

const SYS_ADMIN: u64 = 1 << 21;

fn missing_capabilities(effective: u64) -> Vec<&'static str> {
    const NET_ADMIN: u64 = 1 << 12;
    const PERFMON: u64 = 1 << 38;
    const BPF: u64 = 1 << 39;
    // The kernel accepts CAP_SYS_ADMIN instead of the two that were split off from it.
    let has = |capability| effective & capability != 0;
    [
        ("CAP_BPF", has(BPF) || has(SYS_ADMIN)),
        ("CAP_NET_ADMIN", has(NET_ADMIN)),
        ("CAP_PERFMON", has(PERFMON) || has(SYS_ADMIN)),
    ]
    .into_iter()
    .filter_map(|(name, held)| (!held).then_some(name))
    .collect()
}

/// The kernel's release, as printed by `uname -r`.
///
/// # Errors
///
/// If it is older than [`OLDEST_KERNEL`].
pub fn kernel() -> Result<String, Unmet> {
    let (major, minor) = OLDEST_KERNEL;
    let found = read("/proc/sys/kernel/osrelease")?.trim().to_owned();
    match KernelVersion::current() {
        Ok(version) if version < KernelVersion::new(major, minor, 0) => {
            Err(Unmet::Kernel { found })
        }
        _ => Ok(found),
    }
}

/// # Errors
///
/// If the kernel does not describe its types.
pub fn btf() -> Result<(), Unmet> {
    match Path::new(KERNEL_BTF).exists() {
        true => Ok(()),
        false => Err(Unmet::Btf),
    }
}

/// Where the first cgroup2 hierarchy is mounted, if any is.
///
/// # Errors
///
/// If the mounts cannot be read.
pub fn cgroup2_root() -> Result<Option<PathBuf>, Unmet> {
    read("/proc/self/mounts").map(|mounts| cgroup2(&mounts))
}

/// Whether a directory is one of a cgroup2 hierarchy.
pub fn is_cgroup2(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

/// Where the first cgroup2 hierarchy in `/proc/self/mounts` is mounted.
fn cgroup2(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (path, kind) = (fields.nth(1)?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(path))
    })
}

/// Makes sure that `root` is, or will be, on a BPF file system. Returns whether that had to be
/// mounted.
///
/// # Errors
///
/// If it is on another file system, or the kernel refuses to mount.
pub fn provide_bpf_fs(root: &Path) -> Result<bool, Unmet> {
    if is_bpf_fs(root)? {
        return Ok(false);
    }
    if !root.starts_with(BPF_FS) || is_bpf_fs(Path::new(BPF_FS))? {
        return Err(Unmet::NoBpfFs {
            root: root.to_owned(),
        });
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("bpf"), BPF_FS, Some("bpf"), flags, Some("mode=0700")).map_err(|error| {
        Unmet::MountBpfFs {
            source: error.into(),
        }
    })?;
    Ok(true)
}

/// Whether a path is on a BPF file system, or would be if it were created.
///
/// # Errors
///
/// If this cannot be determined.
pub fn is_bpf_fs(path: &Path) -> Result<bool, Unmet> {
    // The nearest directory above that exists.
    let existing = path
        .ancestors()
        .find(|ancestor| ancestor.exists())
        .unwrap_or(Path::new("/"));
    match statfs(existing) {
        Ok(found) => Ok(found.filesystem_type() == BPF_FS_MAGIC),
        Err(error) => Err(Unmet::Unreadable {
            path: existing.to_owned(),
            source: error.into(),
        }),
    }
}

fn read(path: &str) -> Result<String, Unmet> {
    fs::read_to_string(path).map_err(|source| Unmet::Unreadable {
        path: path.into(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_status_file() {
        let status = "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\n";
        assert_eq!(effective_capabilities(status), Some(0x1ff_ffff_ffff));
        assert_eq!(effective_capabilities("CapEff:\tx\n"), None);
        assert_eq!(effective_capabilities(""), None);
    }

    #[test]
    fn missing_capabilities_are_named() {
        assert_eq!(
            missing_capabilities(0),
            ["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"]
        );
        assert_eq!(missing_capabilities(1 << 39 | 1 << 12), ["CAP_PERFMON"]);
        assert_eq!(missing_capabilities(1 << 21), ["CAP_NET_ADMIN"]);
        assert!(missing_capabilities(u64::MAX).is_empty());
    }

    #[test]
    fn cgroup2_is_found_beside_version_1() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        assert_eq!(
            cgroup2(mounts),
            Some(PathBuf::from("/sys/fs/cgroup/unified"))
        );
        assert_eq!(cgroup2("proc /proc proc rw 0 0\n\n"), None);
    }

    #[test]
    fn unmet_needs_say_what_to_do() {
        let unmet = Unmet::Kernel {
            found: "5.15.0".to_owned(),
        };
        assert_eq!(
            unmet.to_string(),
            "Linux 5.15.0 is too old: node-lb needs 6.1 or later"
        );
        let unmet = Unmet::NoBpfFs {
            root: "/tmp/x".into(),
        };
        assert!(unmet.to_string().contains("mount -t bpf bpf /sys/fs/bpf"));
    }
}
