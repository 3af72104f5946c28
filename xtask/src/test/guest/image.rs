//! The initial file system of an older kernel: an archive that the kernel unpacks into memory.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use xtask::ebpf::Places;

use crate::{
    architecture::Architecture,
    cargo::{Workspace, run},
    setup::{kernels::Kernel, program_path, userland::Userland},
    test::suite::Test,
};

/// Commands that the tests and `init.sh` call.
const COMMANDS: [&str; 23] = [
    "bpftool", "cat", "cut", "ethtool", "head", "ip", "ls", "mkdir", "modprobe", "mount", "nft",
    "nsenter", "ping", "sh", "sleep", "stty", "sysctl", "tc", "timeout", "true", "uname", "umount",
    "wc",
];

/// Programs of node-lb that the guest needs besides the test programs.
pub const PROGRAMS: [&str; 3] = ["node-lb", "lab-tool", "lab"];

/// Parts of the kernel that are modules and may be requested, below `kernel`.
const MODULES: [&str; 4] = ["crypto", "drivers/net", "lib", "net"];

/// Builds the file system, and returns the archive. Test programs have the same paths in it as on
/// this machine.
pub fn build(
    workspace: &Workspace,
    places: &Places,
    kernel: &Kernel,
    tests: &[Test],
) -> Result<PathBuf> {
    let directory = workspace.target.join("guest").join(&kernel.release);
    let origin = Origin::of(places, kernel.architecture)?;
    let root = Root::new(directory.join("root"), origin)?;
    for command in COMMANDS {
        let path = root.origin.command(command)?;
        root.program(&path, &Path::new("/usr/bin").join(command))?;
        if command == "modprobe" {
            // The path where the kernel looks for it.
            root.program(&path, Path::new("/sbin/modprobe"))?;
        }
    }

    let agents = workspace.built(kernel.architecture, "debug");
    let own = PROGRAMS.map(|name| agents.join(name));
    let programs: BTreeSet<_> = tests.iter().map(Test::executable).collect();
    let programs = programs.into_iter().map(Path::to_owned);
    for program in own.into_iter().chain(programs) {
        root.program(&program, &program)?;
        run(Command::new(kernel.architecture.tool("strip"))
            .arg("--strip-debug")
            .arg(root.place(&program)))?;
    }
    let mut script = String::new();
    for test in tests {
        fs::create_dir_all(root.place(test.package()))?;
        let [package, executable] = [test.package(), test.executable()].map(Path::to_string_lossy);
        let words = [&*test.name(), &package, &executable].map(quoted);
        let arguments = test.arguments().map(quoted);
        script += &format!("run {} {}\n", words.join(" "), arguments.join(" "));
    }
    root.file("init", include_str!("init.sh"), 0o755)?;
    root.file("tests.sh", &script, 0o644)?;
    root.modules(kernel)?;
    root.archive(&directory.join("initramfs"))
}

/// Where commands and libraries come from.
enum Origin {
    /// This machine.
    Here,
    /// Packages, for another architecture.
    Unpacked(Userland),
}

impl Origin {
    fn of(places: &Places, architecture: Architecture) -> Result<Self> {
        if architecture.is_here() {
            return Ok(Self::Here);
        }
        let found = Userland::find(places, architecture).map(Self::Unpacked);
        found.with_context(|| {
            let debian = architecture.debian();
            format!("there are no programs for {debian} to test with; run `cargo xtask setup`")
        })
    }

    fn command(&self, name: &str) -> Result<PathBuf> {
        match self {
            Self::Here => program_path(name)
                .with_context(|| format!("older kernels' tests need the command {name}")),
            Self::Unpacked(userland) => userland.command(name),
        }
    }

    /// The libraries that a program is linked with, and the loader that loads them: where they are
    /// here, and in the guest.
    fn libraries(&self, program: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
        match self {
            Self::Here => {
                let found = libraries(program)?.into_iter();
                Ok(found.map(|path| (path.clone(), path)).collect())
            }
            Self::Unpacked(userland) => userland.libraries(program),
        }
    }
}

/// The file system under construction.
struct Root {
    path: PathBuf,
    origin: Origin,
}

impl Root {
    fn new(path: PathBuf, origin: Origin) -> Result<Self> {
        if path.exists() {
            fs::remove_dir_all(&path)
                .with_context(|| format!("cannot remove {}", path.display()))?;
        }
        for directory in ["dev", "proc", "root", "run", "sys", "tmp"] {
            fs::create_dir_all(path.join(directory))?;
        }
        // As in every current distribution: a program has one place, whatever path it is called by.
        for directory in ["bin", "lib", "lib64", "sbin"] {
            fs::create_dir_all(path.join("usr").join(directory))?;
            symlink(Path::new("usr").join(directory), path.join(directory))?;
        }
        Ok(Self { path, origin })
    }

    /// Where a path of the guest is on this machine.
    fn place(&self, path: &Path) -> PathBuf {
        self.path.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Copies a program, and the libraries that it is linked with.
    fn program(&self, from: &Path, to: &Path) -> Result<()> {
        self.copy(from, to)?;
        self.origin
            .libraries(from)?
            .iter()
            .try_for_each(|(from, to)| self.copy(from, to))
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        let to = self.place(to);
        if to.exists() {
            return Ok(());
        }
        let copy = || {
            fs::create_dir_all(to.parent().unwrap_or(&self.path))?;
            fs::copy(from, &to)
        };
        copy().with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
        Ok(())
    }

    fn file(&self, name: &str, text: &str, mode: u32) -> Result<()> {
        let path = self.path.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
    }

    /// The kernel's modules, for it to load when it needs them.
    fn modules(&self, kernel: &Kernel) -> Result<()> {
        let (from, release) = (kernel.modules(), &kernel.release);
        let to = self.path.join("usr/lib/modules").join(release);
        fs::create_dir_all(to.join("kernel/drivers"))?;
        for part in MODULES {
            let part = Path::new("kernel").join(part);
            let into = to.join(&part);
            run(Command::new("cp")
                .arg("--recursive")
                .args([from.join(&part), into]))?;
        }
        for list in [
            "modules.builtin",
            "modules.builtin.modinfo",
            "modules.order",
        ] {
            fs::copy(from.join(list), to.join(list))
                .with_context(|| format!("the kernel {release} has no {list}"))?;
        }
        let depmod = program_path("depmod").context("no depmod")?;
        run(Command::new(depmod)
            .arg("--basedir")
            .arg(&self.path)
            .arg(release))
    }

    /// Packs everything as the kernel expects it. Uncompressed, because unpacking is slower than
    /// loading.
    fn archive(&self, path: &Path) -> Result<PathBuf> {
        let list = run_for_output(Command::new("find").arg(".").current_dir(&self.path))?;
        let archive =
            fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut cpio = Command::new("cpio");
        cpio.args(["--create", "--format=newc", "--owner=0:0", "--quiet"])
            .current_dir(&self.path)
            .stdin(Stdio::piped())
            .stdout(archive);
        let mut child = cpio.spawn().context("cannot run cpio")?;
        let mut names = child.stdin.take().context("cpio has no standard input")?;
        std::io::Write::write_all(&mut names, list.as_bytes())?;
        drop(names);
        let status = child.wait()?;
        ensure!(status.success(), "cpio failed ({status})");
        Ok(path.to_owned())
    }
}

/// The libraries that a program is linked with, and the loader that loads them.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    // For a static program ldd ends with an error, and there are none.
    let output = Command::new("ldd").arg(program).output();
    let output = output.context("cannot run ldd")?;
    Ok(paths_of_ldd(&String::from_utf8_lossy(&output.stdout)))
}

/// Lines are `name => /path (address)`, `/path (address)`, or without a file.
fn paths_of_ldd(output: &str) -> BTreeSet<PathBuf> {
    output
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            words.find(|word| word.starts_with('/')).map(PathBuf::from)
        })
        .collect()
}

fn run_for_output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Quotes a word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_ldd() {
        let output = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                      \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f01)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f02)\n";
        let expected = [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(paths_of_ldd(output), expected.map(PathBuf::from).into());
        assert!(paths_of_ldd("\tnot a dynamic executable\n").is_empty());
    }

    #[test]
    fn words_reach_the_guest_as_they_are() {
        assert_eq!(quoted("tests (test attach)"), "'tests (test attach)'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
