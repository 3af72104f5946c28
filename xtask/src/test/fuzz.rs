//! Runs each fuzz target for a short time. libFuzzer is guided by coverage, which any Rust can
//! record: neither nightly nor cargo-fuzz is needed.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, ensure};

use super::outcome::Outcome;
use crate::cargo::Workspace;

/// How long each target runs, in seconds.
const SECONDS: u32 = 15;

/// Flags that record coverage for libFuzzer, and that catch arithmetic overflows.
const FLAGS: [&str; 10] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Cdebug-assertions",
    "-Copt-level=1",
    "-Coverflow-checks",
];

/// The crates that are built with [`FLAGS`], besides the targets: those that the inputs go to. The
/// agent, which fills the tables first, and the model are built as usual, which takes minutes less.
/// Their dependencies are those of the other tests.
const CRATES: [&str; 4] = ["lb_admission", "lb_common", "lb_datapath", "lb_objects"];

/// Set for the compiler's wrapper: the names of the targets.
const TARGETS_VARIABLE: &str = "NODE_LB_FUZZ_TARGETS";

/// Builds all targets in `fuzz/fuzz_targets`, and runs them at the same time.
///
/// # Errors
///
/// If they cannot be built or run. A finding is a failed test; libFuzzer names its input.
pub fn run(workspace: &Workspace) -> Result<Vec<Outcome>> {
    let sources = workspace.root.join("fuzz");
    let targets = targets(workspace)?;
    let programs = build(workspace, &targets)?;
    let directory = workspace.target.join("fuzz");
    let run = |target: &String| {
        let corpus = directory.join("corpus").join(target);
        let found = directory.join("found").join(target);
        for directory in [&corpus, &found] {
            fs::create_dir_all(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let mut command = Command::new(programs.join(target));
        command
            .arg(format!("-max_total_time={SECONDS}"))
            .arg(format!("-artifact_prefix={}/", found.display()))
            .args(["-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1"])
            .args([corpus, sources.join("seeds").join(target)]);
        let start = Instant::now();
        let output = command.stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot run {target}"))?;
        let outcome = Outcome::ended(
            format!("fuzz {target}"),
            output.status.success(),
            start.elapsed(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        outcome.show(false);
        Ok(outcome)
    };
    thread::scope(|scope| {
        let runs: Vec<_> = targets
            .iter()
            .map(|target| scope.spawn(|| run(target)))
            .collect();
        let outcomes = runs.into_iter().map(|run| run.join().expect("no panic"));
        outcomes.collect::<Result<Vec<_>>>()
    })
}

/// Builds the targets, and returns the directory that contains them.
fn build(workspace: &Workspace, targets: &[String]) -> Result<PathBuf> {
    // A copy, because cargo may have replaced this program's file since it was started.
    let wrapper = workspace.target.join("fuzz/rustc-with-coverage");
    fs::create_dir_all(workspace.target.join("fuzz"))
        .and_then(|()| fs::copy("/proc/self/exe", &wrapper))
        .with_context(|| format!("cannot copy xtask to {}", wrapper.display()))?;
    // All packages and a test, so that dependencies have the same features as for the other tests.
    let packages = [
        "xtask",
        "lb-admission",
        "lb-common",
        "lb-datapath",
        "lb-objects",
        "lb-oracle",
        "lb-packet",
        "node-lb",
        "lb-bench",
        "lb-tests",
        "lb-vectors",
        "node-lb-fuzz",
    ];
    let mut cargo = workspace.cargo(["build", "--test", "toolchain_choice"]);
    cargo
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .args(targets.iter().flat_map(|target| ["--bin", target]));
    cargo
        .env("RUSTC_WORKSPACE_WRAPPER", wrapper)
        .env(TARGETS_VARIABLE, targets.join(","));
    crate::cargo::run(&mut cargo)?;
    Ok(workspace.target.join("debug"))
}

/// If cargo calls this program instead of the compiler, as [`build`] arranges: runs the compiler,
/// with more flags for the crates that are fuzzed. `None` if it is not called like that.
pub fn as_compiler() -> Option<Result<ExitCode>> {
    let targets = env::var(TARGETS_VARIABLE).ok()?;
    let mut arguments = env::args_os().skip(1);
    let mut rustc = Command::new(arguments.next()?);
    let arguments: Vec<_> = arguments.collect();
    let name = arguments
        .windows(2)
        .find(|pair| pair[0] == "--crate-name")
        .and_then(|pair| pair[1].to_str());
    let fuzzed = |name: &str| CRATES.contains(&name) || targets.split(',').any(|t| t == name);
    rustc.args(&arguments);
    if name.is_some_and(fuzzed) {
        rustc.args(FLAGS);
    }
    let status = rustc.status().context("cannot run rustc");
    Some(status.map(|status| match status.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }))
}

/// The names of all targets, in order.
///
/// # Errors
///
/// If there is none.
pub fn targets(workspace: &Workspace) -> Result<Vec<String>> {
    let directory = workspace.root.join("fuzz/fuzz_targets");
    let entries =
        fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let sources = entries.flatten().map(|entry| entry.path());
    let mut names: Vec<_> = sources
        .filter(|path| path.extension() == Some(OsStr::new("rs")))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    ensure!(!names.is_empty(), "{} is empty", directory.display());
    Ok(names)
}
