//! Compiling `lb-ebpf` for the BPF target.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use super::{Places, Tools};

/// The eBPF target: little endian, like every machine the agent runs on.
pub const TARGET: &str = "bpfel-unknown-none";

/// Variables that must reach the inner cargo. Everything else that cargo, rustc or the user set for
/// the host build (flags, wrappers, profiles, target directories) must not.
const KEPT: [&str; 8] = [
    "CARGO_HOME",
    "CARGO_HTTP_",
    "CARGO_NET_",
    "CARGO_REGISTRIES_",
    "CARGO_REGISTRY_",
    "CARGO_SOURCE_",
    "CARGO_TERM_",
    // The outer cargo's job server, so that both builds together keep to its number of jobs.
    "CARGO_MAKEFLAGS",
];

/// Name of the object with node-lb's programs.
pub const PROGRAMS: &str = "lb";
/// Name of the object with the benchmark's own programs.
pub const HARNESS: &str = "harness";

/// Builds an object of `lb-ebpf` in `workspace` in release mode and returns its path.
///
/// `target` is the outer build's target directory. The object gets one of its own inside, because
/// the outer cargo holds the lock on its directory while build scripts run.
///
/// # Errors
/// Fails if no toolchain is set up or the programs do not compile.
pub fn build_object(workspace: &Path, target: &Path, name: &str) -> Result<PathBuf> {
    let tools = Tools::find(&Places::from_env())?;
    let directory = target.join("bpf");
    let cargo = tools.compiler.cargo();
    let status = command(&tools, &cargo, "build", workspace, &directory)?
        .args(["--bin", name])
        .status()
        .with_context(|| format!("cannot run {}", cargo.display()))?;
    ensure!(
        status.success(),
        "the eBPF programs do not build with {tools} ({status})"
    );
    Ok(directory.join(TARGET).join("release").join(name))
}

/// Runs clippy over `lb-ebpf` as compiled for the BPF target, warnings being errors.
///
/// # Errors
/// Fails on findings, and if no toolchain is set up or it lacks clippy.
pub fn lint(workspace: &Path, target: &Path) -> Result<()> {
    let tools = Tools::find(&Places::from_env())?;
    let clippy = tools.compiler.clippy();
    let status = command(&tools, &clippy, "clippy", workspace, &target.join("bpf"))?
        .args(["--bins", "--", "--deny=warnings"])
        .status()
        .with_context(|| format!("cannot run {}; run `cargo xtask setup`", clippy.display()))?;
    ensure!(
        status.success(),
        "clippy is not content with the eBPF programs ({status})"
    );
    Ok(())
}

/// Removes DWARF from the object, but not BTF. Without llvm-strip it stays, which only costs size.
pub fn strip_debug_info(object: &Path) {
    let versions = super::Linker::LLVM_VERSIONS.map(|llvm| format!("/usr/lib/llvm-{llvm}/bin"));
    let strip = versions.iter().map(|bin| Path::new(bin).join("llvm-strip"));
    if let Some(strip) = strip.rev().find(|strip| strip.is_file()) {
        // A failure leaves the object as it was.
        let _ = Command::new(strip)
            .arg("--strip-debug")
            .arg(object)
            .status();
    }
}

/// A cargo subcommand for `lb-ebpf`, in a clean environment.
fn command(
    tools: &Tools,
    program: &Path,
    subcommand: &str,
    workspace: &Path,
    directory: &Path,
) -> Result<Command> {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        if is_foreign(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
    // rustc finds bpf-linker by name, and picks its flags by that name.
    let linker_directory = tools.linker.path.parent().map(Path::to_owned);
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(linker_directory.into_iter().chain(env::split_paths(&path)))
        .context("PATH cannot hold the directory of bpf-linker")?;
    command
        .current_dir(workspace)
        .env("PATH", path)
        .env("CARGO", tools.compiler.cargo())
        .env("RUSTC", tools.compiler.rustc())
        // A stable compiler refuses -Zbuild-std and inline BPF assembly without this.
        .env("RUSTC_BOOTSTRAP", "1")
        .args([subcommand, "--release", "--package", "lb-ebpf"])
        .args(["--target", TARGET, "-Zbuild-std=core", "--target-dir"])
        .arg(directory);
    Ok(command)
}

/// Whether a variable controls cargo or rustc and was meant for the host build.
fn is_foreign(name: &str) -> bool {
    let steers = ["CARGO", "RUSTC", "RUSTDOC", "RUSTFLAGS", "RUSTUP_TOOLCHAIN"]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    // For instance LD_LIBRARY_PATH with another compiler's libraries, set by `cargo run`. Cargo tells build
    // scripts what the HOST is: the same object would be built again and again, with it and without.
    let is_hosts = matches!(name, "LD_LIBRARY_PATH" | "HOST");
    is_hosts || steers && !KEPT.iter().any(|kept| name.starts_with(kept))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_flags_do_not_reach_the_object() {
        for name in [
            "RUSTFLAGS",
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_BUILD_RUSTFLAGS",
            "CARGO_BUILD_TARGET",
            "CARGO_TARGET_DIR",
            "CARGO_TARGET_BPFEL_UNKNOWN_NONE_RUSTFLAGS",
            "CARGO_PROFILE_RELEASE_DEBUG",
            "CARGO",
            "RUSTC",
            "RUSTC_WRAPPER",
            "RUSTC_WORKSPACE_WRAPPER",
            "RUSTUP_TOOLCHAIN",
            "LD_LIBRARY_PATH",
            "HOST",
        ] {
            assert!(is_foreign(name), "{name}");
        }
    }

    #[test]
    fn network_and_terminal_settings_do() {
        for name in [
            "PATH",
            "HOME",
            "RUSTUP_HOME",
            "CARGO_HOME",
            "CARGO_HTTP_PROXY",
            "CARGO_NET_OFFLINE",
            "CARGO_TERM_COLOR",
            "CARGO_MAKEFLAGS",
        ] {
            assert!(!is_foreign(name), "{name}");
        }
    }
}
