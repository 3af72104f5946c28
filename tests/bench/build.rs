//! Puts the benchmark's own eBPF object where the benchmark embeds it: at `$OUT_DIR/harness`.

use std::{env, fs, path::PathBuf};

use anyhow::{Context, Result};
use xtask::ebpf;

/// The sources of the object, relative to the workspace.
const SOURCES: [&str; 8] = [
    "lb-ebpf/Cargo.toml",
    "lb-ebpf/src/harness",
    "lb-common/Cargo.toml",
    "lb-common/src/harness.rs",
    "lb-common/src/packet.rs",
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

    let embedded = out.join("harness");
    if env::var_os(ebpf::OBJECT_VARIABLE).is_some_and(|path| !path.is_empty()) {
        // No eBPF toolchain is needed then. The benchmark reports that it was built without one.
        return fs::write(&embedded, []).context("cannot write the build script's directory");
    }
    for source in SOURCES {
        println!(
            "cargo::rerun-if-changed={}",
            workspace.join(source).display()
        );
    }
    let target = ebpf::target_directory(&out).unwrap_or(&out);
    let object = ebpf::build_object(&workspace, target, ebpf::HARNESS)?;
    fs::copy(&object, &embedded)
        .with_context(|| format!("cannot copy the eBPF object {}", object.display()))?;
    ebpf::strip_debug_info(&embedded);
    Ok(())
}

/// A directory that cargo names to every build script.
fn directory(variable: &str) -> Result<PathBuf> {
    env::var_os(variable)
        .map(PathBuf::from)
        .with_context(|| format!("{variable} is not set"))
}
