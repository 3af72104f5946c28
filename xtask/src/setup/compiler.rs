//! Provides a compiler that can build for BPF.

use std::process::Command;

use anyhow::{Context, Result, bail};
use xtask::ebpf::Compiler;

use super::{Installer, on_path};

/// Adds the standard library's source to rustup's nightly.
pub fn add_source(installer: &mut Installer) -> Result<()> {
    let places = &installer.places;
    let lacks_only_source = places.compiler_prefixes().iter().any(|prefix| {
        places.is_of_rustup(prefix)
            && Compiler::at(prefix).is_err_and(|unfit| unfit.lacks_only_source())
    });
    if !lacks_only_source {
        bail!("rustup has no nightly toolchain here that lacks just rust-src");
    }
    println!("  rust-src: `core` for eBPF is built from source");
    let arguments = ["component", "add", "rust-src", "--toolchain", "nightly"];
    rustup(installer, "adding rust-src to rustup's nightly", &arguments)
}

/// Installs the distribution's newest compiler, if it is new enough.
pub fn install_packages(installer: &mut Installer) -> Result<()> {
    let packages = PACKAGES
        .iter()
        .find(|packages| installer.apt.candidate(packages.rustc) >= Some(Compiler::OLDEST))
        .with_context(|| format!("no package has rustc {} or later", Compiler::OLDEST))?;
    let Packages {
        rustc,
        cargo,
        source,
        clippy,
    } = packages;
    println!("  {rustc}: a Rust compiler with source, for eBPF only");
    installer.apt.install(&[rustc, cargo, source, clippy])
}

/// Installs rustup's nightly beside the present toolchains. The default toolchain stays.
pub fn install_nightly(installer: &mut Installer) -> Result<()> {
    let places = &installer.places;
    let mut prefixes = places.compiler_prefixes().into_iter();
    if let Some(present) = prefixes.find(|prefix| places.is_of_rustup(prefix)) {
        bail!("{} is there already and no help", present.display());
    }
    println!("  nightly: a Rust compiler with source, for eBPF only");
    let parts = ["--profile=minimal", "--component=rust-src,clippy"];
    let arguments = [&["toolchain", "install", "nightly"][..], &parts].concat();
    rustup(installer, "installing rustup's nightly", &arguments)
}

/// Adds clippy to the eBPF compiler: `cargo xtask test` checks lb-ebpf as it is compiled.
pub fn install_clippy(installer: &mut Installer, compiler: &Compiler) -> Result<()> {
    println!("  clippy for eBPF: checks lb-ebpf as it is compiled");
    if installer.places.is_of_rustup(&compiler.prefix) {
        let toolchain = compiler.prefix.file_name().unwrap_or_default();
        let toolchain = toolchain.to_string_lossy();
        let arguments = ["component", "add", "clippy", "--toolchain", &toolchain];
        let title = format!("adding clippy to rustup's {toolchain}");
        return rustup(installer, &title, &arguments);
    }
    let packages = PACKAGES
        .iter()
        .find(|packages| installer.apt.candidate(packages.rustc) == Some(compiler.release))
        .with_context(|| format!("no package has the clippy of {compiler}"))?;
    installer.apt.install(&[packages.clippy])
}

/// A distribution's packages of one Rust release.
struct Packages {
    rustc: &'static str,
    cargo: &'static str,
    source: &'static str,
    clippy: &'static str,
}

/// By preference: Debian builds its browsers with `rustc-web`, which is much newer than the
/// release's own `rustc`.
const PACKAGES: [Packages; 2] = [
    Packages {
        rustc: "rustc-web",
        cargo: "cargo-web",
        source: "rust-web-src",
        clippy: "rust-web-clippy",
    },
    Packages {
        rustc: "rustc",
        cargo: "cargo",
        source: "rust-src",
        clippy: "rust-clippy",
    },
];

fn rustup(installer: &Installer, title: &str, arguments: &[&str]) -> Result<()> {
    if !on_path("rustup") {
        bail!("there is no rustup on this machine");
    }
    // If rustup's servers cannot be reached, it may try for a long time.
    let mut command = Command::new("timeout");
    let command = command.args(["300", "rustup"]).args(arguments);
    installer.steps.run(title, command)
}
