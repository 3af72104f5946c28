//! `cargo xtask mutants`: breaks the code in one place after another, and sees whether a test notices.

use std::{
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, ensure};
use xtask::ebpf::{self, Places};

use crate::{
    cargo::{self, Workspace},
    setup,
};

/// The cargo-mutants that is known to work.
const VERSION: &str = "27.1.0";
/// What is broken unless the arguments name files: the rules.
const FILES: [&str; 2] = ["lb-common/src/**/*.rs", "lb-userspace/src/plan/**/*.rs"];
/// What people read when something else has failed is left alone.
const EXCLUDED: &str = "impl (fmt::)?(Debug|Display)";
/// The packages whose tests are to notice, and which of their tests.
const PACKAGES: [&str; 2] = ["lb-common", "node-lb"];
const TESTS: [&str; 4] = ["--lib", "--test=flows", "--test=pipeline", "--test=planner"];

/// Sets up and runs cargo-mutants, with `arguments` for it. What it finds goes to `target/mutants.out`.
///
/// # Errors
/// If it cannot be had or run, or tests fail before anything is broken. Mutants that survive are no
/// error; the exit code is cargo-mutants'.
pub fn run(workspace: &Workspace, arguments: &[String]) -> Result<ExitCode> {
    setup::run(workspace, &[])?;
    let program = install()?;
    // Programs in the kernel are not asked, and building them for each mutant takes longest.
    let object = ebpf::build_object(&workspace.root, &workspace.target, ebpf::PROGRAMS)?;
    let chosen = |argument: &String| argument == "-f" || argument.starts_with("--file");
    let files = match arguments.iter().any(chosen) {
        true => Vec::new(),
        false => FILES.map(|glob| format!("--file={glob}")).to_vec(),
    };
    let status = Command::new(program)
        .arg("mutants")
        .current_dir(&workspace.root)
        .args(files)
        .arg(format!("--exclude-re={EXCLUDED}"))
        .args(PACKAGES.map(|package| format!("--test-package={package}")))
        .args(["--profile", "mutants", "--output"])
        .arg(&workspace.target)
        .args(arguments)
        .arg("--")
        .args(TESTS)
        .env(ebpf::OBJECT_VARIABLE, object)
        .status()
        .context("cannot run cargo-mutants")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The program, built first if it is not there.
fn install() -> Result<PathBuf> {
    let root = Places::from_env()
        .cache
        .join(format!("cargo-mutants-{VERSION}"));
    let program = root.join("bin/cargo-mutants");
    if !program.is_file() {
        println!("cargo-mutants {VERSION}: breaks the code for tests to notice");
        cargo::run(&mut cargo::install("cargo-mutants", VERSION, &root))?;
        ensure!(program.is_file(), "{} is not there", program.display());
    }
    Ok(program)
}
