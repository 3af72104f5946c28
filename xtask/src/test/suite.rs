//! Test programs, built by cargo all at once, and the tests in them.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::cargo::Workspace;

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Suite {
    /// What cargo calls it: the name of the library, program or file of tests.
    name: String,
    executable: PathBuf,
    /// Directory of its package, where cargo would run it.
    package: PathBuf,
}

impl Suite {
    /// Whether it is one of crate `lb-tests`.
    fn needs_kernel(&self, workspace: &Workspace) -> bool {
        self.package == workspace.root.join("tests")
    }

    /// Reads one message of `cargo test --no-run`; `None` if it is not about a test program.
    fn parse(message: &Value) -> Option<Self> {
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let package = Path::new(message["manifest_path"].as_str()?).parent()?;
        Some(Self {
            name: message["target"]["name"].as_str()?.to_owned(),
            executable: PathBuf::from(message["executable"].as_str()?),
            package: package.to_owned(),
        })
    }

    /// The tests in it, in its order.
    fn tests(self: &Arc<Self>) -> Result<Vec<Test>> {
        let ignored: BTreeSet<_> = self.list(&["--ignored"])?.into_iter().collect();
        let tests = self.list(&[])?.into_iter().map(|path| Test {
            suite: Arc::clone(self),
            ignored: ignored.contains(&path),
            path,
        });
        Ok(tests.collect())
    }

    /// The paths of tests, as the program lists them.
    fn list(&self, arguments: &[&str]) -> Result<Vec<String>> {
        let program = self.executable.display();
        let output = Command::new(&self.executable)
            .args(["--list", "--format=terse"])
            .args(arguments)
            .current_dir(&self.package)
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot run {program}"))?;
        ensure!(
            output.status.success(),
            "{program} does not list its tests ({})",
            output.status
        );
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(listed(&text).map(str::to_owned).collect())
    }
}

/// The tests in a program's list of them.
pub fn listed(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_suffix(": test"))
}

/// Whether the test of that name runs a Kubernetes control plane: one program's tests do.
pub fn needs_control_plane(name: &str) -> bool {
    name.starts_with("control_plane::")
}

/// One test of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    suite: Arc<Suite>,
    /// Its modules and its function, as the program knows it.
    path: String,
    ignored: bool,
}

impl Test {
    /// Its program and its path there: `traffic::singly::all_rules_at_once`.
    pub fn name(&self) -> String {
        format!("{}::{}", self.suite.name, self.path)
    }

    /// Whether it runs a Kubernetes control plane.
    pub fn needs_control_plane(&self) -> bool {
        needs_control_plane(&self.name())
    }

    /// Whether it runs only if somebody insists.
    pub fn is_ignored(&self) -> bool {
        self.ignored
    }

    /// Its program.
    pub fn executable(&self) -> &Path {
        &self.suite.executable
    }

    /// Directory of its package, where cargo would run it.
    pub fn package(&self) -> &Path {
        &self.suite.package
    }

    /// What its program takes to run it and nothing else, without holding back what is printed.
    pub fn arguments(&self) -> [&str; 3] {
        ["--exact", &self.path, "--nocapture"]
    }

    /// Has a command, so far without a program to run, run the test as cargo would.
    pub fn add_to(&self, command: &mut Command) {
        command
            .arg(self.executable())
            .args(self.arguments())
            .current_dir(self.package())
            .env("CARGO_MANIFEST_DIR", self.package());
    }
}

/// The workspace's tests; their programs are built when first asked for.
pub struct Suites<'a> {
    workspace: &'a Workspace,
    /// Parts of names of tests; all tests if there is none.
    only: &'a [String],
    built: Option<Result<Vec<Arc<Suite>>, String>>,
}

impl<'a> Suites<'a> {
    /// The tests that have one of `only` in their names; all if there is none.
    pub fn new(workspace: &'a Workspace, only: &'a [String]) -> Self {
        Self {
            workspace,
            only,
            built: None,
        }
    }

    /// The tests that need neither privilege nor the kernel.
    ///
    /// # Errors
    /// Fails if they do not build; says so again each time. Fails if there is none.
    pub fn unit_tests(&mut self) -> Result<Vec<Test>> {
        self.tests(|suite, workspace| !suite.needs_kernel(workspace))
    }

    /// The tests of crate `lb-tests`.
    ///
    /// # Errors
    /// As for [`Self::unit_tests`].
    pub fn kernel_tests(&mut self) -> Result<Vec<Test>> {
        self.tests(Suite::needs_kernel)
    }

    fn tests(&mut self, wanted: impl Fn(&Suite, &Workspace) -> bool) -> Result<Vec<Test>> {
        let workspace = self.workspace;
        let suites = self
            .built()?
            .iter()
            .filter(|suite| wanted(suite, workspace));
        let tests = suites
            .map(Suite::tests)
            .collect::<Result<Vec<_>>>()?
            .concat();
        ensure!(!tests.is_empty(), "the test programs have no tests");
        let chosen = |test: &Test| {
            let name = test.name();
            self.only.is_empty() || self.only.iter().any(|word| name.contains(word))
        };
        Ok(tests.into_iter().filter(chosen).collect())
    }

    fn built(&mut self) -> Result<&[Arc<Suite>]> {
        let build = || build(self.workspace).map_err(|error| format!("{error:#}"));
        match self.built.get_or_insert_with(build) {
            Ok(suites) => Ok(suites),
            Err(error) => Err(anyhow!("{error}")),
        }
    }
}

fn build(workspace: &Workspace) -> Result<Vec<Arc<Suite>>> {
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
        suites.extend(Suite::parse(&message).map(Arc::new));
    }
    let status = child.wait()?;
    ensure!(status.success(), "the tests do not build ({status})");
    if suites.is_empty() {
        bail!("cargo built no test program");
    }
    suites.sort();
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
        assert_eq!(suite.name, "packets");

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

    #[test]
    fn this_programs_own_tests_are_listed() {
        let suite = Arc::new(Suite {
            name: "xtask".to_owned(),
            executable: std::env::current_exe().unwrap(),
            package: env!("CARGO_MANIFEST_DIR").into(),
        });
        let tests = suite.tests().unwrap();
        let name = format!("{}::this_programs_own_tests_are_listed", module_path!());
        assert!(tests.iter().any(|test| test.name() == name), "{tests:?}");
    }

    #[test]
    fn benchmarks_are_no_tests() {
        let text = "a::b: test\nc: benchmark\nd: test\n";
        assert_eq!(listed(text).collect::<Vec<_>>(), ["a::b", "d"]);
    }
}
