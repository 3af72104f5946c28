//! The eBPF toolchain: a compiler with the standard library's source, and a linker that fits it.

use std::{env, fs, path::Path, process::Command};

use anyhow::{Context, Result, anyhow, bail};
use xtask::ebpf::{Compiler, Linker, Places, TOOLCHAIN_VARIABLE, Tools};

use super::{apt::Apt, on_path};
use crate::{cargo::host_cargo, step::Steps};

/// The distribution's compilers: rustc, cargo and source. `rustc-web` is what Debian's browsers
/// are built with and so much newer than the release's own.
const COMPILER_PACKAGES: [[&str; 3]; 2] = [
    ["rustc-web", "cargo-web", "rust-web-src"],
    ["rustc", "cargo", "rust-src"],
];

/// What llvm-sys links beside LLVM itself.
const LLVM_LIBRARIES: [&str; 3] = ["libzstd-dev", "zlib1g-dev", "libxml2-dev"];

/// Installs the first toolchain that can be had.
///
/// In this order: what is there already, rustup's nightly with its source added, the
/// distribution's packages, a new nightly from rustup.
///
/// # Errors
/// Lists what was tried and how to do it by hand.
pub fn install(steps: &Steps, apt: &mut Apt, places: &Places) -> Result<Tools> {
    let mut setup = Setup {
        steps,
        apt,
        places,
        tried: Vec::new(),
    };
    let mut obstacles = Vec::new();
    let compilers: &[fn(&mut Setup) -> Result<()>] = match &places.chosen {
        Some(_) => &[|_| Ok(())],
        None => &[|_| Ok(()), add_source, install_packages, install_nightly],
    };
    for provide_compiler in compilers {
        match provide_compiler(&mut setup) {
            Ok(()) => obstacles.extend(setup.link_new_compilers()),
            Err(obstacle) => obstacles.push(obstacle),
        }
        if let Ok(tools) = Tools::find(places) {
            return Ok(tools);
        }
    }
    bail!("{}", by_hand(places, &obstacles))
}

struct Setup<'a, 's> {
    steps: &'a Steps,
    apt: &'a mut Apt<'s>,
    places: &'a Places,
    /// Compilers that no linker could be had for.
    tried: Vec<Compiler>,
}

impl Setup<'_, '_> {
    /// Gives the best compiler that has none yet a linker; returns what went wrong.
    fn link_new_compilers(&mut self) -> Vec<anyhow::Error> {
        let mut obstacles = Vec::new();
        for prefix in self.places.compiler_prefixes() {
            let Ok(compiler) = Compiler::at(&prefix) else {
                continue;
            };
            if self.tried.contains(&compiler) {
                continue;
            }
            match self.install_linker(&compiler) {
                Ok(()) => break,
                Err(obstacle) => obstacles.push(obstacle),
            }
            self.tried.push(compiler);
        }
        obstacles
    }

    fn install_linker(&mut self, compiler: &Compiler) -> Result<()> {
        println!(
            "  bpf-linker {}: links what {compiler} compiles for eBPF",
            Linker::PINNED
        );
        let fitting = Linker::LLVM_VERSIONS
            .into_iter()
            .filter(|llvm| *llvm >= compiler.llvm);
        for llvm in fitting {
            let package = format!("llvm-{llvm}-dev");
            if has_llvm(llvm) || self.apt.candidate(&package).is_some() {
                return self.build_linker(llvm, &package);
            }
        }
        self.download_linker().with_context(|| {
            format!(
                "no package has LLVM {} or later for bpf-linker",
                compiler.llvm
            )
        })
    }

    fn build_linker(&mut self, llvm: u32, package: &str) -> Result<()> {
        if !has_llvm(llvm) {
            println!("  {package}: what bpf-linker is built on");
            let packages: Vec<_> = [package].into_iter().chain(LLVM_LIBRARIES).collect();
            self.apt.install(&packages)?;
        }
        let prefix = format!("/usr/lib/llvm-{llvm}");
        let path = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths(
            [Path::new(&prefix).join("bin")]
                .into_iter()
                .chain(env::split_paths(&path)),
        )?;
        let mut command = host_cargo();
        command
            .args(["install", "bpf-linker", "--locked", "--no-default-features"])
            .args(["--version", &Linker::PINNED.to_string()])
            .args(["--features", &format!("llvm-{llvm}")])
            .arg("--root")
            .arg(self.places.linker_root(Some(llvm)))
            .env("LLVM_PREFIX", prefix)
            .env("PATH", path)
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_BUILD_TARGET")
            .env_remove("CARGO_TARGET_DIR");
        let title = format!("building bpf-linker {} with LLVM {llvm}", Linker::PINNED);
        self.steps.run(&title, &mut command)
    }

    /// The binary that bpf-linker's authors publish, for distributions without a new LLVM.
    fn download_linker(&mut self) -> Result<()> {
        let bin = self.places.linker_root(None).join("bin");
        fs::create_dir_all(&bin).with_context(|| format!("cannot make {}", bin.display()))?;
        let missing = [("curl", "curl"), ("zstd", "zstd"), ("tar", "tar")];
        let missing = missing.into_iter().filter(|(command, _)| !on_path(command));
        self.apt
            .install(&missing.map(|(_, package)| package).collect::<Vec<_>>())?;

        let url = format!(
            "https://github.com/aya-rs/bpf-linker/releases/download/v{}/\
             bpf-linker-{}-unknown-linux-musl.tar.zst",
            Linker::PINNED,
            env::consts::ARCH
        );
        let archive = bin.with_file_name("bpf-linker.tar.zst");
        let mut curl = Command::new("curl");
        curl.args([
            "--fail",
            "--location",
            "--silent",
            "--show-error",
            "--max-time",
            "300",
        ]);
        self.steps.run(
            "downloading bpf-linker",
            curl.arg("--output").arg(&archive).arg(url),
        )?;
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--zstd", "--file"])
            .arg(&archive)
            .arg("--directory")
            .arg(&bin);
        self.steps.run("unpacking bpf-linker", &mut tar)?;
        let linker = bin.join("bpf-linker");
        Linker::at(&linker)
            .map(|_| ())
            .ok_or_else(|| anyhow!("{} does not run as bpf-linker", linker.display()))
    }
}

fn add_source(setup: &mut Setup) -> Result<()> {
    let nightly = setup.places.compiler_prefixes().into_iter().find(|prefix| {
        prefix.starts_with(&setup.places.rustup_home)
            && Compiler::at(prefix).is_err_and(|unfit| unfit.lacks_only_source())
    });
    if nightly.is_none() || !on_path("rustup") {
        bail!("rustup has no nightly toolchain here that lacks just rust-src");
    }
    println!("  rust-src: eBPF has no ready-made `core`, so it is built from source");
    rustup(
        setup,
        "adding rust-src to rustup's nightly",
        &["component", "add", "rust-src", "--toolchain", "nightly"],
    )
}

fn install_packages(setup: &mut Setup) -> Result<()> {
    let packages = COMPILER_PACKAGES.iter().find(|packages| {
        setup
            .apt
            .candidate(packages[0])
            .is_some_and(|release| release >= Compiler::OLDEST)
    });
    let packages = packages.with_context(|| {
        format!(
            "the distribution has no package of rustc {} or later",
            Compiler::OLDEST
        )
    })?;
    println!(
        "  {}: a Rust compiler with source, for eBPF only",
        packages[0]
    );
    setup.apt.install(packages)
}

fn install_nightly(setup: &mut Setup) -> Result<()> {
    if !on_path("rustup") {
        bail!("there is no rustup to install a nightly toolchain with");
    }
    println!("  nightly: a Rust compiler with source, for eBPF only");
    rustup(
        setup,
        "installing rustup's nightly",
        &[
            "toolchain",
            "install",
            "nightly",
            "--profile",
            "minimal",
            "--component",
            "rust-src",
        ],
    )
}

fn rustup(setup: &Setup, title: &str, arguments: &[&str]) -> Result<()> {
    // Where rustup's servers cannot be reached it may try for long.
    let mut command = Command::new("timeout");
    setup
        .steps
        .run(title, command.args(["300", "rustup"]).args(arguments))
}

fn has_llvm(version: u32) -> bool {
    let prefix = Path::new("/usr/lib").join(format!("llvm-{version}"));
    ["bin/llvm-config", "include/llvm-c/Core.h"]
        .iter()
        .all(|file| prefix.join(file).exists())
}

fn by_hand(places: &Places, obstacles: &[anyhow::Error]) -> String {
    let mut text = "no eBPF toolchain could be set up. What was tried:".to_owned();
    for obstacle in obstacles {
        text += &format!("\n  - {obstacle:#}");
    }
    if let Some(chosen) = &places.chosen {
        text += &format!("\n({TOOLCHAIN_VARIABLE} allows only {})", chosen.display());
    }
    let (release, llvm) = (Linker::PINNED, Linker::LLVM_VERSIONS[2]);
    text + &format!(
        "\nInstall by hand, then try again:\n  \
         1. a compiler with source: rustup toolchain install nightly --component rust-src\n  \
         2. a bpf-linker on PATH made with an LLVM that is not older than the compiler's:\n     \
         cargo binstall bpf-linker@{release}\n     \
         or, where llvm-{llvm}-dev is installed: cargo install bpf-linker --version {release} \
         --locked --no-default-features --features llvm-{llvm}"
    )
}
