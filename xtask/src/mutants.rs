//! `cargo xtask mutants`: breaks the code in one place after another, and checks whether a test
//! notices.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use xtask::ebpf;

use crate::{
    cargo::{self, Workspace},
    setup,
};

/// The version of cargo-mutants that is known to work.
const VERSION: &str = "27.1.0";
/// Not mutated, because it only formats messages about other failures.
const EXCLUDED: &str = "impl (fmt::)?(Debug|Display)";

/// A part of the code that tests on the host must cover completely.
struct Part {
    name: &'static str,
    files: &'static str,
    /// The packages with the tests that should notice, and which of their tests.
    packages: &'static [&'static str],
    tests: &'static [&'static str],
}

const PARTS: [Part; 2] = [
    Part {
        name: "planner",
        files: "lb-userspace/src/plan/**/*.rs",
        packages: &["node-lb"],
        tests: &["--lib", "--test=planner", "--test=commands"],
    },
    Part {
        name: "lb-common",
        files: "lb-common/src/**/*.rs",
        packages: &["lb-common", "node-lb"],
        tests: &["--lib", "--test=flows", "--test=pipeline"],
    },
];

/// Sets up cargo-mutants and runs it for a [`Part`], with the `arguments` after the part's name.
/// Results are in `target/mutants.out`.
///
/// # Errors
/// If there is no such part, or cargo-mutants cannot be installed or run. It is no error if mutants
/// survive, or if tests fail before anything is broken; the exit code is cargo-mutants'.
pub fn run(workspace: &Workspace, arguments: &[String]) -> Result<ExitCode> {
    let part = arguments.split_first().and_then(|(name, rest)| {
        let part = PARTS.iter().find(|part| part.name == name)?;
        Some((part, rest))
    });
    let (part, arguments) = part
        .with_context(|| format!("say which part: {}", PARTS.map(|part| part.name).join(", ")))?;
    setup::run(workspace, &[])?;
    let program = cargo::provide(
        "cargo-mutants",
        VERSION,
        &[],
        "breaks the code for tests to notice",
    )?;
    // Programs in the kernel are not tested here, and building them for each mutant would take
    // longest.
    let object = ebpf::build_object(&workspace.root, &workspace.target, ebpf::PROGRAMS)?;
    let chosen = |argument: &String| argument == "-f" || argument.starts_with("--file");
    let files = match arguments.iter().any(chosen) {
        true => None,
        false => Some(format!("--file={}", part.files)),
    };
    let packages = part.packages.iter();
    let status = Command::new(program)
        .arg("mutants")
        .current_dir(&workspace.root)
        .args(files)
        .arg(format!("--exclude-re={EXCLUDED}"))
        .args(packages.map(|package| format!("--test-package={package}")))
        .args(["--profile", "mutants", "--output"])
        .arg(&workspace.target)
        .args(arguments)
        .arg("--")
        .args(part.tests)
        .env(ebpf::OBJECT_VARIABLE, object)
        .status()
        .context("cannot run cargo-mutants")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
