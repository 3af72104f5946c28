//! Test programs: built by cargo all at once, then run one by one as each needs.

use std::{
    io::{BufRead, BufReader, Read, Write, stdout},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;
use xtask::ebpf::Places;

use super::tally::Tally;
use crate::{
    cargo::{Workspace, describe},
    privilege::Privilege,
};

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suite {
    executable: PathBuf,
    /// Directory of its package, where cargo would run it.
    package: PathBuf,
    /// Package and target.
    name: String,
}

impl Suite {
    /// Whether it is one of crate `lb-tests`.
    pub fn needs_kernel(&self, workspace: &Workspace) -> bool {
        self.package == workspace.root.join("tests")
    }

    /// Whether it is the test `name` of crate `lb-tests`.
    pub fn is_test(&self, name: &str) -> bool {
        self.name == format!("tests (test {name})")
    }

    /// Package and target.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its file.
    pub fn executable(&self) -> &Path {
        &self.executable
    }

    /// Directory of its package, where cargo would run it.
    pub fn package(&self) -> &Path {
        &self.package
    }

    /// Reads one message of `cargo test --no-run`; `None` if it is not about a test program.
    fn parse(message: &Value) -> Option<Self> {
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let package = Path::new(message["manifest_path"].as_str()?).parent()?;
        let target = &message["target"];
        let kind = target["kind"][0].as_str()?;
        let directory = package.file_name()?.to_string_lossy();
        Some(Self {
            executable: PathBuf::from(message["executable"].as_str()?),
            package: package.to_owned(),
            name: format!("{directory} ({kind} {})", target["name"].as_str()?),
        })
    }
}

/// The workspace's test programs, built when first asked for.
pub struct Suites<'a> {
    workspace: &'a Workspace,
    built: Option<Result<Vec<Suite>, String>>,
}

impl<'a> Suites<'a> {
    pub fn new(workspace: &'a Workspace) -> Self {
        Self {
            workspace,
            built: None,
        }
    }

    /// # Errors
    /// Fails if they do not build; says so again each time.
    pub fn built(&mut self) -> Result<&[Suite]> {
        let build = || build(self.workspace).map_err(|error| format!("{error:#}"));
        match self.built.get_or_insert_with(build) {
            Ok(suites) => Ok(suites),
            Err(error) => Err(anyhow!("{error}")),
        }
    }
}

/// How test programs are run.
#[derive(Clone, Copy, Debug)]
pub enum Manner {
    /// Tests of one program beside each other.
    Parallel,
    /// One test at a time: they share the kernel and the machine's time.
    AloneAsRoot(Privilege),
}

/// Runs all of `suites`, whatever fails.
pub fn run_all<'s>(suites: impl Iterator<Item = &'s Suite>, manner: Manner) -> Result<Tally> {
    let tallies = suites.map(|suite| {
        let mut command = match manner {
            Manner::Parallel => Command::new(&suite.executable),
            Manner::AloneAsRoot(privilege) => {
                let mut command = privilege.command(&suite.executable);
                command.arg("--test-threads=1");
                // root may have another home.
                let programs = Places::from_env().cluster_programs();
                command.env("NODE_LB_CLUSTER_BIN", programs);
                command
            }
        };
        println!("\n{}", suite.name);
        let command = command.current_dir(&suite.package);
        run_named(
            &suite.name,
            command.env("CARGO_MANIFEST_DIR", &suite.package),
        )
    });
    tallies.sum()
}

/// Runs one command that runs tests.
pub fn run(command: &mut Command) -> Result<Tally> {
    run_named(&describe(command), command)
}

/// Shows the output as it comes and counts the results in it.
fn run_named(name: &str, command: &mut Command) -> Result<Tally> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let mut pipe = child
        .stdout
        .take()
        .context("the test program has no standard output")?;
    let mut output = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let length = pipe
            .read(&mut chunk)
            .with_context(|| format!("cannot read from {name}"))?;
        if length == 0 {
            break;
        }
        output.extend_from_slice(&chunk[..length]);
        stdout().write_all(&chunk[..length])?;
        stdout().flush()?;
    }
    let status = child.wait()?;
    Ok(Tally::of_program(
        name,
        &String::from_utf8_lossy(&output),
        status.success(),
    ))
}

fn build(workspace: &Workspace) -> Result<Vec<Suite>> {
    let mut command = workspace.cargo([
        "test",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo")?;
    let pipe = child
        .stdout
        .take()
        .context("cargo has no standard output")?;
    let mut suites = Vec::new();
    for line in BufReader::new(pipe).lines() {
        let message = serde_json::from_str(&line?).context("cannot read what cargo says")?;
        suites.extend(Suite::parse(&message));
    }
    let status = child.wait()?;
    ensure!(status.success(), "the tests do not build ({status})");
    if suites.is_empty() {
        bail!("cargo built no test program");
    }
    suites.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(suites)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn artifact() -> Value {
        json!({
            "reason": "compiler-artifact",
            "manifest_path": "/src/tests/Cargo.toml",
            "target": { "kind": ["test"], "name": "packets" },
            "profile": { "test": true },
            "executable": "/src/target/debug/deps/packets-1",
        })
    }

    #[test]
    fn test_programs_are_told_from_other_artifacts() {
        let suite = Suite::parse(&artifact()).unwrap();
        assert_eq!(
            suite.executable,
            Path::new("/src/target/debug/deps/packets-1")
        );
        assert_eq!(suite.name, "tests (test packets)");

        let mut library = artifact();
        library["profile"]["test"] = json!(false);
        assert_eq!(Suite::parse(&library), None);
        let mut other = artifact();
        other["reason"] = json!("build-finished");
        assert_eq!(Suite::parse(&other), None);
    }

    #[test]
    fn kernel_tests_are_those_of_the_tests_package() {
        let workspace = Workspace {
            root: "/src".into(),
            target: "/src/target".into(),
        };
        let mut suite = Suite::parse(&artifact()).unwrap();
        assert!(suite.needs_kernel(&workspace));
        suite.package = "/src/lb-common".into();
        assert!(!suite.needs_kernel(&workspace));
    }
}
