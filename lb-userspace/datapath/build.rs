//! Puts the eBPF object where the agent embeds it: at `$OUT_DIR/lb`.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use xtask::ebpf;

/// The sources of the object, relative to the workspace.
const SOURCES: [&str; 7] = [
    "lb-ebpf/Cargo.toml",
    "lb-ebpf/src",
    "lb-common/Cargo.toml",
    "lb-common/src",
    "Cargo.toml",
    "Cargo.lock",
    ".cargo/config.toml",
];

fn main() -> Result<()> {
    let workspace = directory("CARGO_MANIFEST_DIR")?
        .join("../..")
        .canonicalize()?;
    let out = directory("OUT_DIR")?;
    println!("cargo::rerun-if-env-changed={}", ebpf::OBJECT_VARIABLE);
    println!("cargo::rerun-if-env-changed={}", ebpf::TOOLCHAIN_VARIABLE);

    let object = match env::var_os(ebpf::OBJECT_VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => prebuilt(PathBuf::from(path))?,
        None => build(&workspace, ebpf::target_directory(&out).unwrap_or(&out))?,
    };
    let embedded = out.join("lb");
    fs::copy(&object, &embedded).with_context(|| {
        format!(
            "cannot copy the eBPF object {} to {}",
            object.display(),
            embedded.display()
        )
    })?;
    ebpf::strip_debug_info(&embedded);
    Ok(())
}

fn build(workspace: &Path, target: &Path) -> Result<PathBuf> {
    for source in SOURCES {
        println!(
            "cargo::rerun-if-changed={}",
            workspace.join(source).display()
        );
    }
    ebpf::build_object(workspace, target, ebpf::PROGRAMS)
}

/// An object that was built elsewhere, for machines that cannot have the toolchain.
fn prebuilt(path: PathBuf) -> Result<PathBuf> {
    println!("cargo::rerun-if-changed={}", path.display());
    path.canonicalize().with_context(|| {
        format!(
            "{} names {}, which cannot be read",
            ebpf::OBJECT_VARIABLE,
            path.display()
        )
    })
}

/// A directory that cargo names to every build script.
fn directory(variable: &str) -> Result<PathBuf> {
    env::var_os(variable)
        .map(PathBuf::from)
        .with_context(|| format!("{variable} is not set"))
}
