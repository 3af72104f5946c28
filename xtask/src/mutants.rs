//! `cargo xtask mutants`: breaks the code in one place after another, and sees whether a test
//! notices.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use xtask::ebpf;

use crate::{
    cargo::{self, Workspace},
    setup,
};

/// The cargo-mutants that is known to work.
const VERSION: &str = "27.1.0";
/// What people read when something else has failed is left alone.
const EXCLUDED: &str = "impl (fmt::)?(Debug|Display)";

/// Rules that tests of the host have to know by heart.
struct Part {
    name: &'static str,
    files: &'static str,
    /// The packages whose tests are to notice, and which of their tests.
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

/// Sets up and runs cargo-mutants for a [`Part`], with `arguments` for it after the part's name.
/// What it finds goes to `target/mutants.out`.
///
/// # Errors
/// If there is no such part, if cargo-mutants cannot be had or run. Mutants that survive, or tests
/// that fail before anything is broken, are no error; the exit code is cargo-mutants'.
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
        "breaks the code for tests to notice",
    )?;
    // Programs in the kernel are not asked, and building them for each mutant takes longest.
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
