//! Test programs, which cargo builds all at once, and the tests in them.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use super::{guest, stage::Stage};
use crate::{architecture::Architecture, cargo::Workspace};

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Suite {
    /// Its name in cargo: that of the library, program or file of tests.
    name: String,
    executable: PathBuf,
    /// The directory of its package, in which cargo would run it.
    package: PathBuf,
    architecture: Architecture,
}

impl Suite {
    /// Whether it belongs to crate `lb-tests`.
    fn needs_kernel(&self, workspace: &Workspace) -> bool {
        self.package == workspace.root.join("tests")
    }

    /// Reads one message of `cargo test --no-run`; `None` if it is not about a test program.
    fn parse(message: &Value, architecture: Architecture) -> Option<Self> {
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let package = Path::new(message["manifest_path"].as_str()?).parent()?;
        Some(Self {
            name: message["target"]["name"].as_str()?.to_owned(),
            executable: PathBuf::from(message["executable"].as_str()?),
            package: package.to_owned(),
            architecture,
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

    /// The paths of tests, as the program prints them.
    fn list(&self, arguments: &[&str]) -> Result<Vec<String>> {
        let program = self.executable.display();
        let output = self
            .architecture
            .command(&self.executable)
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

/// Whether the test with this name runs a Kubernetes control plane. The tests of one program do.
pub fn needs_control_plane(name: &str) -> bool {
    name.starts_with("control_plane::")
}

/// One test of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    suite: Arc<Suite>,
    /// Its modules and its function, as in the program.
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

    /// Whether it looks at the status page in a browser.
    pub fn needs_browser(&self) -> bool {
        self.name().starts_with("trouble::page::")
    }

    /// Whether it runs the container image.
    pub fn needs_image(&self) -> bool {
        self.suite.name == "image"
    }

    /// Whether it runs an older version of the agent.
    pub fn needs_older(&self) -> bool {
        self.path.starts_with("versions::") || self.path.contains("::an_older_version_")
    }

    /// Whether it runs only on explicit request.
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

    /// Arguments with which its program runs only this test, without capturing its output.
    pub fn arguments(&self) -> [&str; 3] {
        ["--exact", &self.path, "--nocapture"]
    }

    /// A test of this name without an existing program.
    #[cfg(test)]
    pub fn named(name: &str) -> Self {
        let (program, path) = name.split_once("::").expect("a program and a path");
        Self {
            suite: Arc::new(Suite {
                name: program.to_owned(),
                executable: PathBuf::new(),
                package: PathBuf::new(),
                architecture: Architecture::here(),
            }),
            path: path.to_owned(),
            ignored: false,
        }
    }

    /// Adds arguments and variables to a command without a program yet, so that it runs the test as
    /// cargo would.
    pub fn add_to(&self, command: &mut Command) {
        command
            .arg(self.executable())
            .args(self.arguments())
            .current_dir(self.package())
            .env("CARGO_MANIFEST_DIR", self.package());
    }
}

/// The workspace's tests. Their programs are built when first requested.
pub struct Suites<'a> {
    workspace: &'a Workspace,
    scope: Scope,
    /// Parts of test names; if empty, all tests.
    only: &'a [String],
    built: Option<Result<Vec<Arc<Suite>>, String>>,
}

impl<'a> Suites<'a> {
    /// The tests of `stages` that have one of `only` in their names; all tests if that is empty.
    pub fn new(workspace: &'a Workspace, stages: &[Stage], only: &'a [String]) -> Self {
        Self {
            workspace,
            scope: Scope::of(workspace, stages, only),
            only,
            built: None,
        }
    }

    /// The tests that guests of another architecture choose among.
    pub fn foreign(workspace: &'a Workspace, architecture: Architecture) -> Self {
        Self {
            workspace,
            scope: Scope::Foreign(architecture),
            only: &[],
            built: None,
        }
    }

    /// The tests that need neither privilege nor the kernel.
    ///
    /// # Errors
    /// If they do not build, with the same error each time, or if there are none.
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
        let chosen_programs = matches!(self.scope, Scope::Programs(_));
        let suites = self
            .built()?
            .iter()
            .filter(|suite| wanted(suite, workspace));
        let tests = suites
            .map(Suite::tests)
            .collect::<Result<Vec<_>>>()?
            .concat();
        ensure!(
            chosen_programs || !tests.is_empty(),
            "the test programs have no tests"
        );
        let chosen = |test: &Test| {
            let name = test.name();
            self.only.is_empty() || self.only.iter().any(|word| name.contains(word))
        };
        Ok(tests.into_iter().filter(chosen).collect())
    }

    /// Makes the test programs be built again, with the agent beside them: another build has
    /// replaced it.
    pub fn forget(&mut self) {
        self.built = None;
    }

    fn built(&mut self) -> Result<&[Arc<Suite>]> {
        let build = || build(self.workspace, &self.scope).map_err(|error| format!("{error:#}"));
        match self.built.get_or_insert_with(build) {
            Ok(suites) => Ok(suites),
            Err(error) => Err(anyhow!("{error}")),
        }
    }
}

/// Which test programs are built.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    All,
    /// Those that need neither privilege nor the kernel.
    Unit,
    /// These files of tests, with the programs that tests start.
    Programs(Vec<String>),
    /// Those that guests of another architecture choose among, built for it, with the programs that
    /// tests start there.
    Foreign(Architecture),
}

/// The files of tests that guests of another architecture choose among.
const FOREIGN: [&str; 3] = ["attach", "packets", "traffic"];

/// The packages with tests that need neither privilege nor the kernel, by directory and name.
const UNIT: [(&str, &str); 9] = [
    ("xtask", "xtask"),
    ("lb-common", "lb-common"),
    ("lb-userspace/admission", "lb-admission"),
    ("lb-userspace/datapath", "lb-datapath"),
    ("lb-userspace/objects", "lb-objects"),
    ("lb-userspace/vectors", "lb-vectors"),
    ("lb-userspace", "node-lb"),
    ("tests/packet", "lb-packet"),
    ("tests/bench", "lb-bench"),
];

impl Scope {
    /// The smallest scope that contains all tests of these stages with one of `only` in their
    /// names.
    fn of(workspace: &Workspace, stages: &[Stage], only: &[String]) -> Self {
        // Whatever is before it, `::` ends the name of a program or of a module.
        let programs = only.iter().map(|word| {
            let program = word.split_once("::")?.0;
            is_test_file(workspace, program).then(|| program.to_owned())
        });
        match programs.collect::<Option<Vec<_>>>() {
            Some(programs) if !programs.is_empty() => Self::Programs(programs),
            _ if stages.iter().any(|stage| stage.needs_lab_tests()) => Self::All,
            _ => Self::Unit,
        }
    }

    /// What its programs run on.
    fn architecture(&self) -> Architecture {
        match self {
            Self::Foreign(architecture) => *architecture,
            _ => Architecture::here(),
        }
    }

    /// The arguments for cargo. In every scope everything has the same features, so that nothing is
    /// built twice.
    fn command(&self, workspace: &Workspace) -> Command {
        let mut command = match self {
            Self::All => workspace.cargo(["test", "--no-run"]),
            Self::Unit => {
                let mut command = workspace.cargo(["test", "--no-run"]);
                command.args(UNIT.map(|(_, package)| ["--package", package]).concat());
                command
            }
            Self::Programs(programs) => {
                let mut command = workspace.cargo(["build", "--bins"]);
                command.args(programs.iter().flat_map(|program| ["--test", program]));
                command
            }
            Self::Foreign(architecture) => {
                let mut command = workspace.cargo_for(*architecture, ["build"]);
                command.args(["--package", "node-lb", "--package", "lb-tests"]);
                command.args(guest::PROGRAMS.map(|program| ["--bin", program]).concat());
                command.args(FOREIGN.map(|program| ["--test", program]).concat());
                command
            }
        };
        command.arg("--message-format=json-render-diagnostics");
        command
    }
}

/// Whether a package has a test file or directory of this name.
fn is_test_file(workspace: &Workspace, name: &str) -> bool {
    let directories = UNIT.map(|(directory, _)| directory);
    let mut directories = directories.into_iter().chain(["tests"]);
    directories.any(|directory| {
        let tests = workspace.root.join(directory).join("tests");
        tests.join(format!("{name}.rs")).is_file() || tests.join(name).join("main.rs").is_file()
    })
}

fn build(workspace: &Workspace, scope: &Scope) -> Result<Vec<Arc<Suite>>> {
    let mut command = scope.command(workspace);
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
        suites.extend(Suite::parse(&message, scope.architecture()).map(Arc::new));
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
        let parse = |message: &Value| Suite::parse(message, Architecture::here());
        let suite = parse(&artifact()).unwrap();
        assert_eq!(
            suite.executable,
            Path::new("/src/target/debug/deps/packets-1")
        );
        assert_eq!(suite.name, "packets");

        let mut library = artifact();
        library["profile"]["test"] = json!(false);
        assert_eq!(parse(&library), None);
        let mut other = artifact();
        other["reason"] = json!("build-finished");
        assert_eq!(parse(&other), None);
    }

    #[test]
    fn kernel_tests_are_those_of_the_tests_package() {
        let workspace = Workspace {
            root: "/src".into(),
            target: "/src/target".into(),
        };
        let mut suite = Suite::parse(&artifact(), Architecture::here()).unwrap();
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
            architecture: Architecture::here(),
        });
        let tests = suite.tests().unwrap();
        let name = format!("{}::this_programs_own_tests_are_listed", module_path!());
        assert!(tests.iter().any(|test| test.name() == name), "{tests:?}");
    }

    #[test]
    fn no_more_is_built_than_the_tests_asked_for_need() {
        let workspace = Workspace::locate().unwrap();
        let scope = |stages: &[Stage], only: &[&str]| {
            let only: Vec<_> = only.iter().map(ToString::to_string).collect();
            Scope::of(&workspace, stages, &only)
        };
        let both = [Stage::Unit, Stage::Kernel];
        assert_eq!(scope(&both, &[]), Scope::All);
        assert_eq!(scope(&[Stage::Unit, Stage::Doc], &[]), Scope::Unit);
        assert_eq!(scope(&[Stage::Kernels], &[]), Scope::All);
        let programs = ["traffic", "deploy_manifests"].map(str::to_owned).to_vec();
        let found = scope(&both, &["traffic::access", "deploy_manifests::"]);
        assert_eq!(found, Scope::Programs(programs));
        // Any program may contain such a test or module.
        assert_eq!(scope(&both, &["traffic::access", "access"]), Scope::All);
        assert_eq!(scope(&both, &["access::"]), Scope::All);
    }

    #[test]
    fn benchmarks_are_no_tests() {
        let text = "a::b: test\nc: benchmark\nd: test\n";
        assert_eq!(listed(text).collect::<Vec<_>>(), ["a::b", "d"]);
    }
}
