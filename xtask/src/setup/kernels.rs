//! Older kernels that tests boot: packages of Debian, unpacked beside the machine's own kernel and
//! never installed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use xtask::ebpf::Places;

use super::Installer;

/// The kernels that tests boot: the oldest one that node-lb supports, without tcx, and the first
/// long-term one with tcx. Debian 12 has both, Debian 13 the second.
pub const SERIES: [&str; 2] = ["6.1", "6.12"];

/// A kernel from an unpacked package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The release, as printed by `uname -r`.
    pub release: String,
    root: PathBuf,
}

impl Kernel {
    /// What to do if a kernel cannot be fetched.
    pub const REMEDY: &str = "Debian 12 has packages of all (linux-image-*-cloud-amd64): add its list to \
                              apt's sources and run `cargo xtask setup`, or unpack one with `dpkg-deb --extract` \
                              into ~/.cache/node-lb/kernels/SERIES, or leave it out with `--skip kernel:SERIES`";

    /// The kernel of `series`, if it has been fetched.
    pub fn find(places: &Places, series: &str) -> Option<Self> {
        let root = directory(places, series);
        // The directory exists only when all of the package is in it.
        let modules = fs::read_dir(root.join("lib/modules")).ok()?;
        let release = modules.flatten().next()?.file_name().into_string().ok()?;
        let kernel = Self { release, root };
        kernel.image().is_file().then_some(kernel)
    }

    /// The file that a boot loader loads.
    pub fn image(&self) -> PathBuf {
        self.root
            .join("boot")
            .join(format!("vmlinuz-{}", self.release))
    }

    /// The directory of its modules.
    pub fn modules(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.release)
    }
}

/// The series that have not been fetched.
pub fn missing(places: &Places) -> Vec<&'static str> {
    let lacks = |series: &&str| Kernel::find(places, series).is_none();
    SERIES.into_iter().filter(lacks).collect()
}

/// Downloads and unpacks the newest packages of these series. A series that is in no package list
/// is reported and left out: its tests fail, and all others can go on.
///
/// # Errors
///
/// If a package cannot be downloaded or unpacked.
pub(super) fn fetch(installer: &mut Installer, missing: &[&str]) -> Result<()> {
    for series in missing {
        let Some(package) = package(installer, series) else {
            println!(
                "  ATTENTION: no package list of this machine has a cloud kernel {series} \
                 (Debian's linux-image-{series}.*-{FLAVOR}); tests in it will fail"
            );
            continue;
        };
        println!("  {package}: an older kernel to run tests in; it is not installed");
        unpack(installer, &package, &directory(&installer.places, series))
            .with_context(|| format!("cannot get Linux {series} from package {package}"))?;
    }
    Ok(())
}

/// Debian's kernel for virtual machines: small, and with everything that a node needs.
const FLAVOR: &str = "cloud-amd64";

fn package(installer: &mut Installer, series: &str) -> Option<String> {
    let names = installer
        .apt
        .names(&format!("linux-image-{series}."), FLAVOR);
    names
        .into_iter()
        .filter_map(|name| Some((installer.apt.candidate(&name)?, name)))
        .max()
        .map(|(_, name)| name)
}

fn unpack(installer: &mut Installer, package: &str, directory: &Path) -> Result<()> {
    let fresh = directory.with_file_name("unfinished");
    // Left by a set-up that was interrupted.
    let _ = fs::remove_dir_all(&fresh);
    fs::create_dir_all(&fresh).with_context(|| format!("cannot make {}", fresh.display()))?;
    let file = installer.apt.download(package, &fresh)?;
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.arg("--extract").arg(&file).arg(&fresh);
    installer
        .steps
        .run(&format!("unpacking {package}"), &mut dpkg)?;
    fs::remove_file(&file)?;
    ensure!(
        fresh.join("lib/modules").is_dir(),
        "{} has no modules",
        file.display()
    );
    fs::rename(&fresh, directory).with_context(|| format!("cannot make {}", directory.display()))
}

fn directory(places: &Places, series: &str) -> PathBuf {
    places.cache.join("kernels").join(series)
}
