//! The oldest Rust that the workspace promises to build with: `rust-version` in Cargo.toml.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use xtask::ebpf::{self, Release};

use crate::{
    cargo::{self, Workspace},
    setup,
};

/// The version of this crate, which is the workspace's.
const MSRV: &str = env!("CARGO_PKG_RUST_VERSION");

/// How many seconds rustup may take to install it. Without internet it would try for very long.
const INSTALL_SECONDS: &str = "300";

/// Compares it with what every package in Cargo.lock requires, and compiles the default members
/// with rustup's toolchain of that release. Tests are not compiled.
///
/// # Errors
///
/// If a package requires a later Rust, or the code does not compile. If rustup cannot provide the
/// toolchain, there is only a warning.
pub fn run(workspace: &Workspace) -> Result<()> {
    let output = workspace
        .cargo(["metadata", "--locked", "--format-version=1"])
        .output()
        .context("cannot run cargo")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "cargo metadata failed: {complaint}"
    );
    let metadata = serde_json::from_slice(&output.stdout);
    let problems = problems(&metadata.context("cannot read what cargo metadata says")?)?;
    ensure!(problems.is_empty(), "{}", problems.join("\n"));

    if let Err(error) = provide() {
        println!(
            "warning: Rust {MSRV} cannot be had ({error:#}), so nothing was compiled with it; where it can: \
             rustup toolchain install {MSRV} --profile minimal"
        );
        return Ok(());
    }
    let object = ebpf::build_object(&workspace.root, &workspace.target, ebpf::PROGRAMS)?;
    let mut check = rustup(["run", MSRV, "cargo", "check", "--locked", "--target-dir"]);
    check
        .arg(workspace.target.join("msrv"))
        .current_dir(&workspace.root)
        .env(ebpf::OBJECT_VARIABLE, object);
    cargo::run(&mut check).with_context(|| format!("Rust {MSRV} does not compile the workspace"))
}

/// What contradicts [`MSRV`] in the output of `cargo metadata`: packages of the workspace that do
/// not state it, and dependencies that require a later Rust.
fn problems(metadata: &Value) -> Result<Vec<String>> {
    let ours = Release::parse(MSRV).context("rust-version in Cargo.toml is not a version")?;
    let packages = metadata["packages"].as_array();
    let packages = packages.context("cargo metadata lists no packages")?;
    let mut problems = Vec::new();
    for package in packages {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let name = format!("{} {}", text("name"), text("version"));
        let stated = Release::parse(text("rust_version"));
        if package["source"].is_null() {
            if stated != Some(ours) {
                problems.push(format!(
                    "{name} states another Rust than {MSRV}; it needs `rust-version.workspace = true`"
                ));
            }
        } else if stated > Some(ours) {
            problems.push(format!(
                "{name} needs Rust {}, the workspace promises {MSRV}; `cargo update -p {}` may choose an older \
                 one, or raise rust-version in Cargo.toml",
                text("rust_version"),
                text("name")
            ));
        }
    }
    Ok(problems)
}

/// Makes rustup install the toolchain if it is missing. Fails with the reason if there is none
/// then.
fn provide() -> Result<()> {
    ensure!(
        setup::program_path("rustup").is_some(),
        "there is no rustup"
    );
    let version = rustup(["run", MSRV, "rustc", "--version"]).output();
    if version.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    println!("Rust {MSRV}: the oldest that the workspace promises to build with");
    // `minimal` contains neither clippy nor documentation.
    let mut install = Command::new("timeout");
    install.args([INSTALL_SECONDS, "rustup", "toolchain", "install", MSRV]);
    cargo::run(
        install
            .arg("--profile=minimal")
            .env_remove("RUSTUP_TOOLCHAIN"),
    )
}

/// rustup, without the variable for the toolchain that runs this program.
fn rustup<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = Command::new("rustup");
    command.args(arguments);
    for foreign in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(foreign);
    }
    command
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(source: Option<&str>, rust_version: Option<&str>) -> Vec<String> {
        let package = json!({
            "name": "some", "version": "1.2.3", "source": source, "rust_version": rust_version,
        });
        problems(&json!({ "packages": [package] })).unwrap()
    }

    #[test]
    fn dependency_that_needs_a_later_rust_is_named() {
        let registry = Some("registry+https://example.org/index");
        assert_eq!(of(registry, None), [""; 0]);
        assert_eq!(of(registry, Some("1.56")), [""; 0]);
        assert_eq!(of(registry, Some(MSRV)), [""; 0]);
        let later = of(registry, Some("1.1000.0"));
        assert!(
            later[0].contains("some 1.2.3 needs Rust 1.1000.0"),
            "{later:?}"
        );
    }

    #[test]
    fn package_of_the_workspace_states_the_workspaces_rust() {
        assert_eq!(of(None, Some(MSRV)), [""; 0]);
        for other in [None, Some("1.56")] {
            assert!(of(None, other)[0].contains("rust-version.workspace"));
        }
    }

    #[test]
    fn ebpf_is_compiled_by_no_older_rust() {
        assert_eq!(Release::parse(MSRV), Some(ebpf::Compiler::OLDEST));
    }

    #[test]
    fn metadata_without_packages_is_an_error() {
        assert!(problems(&json!({})).is_err());
    }
}
