//! Programs of another architecture, for the file systems of guests: packages of Debian, unpacked
//! and never installed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use xtask::ebpf::Places;

use super::apt::Apt;
use crate::{architecture::Architecture, cargo::run};

/// What contains the commands of a guest. The packages that these need come with them.
const PACKAGES: [&str; 11] = [
    "bpftool",
    "coreutils",
    "dash",
    "ethtool",
    "iproute2",
    "iputils-ping",
    "kmod",
    "mount",
    "nftables",
    "procps",
    "util-linux",
];

/// Names the packages; written when all of them are there.
const STAMP: &str = "packages";

/// How many links may lead to a file.
const LINKS: usize = 8;

/// The unpacked packages.
#[derive(Clone, Debug)]
pub struct Userland {
    architecture: Architecture,
    root: PathBuf,
}

impl Userland {
    /// Those of an architecture, if they have been fetched.
    pub fn find(places: &Places, architecture: Architecture) -> Option<Self> {
        let root = directory(places, architecture);
        let stamp = fs::read_to_string(root.join(STAMP)).ok()?;
        (stamp == PACKAGES.join("\n")).then_some(Self { architecture, root })
    }

    /// The file of a command.
    ///
    /// # Errors
    ///
    /// If no package contains it.
    pub fn command(&self, name: &str) -> Result<PathBuf> {
        let directories = ["usr/sbin", "usr/bin", "sbin", "bin"];
        let mut files = directories
            .iter()
            .filter_map(|directory| self.file(&Path::new(directory).join(name)));
        files
            .next()
            .with_context(|| format!("no package in {} has {name}", self.root.display()))
    }

    /// The libraries that a program is linked with, and the loader that loads them: where they are
    /// here, and in the guest.
    ///
    /// # Errors
    ///
    /// If one is missing.
    pub fn libraries(&self, program: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
        let places = ["lib", "usr/lib"].map(PathBuf::from);
        let places: Vec<_> = places
            .iter()
            .map(|place| place.join(self.architecture.libraries()))
            .chain(places.clone())
            .collect();
        let mut known = BTreeSet::new();
        let mut found = Vec::new();
        let mut unread = vec![program.to_owned()];
        while let Some(file) = unread.pop() {
            for name in needed(&file)? {
                if !known.insert(name.clone()) {
                    continue;
                }
                let paths = match name.strip_prefix('/') {
                    // The loader has a path, which the kernel opens. Since Debian 13, packages have
                    // everything below /usr, and links lead there.
                    Some(loader) => vec![loader.into(), Path::new("usr").join(loader)],
                    None => places.iter().map(|place| place.join(&name)).collect(),
                };
                let mut paths = paths.into_iter();
                let place = paths.find_map(|path| Some((self.file(&path)?, path)));
                let (from, path) = place.with_context(|| {
                    let root = self.root.display();
                    format!(
                        "no package in {root} has {name}, which {} needs",
                        file.display()
                    )
                })?;
                unread.push(from.clone());
                found.push((from, Path::new("/").join(path)));
            }
        }
        Ok(found)
    }

    /// Follows links, which are meant for a machine with this root.
    fn file(&self, path: &Path) -> Option<PathBuf> {
        let mut path = self.root.join(path);
        for _ in 0..LINKS {
            let Ok(to) = fs::read_link(&path) else {
                return path.is_file().then_some(path);
            };
            path = match to.strip_prefix("/") {
                Ok(to) => self.root.join(to),
                Err(_) => path.with_file_name(to),
            };
        }
        None
    }
}

/// Downloads and unpacks them, by an `apt` for their architecture. If no list has packages for that,
/// it is reported, as for kernels.
///
/// # Errors
///
/// If a package cannot be downloaded or unpacked.
pub(super) fn fetch(apt: &mut Apt, places: &Places, architecture: Architecture) -> Result<()> {
    let debian = architecture.debian();
    if apt.candidate(PACKAGES[0]).is_none() {
        println!(
            "  ATTENTION: no package list of this machine has {} for {debian}; tests in its kernels will fail",
            PACKAGES[0]
        );
        return Ok(());
    }
    println!("  programs for {debian}: what tests call in its kernels; they are not installed");
    let root = directory(places, architecture);
    // Left by a set-up that was interrupted, or with other packages.
    let _ = fs::remove_dir_all(&root);
    let packages = root.join("downloaded");
    let files = apt
        .download_all(&PACKAGES, &packages)
        .with_context(|| format!("cannot get programs for {debian}"))?;
    for file in files {
        let mut dpkg = Command::new("dpkg-deb");
        run(dpkg.arg("--extract").arg(&file).arg(&root))?;
    }
    fs::remove_dir_all(&packages)?;
    // Documentation, which is most of it.
    fs::remove_dir_all(root.join("usr/share"))?;
    fs::write(root.join(STAMP), PACKAGES.join("\n"))
        .with_context(|| format!("cannot write into {}", root.display()))
}

fn directory(places: &Places, architecture: Architecture) -> PathBuf {
    places.cache.join("userland").join(architecture.debian())
}

/// The names of the libraries that a file names, and its loader's path.
fn needed(file: &Path) -> Result<Vec<String>> {
    let mut readelf = Command::new("readelf");
    let output = readelf
        .args(["--dynamic", "--program-headers", "--wide"])
        .arg(file)
        .output();
    let output = output.context("cannot run readelf")?;
    ensure!(
        output.status.success(),
        "readelf cannot read {}",
        file.display()
    );
    Ok(names_of_readelf(&String::from_utf8_lossy(&output.stdout)))
}

/// Lines are ` 0x0000000000000001 (NEEDED)  Shared library: [libc.so.6]` and, for the loader,
/// `[Requesting program interpreter: /lib/ld-linux-aarch64.so.1]`.
fn names_of_readelf(output: &str) -> Vec<String> {
    let within = |line: &str, start: &str| {
        let (_, rest) = line.split_once(start)?;
        Some(rest.split_once(']')?.0.to_owned())
    };
    output
        .lines()
        .filter_map(|line| {
            within(line, "Shared library: [")
                .or_else(|| within(line, "[Requesting program interpreter: "))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_readelf() {
        let output = "Program Headers:\n\
                      \x20     [Requesting program interpreter: /lib/ld-linux-aarch64.so.1]\n\
                      Dynamic section at offset 0x2bcc8 contains 29 entries:\n\
                      \x20 Tag        Type                         Name/Value\n \
                      0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]\n \
                      0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]\n \
                      0x000000000000000e (SONAME)             Library soname: [libx.so.1]\n";
        let loader = "/lib/ld-linux-aarch64.so.1";
        let expected = [loader, "libgcc_s.so.1", "libc.so.6"];
        assert_eq!(names_of_readelf(output), expected);
        assert!(names_of_readelf("There is no dynamic section in this file.\n").is_empty());
    }

    #[test]
    fn links_are_followed_below_the_root() {
        let root = std::env::temp_dir().join(format!("userland-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::create_dir_all(root.join("sbin")).unwrap();
        fs::write(root.join("bin/kmod"), "").unwrap();
        for (name, to) in [
            ("modprobe", "/bin/kmod"),
            ("lsmod", "modprobe"),
            ("round", "round"),
        ] {
            std::os::unix::fs::symlink(to, root.join("sbin").join(name)).unwrap();
        }
        let userland = Userland {
            architecture: Architecture::Arm64,
            root: root.clone(),
        };
        for name in ["kmod", "modprobe", "lsmod"] {
            assert_eq!(userland.command(name).unwrap(), root.join("bin/kmod"));
        }
        for name in ["round", "ip"] {
            let error = userland.command(name).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        fs::remove_dir_all(root).unwrap();
    }
}
