//! Kernels that tests boot: packages of Debian, unpacked beside the machine's own kernel and never
//! installed.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use xtask::ebpf::Places;

use super::apt::Apt;
use crate::{architecture::Architecture, step::Steps};

/// A series of kernels for an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series {
    pub architecture: Architecture,
    pub version: &'static str,
}

/// The kernels that tests boot: the oldest one that node-lb supports, without tcx, and the first
/// long-term one with tcx. Debian 12 has both, Debian 13 the second.
pub const SERIES: [Series; 4] = [
    Series::amd64("6.1"),
    Series::amd64("6.12"),
    Series::arm64("6.1"),
    Series::arm64("6.12"),
];

impl Series {
    pub const fn amd64(version: &'static str) -> Self {
        Self {
            architecture: Architecture::Amd64,
            version,
        }
    }

    pub const fn arm64(version: &'static str) -> Self {
        Self {
            architecture: Architecture::Arm64,
            version,
        }
    }

    /// What to do if its kernel cannot be fetched. `part` is what to skip.
    pub fn remedy(self, part: impl fmt::Display) -> String {
        let flavor = self.flavor();
        let directory = self.file_name();
        format!(
            "Debian 12 has packages of all (linux-image-*-{flavor}): add its list to apt's sources and run \
             `cargo xtask setup`, or unpack one with `dpkg-deb --extract` into \
             ~/.cache/node-lb/kernels/{directory}, or leave it out with `--skip {part}`"
        )
    }

    /// Debian's kernel for virtual machines: small, and with everything that a node needs.
    fn flavor(self) -> String {
        format!("cloud-{}", self.architecture.debian())
    }

    fn directory(self, places: &Places) -> PathBuf {
        places.cache.join("kernels").join(self.file_name())
    }

    /// Its name in paths.
    pub fn file_name(self) -> String {
        match self.architecture {
            Architecture::Amd64 => self.version.to_owned(),
            other => format!("{}-{}", self.version, other.debian()),
        }
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.version)?;
        match self.architecture {
            Architecture::Amd64 => Ok(()),
            other => write!(f, " {}", other.debian()),
        }
    }
}

/// A kernel from an unpacked package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    pub architecture: Architecture,
    /// The release, as printed by `uname -r`.
    pub release: String,
    root: PathBuf,
}

impl Kernel {
    /// The kernel of `series`, if it has been fetched.
    pub fn find(places: &Places, series: Series) -> Option<Self> {
        let root = series.directory(places);
        // The directory exists only when all of the package is in it.
        let modules = fs::read_dir(root.join("lib/modules")).ok()?;
        let release = modules.flatten().next()?.file_name().into_string().ok()?;
        let kernel = Self {
            architecture: series.architecture,
            release,
            root,
        };
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

/// The series of an architecture that have not been fetched.
pub fn missing(places: &Places, architecture: Architecture) -> Vec<Series> {
    let lacks = |series: &Series| Kernel::find(places, *series).is_none();
    of(architecture).filter(lacks).collect()
}

/// The series of an architecture.
pub fn of(architecture: Architecture) -> impl Iterator<Item = Series> {
    SERIES
        .into_iter()
        .filter(move |series| series.architecture == architecture)
}

/// Downloads and unpacks the newest packages of these series, by an `apt` for their architecture. A
/// series that is in no package list is reported and left out: its tests fail, and all others can
/// go on.
///
/// # Errors
///
/// If a package cannot be downloaded or unpacked.
pub(super) fn fetch(
    steps: &Steps,
    apt: &mut Apt,
    places: &Places,
    missing: &[Series],
) -> Result<()> {
    for series in missing {
        let Some(package) = package(apt, *series) else {
            println!(
                "  ATTENTION: no package list of this machine has a cloud kernel {series} \
                 (Debian's linux-image-{}.*-{}); tests in it will fail",
                series.version,
                series.flavor()
            );
            continue;
        };
        println!("  {package}: a kernel to run tests in; it is not installed");
        unpack(steps, apt, &package, &series.directory(places))
            .with_context(|| format!("cannot get Linux {series} from package {package}"))?;
    }
    Ok(())
}

fn package(apt: &mut Apt, series: Series) -> Option<String> {
    let names = apt.names(
        &format!("linux-image-{}.", series.version),
        &series.flavor(),
    );
    names
        .into_iter()
        .filter_map(|name| Some((apt.candidate(&name)?, name)))
        .max()
        .map(|(_, name)| name)
}

fn unpack(steps: &Steps, apt: &mut Apt, package: &str, directory: &Path) -> Result<()> {
    let fresh = directory.with_file_name("unfinished");
    // Left by a set-up that was interrupted.
    let _ = fs::remove_dir_all(&fresh);
    fs::create_dir_all(&fresh).with_context(|| format!("cannot make {}", fresh.display()))?;
    let file = apt.download(package, &fresh)?;
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.arg("--extract").arg(&file).arg(&fresh);
    steps.run(&format!("unpacking {package}"), &mut dpkg)?;
    fs::remove_file(&file)?;
    ensure!(
        fresh.join("lib/modules").is_dir(),
        "{} has no modules",
        file.display()
    );
    fs::rename(&fresh, directory).with_context(|| format!("cannot make {}", directory.display()))
}
