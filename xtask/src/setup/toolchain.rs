//! The eBPF toolchain: a compiler with the standard library's source, and a linker that fits it. And
//! what the host's compiler needs for other architectures.

use std::{fs, process::Command};

use anyhow::{Result, bail};
use xtask::ebpf::{Compiler, Linker, Places, TOOLCHAIN_VARIABLE, Tools};

use super::{Installer, compiler, linker};
use crate::{architecture::Architecture, step::Steps};

/// Installs the first toolchain that is available.
///
/// The order is: what is already there; rustup's nightly, with its source added; the distribution's
/// packages; a new nightly from rustup.
///
/// # Errors
/// Lists what was tried, and how to do it by hand.
pub fn install(installer: &mut Installer) -> Result<Tools> {
    let sources: &[fn(&mut Installer) -> Result<()>] = match installer.places.chosen {
        Some(_) => &[|_| Ok(())],
        None => &[
            |_| Ok(()),
            compiler::add_source,
            compiler::install_packages,
            compiler::install_nightly,
        ],
    };
    let mut obstacles = Vec::new();
    let mut without_linker = Vec::new();
    for provide_compiler in sources {
        match provide_compiler(installer) {
            Ok(()) => obstacles.extend(provide_linker(installer, &mut without_linker)),
            Err(obstacle) => obstacles.push(obstacle),
        }
        if let Ok(tools) = Tools::find(&installer.places) {
            return Ok(tools);
        }
    }
    bail!("{}", by_hand(&installer.places, &obstacles))
}

/// Installs a linker for the best compiler for which there is one. Returns what went wrong.
///
/// Compilers in `without_linker` have been tried before.
fn provide_linker(
    installer: &mut Installer,
    without_linker: &mut Vec<Compiler>,
) -> Vec<anyhow::Error> {
    let mut obstacles = Vec::new();
    let prefixes = installer.places.compiler_prefixes();
    for compiler in prefixes.iter().flat_map(|prefix| Compiler::at(prefix)) {
        if without_linker.contains(&compiler) {
            continue;
        }
        match linker::install(installer, &compiler) {
            Ok(()) => break,
            Err(obstacle) => obstacles.push(obstacle),
        }
        without_linker.push(compiler);
    }
    obstacles
}

/// Whether the host's compiler has a standard library for an architecture.
pub fn has_library(architecture: Architecture) -> bool {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print=target-libdir", "--target", &architecture.target()]);
    let directory = rustc.output().ok().and_then(|output| {
        let text = String::from_utf8(output.stdout).ok()?;
        fs::read_dir(text.trim()).ok()
    });
    directory.is_some_and(|mut files| files.next().is_some())
}

/// Adds the standard library for an architecture to the host's compiler. If that does not work, it
/// is reported: builds for that architecture fail, and all others can go on.
pub fn add_target(steps: &Steps, architecture: Architecture) {
    let target = architecture.target();
    println!(
        "  {target}: Rust's standard library for {}",
        architecture.debian()
    );
    // If rustup's servers cannot be reached, it may try for a long time.
    let mut command = Command::new("timeout");
    command.args(["300", "rustup", "target", "add", &target]);
    let title = format!("adding {target} to the Rust toolchain");
    if let Err(error) = steps.run(&title, &mut command) {
        println!(
            "  ATTENTION: this Rust has no standard library for {target} ({error:#}); run `rustup target add \
             {target}` where that works. Nothing can be built for {}",
            architecture.debian()
        );
    }
}

fn by_hand(places: &Places, obstacles: &[anyhow::Error]) -> String {
    let mut text = "no eBPF toolchain could be set up. What was tried:".to_owned();
    for obstacle in obstacles {
        text += &format!("\n  - {obstacle:#}");
    }
    if let Some(chosen) = &places.chosen {
        let chosen = chosen.display();
        text += &format!("\n  ({TOOLCHAIN_VARIABLE} allows no compiler but {chosen})");
    }
    let (release, llvm) = (Linker::PINNED, Linker::PUBLISHED_LLVM);
    text + &format!(
        "\nInstall by hand, then try again:\n  \
         1. a compiler with source: rustup toolchain install nightly --component rust-src\n  \
         2. a bpf-linker on PATH made with an LLVM that is not older than the compiler's:\n     \
         cargo binstall bpf-linker@{release}\n     \
         or, where llvm-{llvm}-dev is installed: cargo install bpf-linker --version {release} \
         --locked --no-default-features --features llvm-{llvm}"
    )
}
