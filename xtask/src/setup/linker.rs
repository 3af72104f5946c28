//! Provides a bpf-linker.

use std::{env, fs, path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use xtask::ebpf::{Compiler, Linker};

use super::{Installer, on_path};
use crate::cargo;

/// Builds a linker that reads the output of `compiler`. If the distribution has no LLVM for that,
/// downloads one.
pub fn install(installer: &mut Installer, compiler: &Compiler) -> Result<()> {
    let release = Linker::PINNED;
    println!("  bpf-linker {release}: links what {compiler} compiles for eBPF");
    let fitting = |llvm: &u32| *llvm >= compiler.llvm;
    for llvm in Linker::LLVM_VERSIONS.into_iter().filter(fitting) {
        if has_llvm(llvm) || installer.apt.candidate(&llvm_package(llvm)).is_some() {
            return build(installer, llvm);
        }
    }
    ensure!(
        Linker::PUBLISHED_LLVM >= compiler.llvm,
        "bpf-linker {release} cannot read what {compiler} emits"
    );
    download(installer).with_context(|| {
        let llvm = compiler.llvm;
        format!("no package has LLVM {llvm} or later to build bpf-linker on")
    })
}

fn build(installer: &mut Installer, llvm: u32) -> Result<()> {
    if !has_llvm(llvm) {
        let llvm = llvm_package(llvm);
        println!("  {llvm}: what bpf-linker is built on");
        let packages = [&llvm, "libzstd-dev", "zlib1g-dev", "libxml2-dev"];
        installer.apt.install(&packages)?;
    }
    let prefix = Path::new("/usr/lib").join(format!("llvm-{llvm}"));
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(
        [prefix.join("bin")]
            .into_iter()
            .chain(env::split_paths(&path)),
    )?;
    let release = Linker::PINNED.to_string();
    let root = installer.places.linker_root(Some(llvm));
    let mut command = cargo::install("bpf-linker", &release, &root);
    command
        .args(["--no-default-features", "--features"])
        .arg(format!("llvm-{llvm}"))
        .env("LLVM_PREFIX", prefix)
        .env("PATH", path);
    let title = format!("building bpf-linker {release} with LLVM {llvm}");
    installer.steps.run(&title, &mut command)
}

/// Downloads the binary that bpf-linker's authors publish.
fn download(installer: &mut Installer) -> Result<()> {
    let programs = ["curl", "zstd", "tar"].into_iter();
    let missing: Vec<_> = programs.filter(|program| !on_path(program)).collect();
    installer.apt.install(&missing)?;

    let bin = installer.places.linker_root(None).join("bin");
    fs::create_dir_all(&bin).with_context(|| format!("cannot make {}", bin.display()))?;
    let archive = bin.with_file_name("bpf-linker.tar.zst");
    let url = format!(
        "https://github.com/aya-rs/bpf-linker/releases/download/v{}/\
         bpf-linker-{}-unknown-linux-musl.tar.zst",
        Linker::PINNED,
        env::consts::ARCH
    );
    let mut curl = Command::new("curl");
    curl.args(["--fail", "--location", "--silent", "--show-error"])
        .args(["--max-time", "300", "--output"])
        .arg(&archive)
        .arg(url);
    installer.steps.run("downloading bpf-linker", &mut curl)?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--zstd", "--file"]).arg(&archive);
    tar.arg("--directory").arg(&bin);
    installer.steps.run("unpacking bpf-linker", &mut tar)?;
    let linker = bin.join("bpf-linker");
    let runs = Linker::at(&linker).is_some();
    ensure!(runs, "{} does not run as bpf-linker", linker.display());
    Ok(())
}

fn llvm_package(version: u32) -> String {
    format!("llvm-{version}-dev")
}

/// Whether the contents of that package are installed.
fn has_llvm(version: u32) -> bool {
    let prefix = Path::new("/usr/lib").join(format!("llvm-{version}"));
    let files = ["bin/llvm-config", "include/llvm-c/Core.h"];
    files.iter().all(|file| prefix.join(file).exists())
}
