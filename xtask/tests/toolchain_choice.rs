//! Tests the choice of the eBPF toolchain, on machines made of fake compilers and linkers.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use xtask::ebpf::{Linker, Places, Tools, target_directory};

#[test]
fn nightly_with_source_comes_before_the_system_compiler() {
    let machine = Machine::new();
    machine.compiler(
        "rustup/toolchains/nightly-HOST",
        "1.97.0-nightly",
        "22.1.4",
        true,
    );
    machine.compiler("usr", "1.96.0", "22.1.8", true);
    machine.linker("bin", "0.13.0");
    assert_eq!(
        machine.prefix(),
        machine.path("rustup/toolchains/nightly-HOST")
    );
}

#[test]
fn nightly_without_source_gives_way_to_the_system_compiler() {
    let machine = Machine::new();
    machine.compiler(
        "rustup/toolchains/nightly-HOST",
        "1.97.0-nightly",
        "22.1.4",
        false,
    );
    machine.compiler("usr", "1.96.0", "22.1.8", true);
    machine.linker("bin", "0.13.0");
    assert_eq!(machine.prefix(), machine.path("usr"));
}

#[test]
fn dated_and_foreign_nightlies_are_not_taken_for_this_machines() {
    let machine = Machine::new();
    machine.compiler(
        "rustup/toolchains/nightly-2020-01-01-HOST",
        "1.42.0-nightly",
        "9.0",
        true,
    );
    machine.compiler(
        "rustup/toolchains/nightly-mips-unknown-none",
        "1.97.0",
        "22.1.4",
        true,
    );
    machine.compiler("usr", "1.96.0", "22.1.8", true);
    machine.linker("bin", "0.13.0");
    assert_eq!(machine.prefix(), machine.path("usr"));
}

#[test]
fn compiler_that_is_too_new_for_every_linker_is_passed_over() {
    let machine = Machine::new();
    let too_new = format!("{}.0.0", Linker::PUBLISHED_LLVM + 1);
    machine.compiler(
        "rustup/toolchains/nightly-HOST",
        "1.99.0-nightly",
        &too_new,
        true,
    );
    machine.compiler("usr", "1.96.0", "22.1.8", true);
    machine.linker("bin", "0.13.0");
    assert_eq!(machine.prefix(), machine.path("usr"));
}

#[test]
fn compiler_that_is_too_old_is_refused() {
    let machine = Machine::new();
    machine.compiler("usr", "1.63.0", "14.0.6", true);
    machine.linker("bin", "0.13.0");
    let message = machine.lacks();
    assert!(
        message.contains("rustc 1.63.0 is older than 1.91.0"),
        "{message}"
    );
}

#[test]
fn old_linker_is_not_used_but_one_that_set_up_built_is() {
    let machine = Machine::new();
    machine.compiler("usr", "1.96.0", "22.1.8", true);
    machine.linker("bin", "0.9.15");
    let message = machine.lacks();
    assert!(
        message.contains("no bpf-linker 0.13.0 or later"),
        "{message}"
    );

    let built = machine.places().linker_root(Some(23)).join("bin");
    machine.linker(
        built.strip_prefix(&machine.root).unwrap().to_str().unwrap(),
        "0.13.0",
    );
    assert_eq!(
        machine.find().unwrap().linker.path,
        built.join("bpf-linker")
    );
}

#[test]
fn compiler_can_be_chosen_by_name_or_by_prefix() {
    let mut machine = Machine::new();
    machine.compiler(
        "rustup/toolchains/nightly-HOST",
        "1.97.0-nightly",
        "22.1.4",
        true,
    );
    machine.compiler("rustup/toolchains/stable-HOST", "1.95.0", "22.1.2", true);
    machine.compiler("usr", "1.96.0", "22.1.8", true);
    machine.linker("bin", "0.13.0");

    machine.chosen = Some("stable".into());
    assert_eq!(
        machine.prefix(),
        machine.path("rustup/toolchains/stable-HOST")
    );
    machine.chosen = Some(machine.path("usr"));
    assert_eq!(machine.prefix(), machine.path("usr"));
    machine.chosen = Some("beta".into());
    let message = machine.lacks();
    assert!(
        message.contains("toolchains/beta: no bin/rustc"),
        "{message}"
    );
}

#[test]
fn empty_machine_is_told_to_run_set_up() {
    let message = Machine::new().lacks();
    assert!(message.contains("run `cargo xtask setup`"), "{message}");
    assert!(
        message.contains("usr: no bin/rustc and bin/cargo"),
        "{message}"
    );
}

#[test]
fn broken_compiler_is_named() {
    let machine = Machine::new();
    machine.script("usr/bin/rustc", "exit 1");
    machine.script("usr/bin/cargo", "exit 1");
    let message = machine.lacks();
    assert!(
        message.contains("usr: bin/rustc -vV does not say its version"),
        "{message}"
    );
}

#[test]
fn target_directory_is_the_outer_one_that_cargo_tagged() {
    let machine = Machine::new();
    let tag = |directory: &str, by: &str| {
        let path = machine.file(&format!("{directory}/CACHEDIR.TAG"));
        fs::write(path, format!("# a cache directory tag created by {by}.\n")).unwrap();
    };
    tag("cache", "restic");
    tag("cache/target", "cargo");
    tag("cache/target/aarch64-unknown-linux-gnu", "cargo");
    for out in ["debug", "aarch64-unknown-linux-gnu/debug"] {
        let out = machine.path(&format!("cache/target/{out}/build/node-lb-1/out"));
        assert_eq!(
            target_directory(&out),
            Some(machine.path("cache/target").as_path())
        );
    }
}

/// A directory that takes the place of a machine's file system.
struct Machine {
    root: PathBuf,
    chosen: Option<PathBuf>,
    /// One machine at a time: if another thread is about to run a script, its child keeps inherited
    /// descriptors open, and a file that is open for writing cannot be run.
    _alone: MutexGuard<'static, ()>,
}

impl Machine {
    fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let root = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("toolchains-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        Self {
            root,
            chosen: None,
            _alone: alone,
        }
    }

    /// `HOST` stands for this machine's target triple.
    fn path(&self, relative: &str) -> PathBuf {
        self.root
            .join(relative.replace("HOST", &format!("{}-test", env::consts::ARCH)))
    }

    fn places(&self) -> Places {
        Places {
            chosen: self.chosen.clone().map(Into::into),
            rustup_home: self.path("rustup"),
            system_prefix: self.path("usr"),
            linker_directories: vec![self.path("bin"), self.path("empty")],
            cache: self.path("cache"),
        }
    }

    fn find(&self) -> Result<Tools, String> {
        Tools::find(&self.places()).map_err(|not_ready| not_ready.to_string())
    }

    fn prefix(&self) -> PathBuf {
        self.find().unwrap().compiler.prefix
    }

    fn lacks(&self) -> String {
        self.find().unwrap_err()
    }

    fn compiler(&self, prefix: &str, release: &str, llvm: &str, source: bool) {
        let version = format!("echo 'release: {release}'; echo 'LLVM version: {llvm}'");
        self.script(&format!("{prefix}/bin/rustc"), &version);
        self.script(&format!("{prefix}/bin/cargo"), "exit 0");
        if source {
            self.file(&format!("{prefix}/lib/rustlib/src/rust/library/Cargo.lock"));
        }
    }

    fn linker(&self, directory: &str, release: &str) {
        self.script(
            &format!("{directory}/bpf-linker"),
            &format!("echo 'bpf-linker {release}'"),
        );
    }

    fn script(&self, path: &str, body: &str) {
        let path = self.file(path);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn file(&self, path: &str) -> PathBuf {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        fs::write(&path, "").unwrap();
        path
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}
