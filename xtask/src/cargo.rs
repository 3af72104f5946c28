//! The workspace and the cargo that builds it for the host.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use xtask::ebpf;

use crate::architecture::Architecture;

/// Where the sources are and where builds go.
#[derive(Clone, Debug)]
pub struct Workspace {
    pub root: PathBuf,
    pub target: PathBuf,
}

impl Workspace {
    /// The workspace this program was built in.
    pub fn locate() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let root = root
            .canonicalize()
            .with_context(|| format!("the workspace {} is gone; rebuild xtask", root.display()))?;
        let program = env::current_exe().context("cannot tell where xtask itself is")?;
        let target =
            ebpf::target_directory(&program).map_or_else(|| root.join("target"), Path::to_owned);
        Ok(Self { root, target })
    }

    /// A cargo command of the host's toolchain, in the workspace.
    pub fn cargo<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Command {
        let mut command = host_cargo();
        command.current_dir(&self.root).args(arguments);
        command
    }

    /// A cargo command that builds for an architecture, which need not be this machine's.
    pub fn cargo_for<I: AsRef<OsStr>>(
        &self,
        architecture: Architecture,
        arguments: impl IntoIterator<Item = I>,
    ) -> Command {
        let mut command = self.cargo(arguments);
        if !architecture.is_here() {
            let target = architecture.target();
            let variable = target.to_uppercase().replace('-', "_");
            command.args(["--target", &target]).env(
                format!("CARGO_TARGET_{variable}_LINKER"),
                architecture.tool("gcc"),
            );
        }
        command
    }

    /// Where its builds go.
    pub fn built(&self, architecture: Architecture, profile: &str) -> PathBuf {
        match architecture.is_here() {
            true => self.target.join(profile),
            false => self.target.join(architecture.target()).join(profile),
        }
    }

    /// Runs cargo with its output shown.
    pub fn run_cargo<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Result<()> {
        run(&mut self.cargo(arguments))
    }
}

/// Builds a published program for this machine into `root`, whatever target the user builds for.
pub fn install(name: &str, version: &str, root: &Path) -> Command {
    let mut command = host_cargo();
    command
        .args(["install", name, "--locked", "--version", version])
        .arg("--root")
        .arg(root);
    for foreign in ["RUSTFLAGS", "CARGO_BUILD_TARGET", "CARGO_TARGET_DIR"] {
        command.env_remove(foreign);
    }
    command
}

/// A published program of that version. If it is not in the cache directory, it is built there
/// first, with these `options` of cargo; `purpose` says why it is wanted. It is not optimized: it runs for seconds, and
/// would be for minutes.
///
/// # Errors
/// If it does not build.
pub fn provide(name: &str, version: &str, options: &[&str], purpose: &str) -> Result<PathBuf> {
    let root = ebpf::Places::from_env()
        .cache
        .join(format!("{name}-{version}"));
    let program = root.join("bin").join(name);
    if !program.is_file() {
        println!("{name} {version}: {purpose}");
        let mut install = install(name, version, &root);
        install.arg("--debug").args(options);
        run(install.env("CARGO_PROFILE_DEV_DEBUG", "0"))?;
        ensure!(program.is_file(), "{} is not there", program.display());
    }
    Ok(program)
}

/// The cargo that runs this program, without the variables that `cargo run` adds: build scripts
/// that watch them would run again whenever they change.
pub fn host_cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let added = [
        "CARGO_MANIFEST_",
        "CARGO_PKG_",
        "CARGO_BIN_",
        "CARGO_CRATE_",
        "CARGO_PRIMARY_",
    ];
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text == "CARGO" || added.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command with its output shown.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    ensure!(status.success(), "{} failed ({status})", describe(command));
    Ok(())
}

/// A command in the form in which one would type it.
pub fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(program.as_os_str());
    let words = [program]
        .into_iter()
        .chain(command.get_args())
        .map(OsStr::to_string_lossy);
    words.collect::<Vec<_>>().join(" ")
}
