//! `cargo xtask setup`: makes a Debian or Ubuntu machine with only Rust ready.

mod apt;
pub mod cluster;
mod compiler;
mod go;
pub mod kernels;
mod linker;
mod prometheus;
mod toolchain;
mod tools;
pub mod userland;

use std::{env, path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};
use xtask::ebpf::{Places, Tools};

pub use self::toolchain::has_library as can_build_for;
use self::{apt::Apt, cluster::Extent, kernels::Series, userland::Userland};
use crate::{architecture::Architecture, cargo::Workspace, step::Steps};

/// What the caller is about to do, besides building.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Check how the code is written.
    Lint,
    /// Run the lab.
    Lab,
    /// Look at the status page in a browser.
    Browser,
    /// Run a Kubernetes control plane in the lab, and what watches it.
    ControlPlane,
    /// Compare with other balancers.
    Peers,
    /// Build with the parts that libFuzzer needs.
    Fuzz,
    /// Build for an architecture that is not this machine's.
    Cross(Architecture),
    /// Make file systems for guests, whatever kernel they have.
    Guests,
    /// Boot kernels of an architecture.
    Kernels(Architecture),
    /// Run a whole Kubernetes cluster.
    Cluster,
    /// Run one whose pods' network is Flannel.
    Flannel,
}

impl Need {
    /// The needs of the tests that CI runs.
    pub const TESTS: [Self; 7] = [
        Self::Lint,
        Self::Lab,
        Self::Browser,
        Self::ControlPlane,
        Self::Fuzz,
        Self::Guests,
        Self::Kernels(Architecture::Amd64),
    ];
}

/// Installs what is missing for building and for `needs`. Returns the tools for eBPF.
///
/// # Errors
/// Says what could not be installed and how to do it by hand.
pub fn run(workspace: &Workspace, needs: &[Need]) -> Result<Tools> {
    let places = Places::from_env();
    let tools = Tools::find(&places);
    let missing = tools::missing(needs);
    let lint = needs.contains(&Need::Lint);
    let components = match lint {
        true => missing_components(),
        false => Vec::new(),
    };
    let targets = needs.iter().filter_map(|need| match need {
        Need::Cross(architecture) => {
            Some(*architecture).filter(|other| !toolchain::has_library(*other))
        }
        _ => None,
    });
    let targets: Vec<_> = targets.collect();
    let guests = needs.iter().filter_map(|need| match need {
        Need::Kernels(architecture) => Some(Guests::missing(&places, *architecture)),
        _ => None,
    });
    let guests: Vec<_> = guests.collect();
    let extent = [
        (Need::Flannel, Extent::WithFlannel),
        (Need::Cluster, Extent::Whole),
        (Need::ControlPlane, Extent::ControlPlane),
    ];
    let extent = extent.iter().find(|(need, _)| needs.contains(need));
    let extent = extent.map(|(_, extent)| *extent);
    let extent = extent.filter(|extent| cluster::is_missing(workspace, &places, *extent));
    let monitored = needs.contains(&Need::ControlPlane) && prometheus::is_missing(&places);
    let complete = |tools: &Tools| !lint || tools.compiler.clippy().is_file();
    let nothing_else = missing.is_empty()
        && components.is_empty()
        && targets.is_empty()
        && guests.iter().all(Guests::is_complete)
        && extent.is_none()
        && !monitored;
    let tools = match tools {
        Ok(tools) if nothing_else && complete(&tools) => return Ok(tools),
        tools => tools.ok(),
    };

    let log = workspace.target.join("setup.log");
    println!(
        "Setting up this machine for node-lb (details in {}):",
        log.display()
    );
    let steps = Steps::new(log)?;
    let apt = Apt::new(&steps);
    let mut installer = Installer {
        steps: &steps,
        apt,
        places,
    };
    tools::install(&mut installer.apt, &missing)?;
    add_components(&steps, &components)?;
    for architecture in targets {
        toolchain::add_target(&steps, architecture);
    }
    for guests in &guests {
        guests.fetch(&mut installer)?;
    }
    if monitored {
        prometheus::fetch(&mut installer.apt, &installer.places)?;
    }
    if let Some(extent) = extent {
        cluster::build(&mut installer, workspace, extent)?;
    }
    let tools = match tools {
        Some(tools) => tools,
        None => toolchain::install(&mut installer)?,
    };
    if !complete(&tools) {
        compiler::install_clippy(&mut installer, &tools.compiler)?;
    }
    Ok(tools)
}

/// What is needed to install anything.
struct Installer<'a> {
    steps: &'a Steps,
    apt: Apt<'a>,
    places: Places,
}

/// What guests of an architecture lack.
struct Guests {
    architecture: Architecture,
    kernels: Vec<Series>,
    /// Whether the programs are missing; this machine's own are there.
    programs: bool,
}

impl Guests {
    fn missing(places: &Places, architecture: Architecture) -> Self {
        let is_foreign = !architecture.is_here();
        Self {
            architecture,
            kernels: kernels::missing(places, architecture),
            programs: is_foreign && Userland::find(places, architecture).is_none(),
        }
    }

    fn is_complete(&self) -> bool {
        self.kernels.is_empty() && !self.programs
    }

    fn fetch(&self, installer: &mut Installer) -> Result<()> {
        let (steps, places) = (installer.steps, &installer.places);
        if self.architecture.is_here() {
            return kernels::fetch(steps, &mut installer.apt, places, &self.kernels);
        }
        if self.is_complete() {
            return Ok(());
        }
        let lists = places.cache.join("apt").join(self.architecture.debian());
        let mut apt = Apt::foreign(steps, self.architecture, &lists)?;
        kernels::fetch(steps, &mut apt, places, &self.kernels)?;
        if self.programs {
            userland::fetch(&mut apt, places, self.architecture)?;
        }
        Ok(())
    }
}

/// Whether a command can be run.
fn on_path(command: &str) -> bool {
    program_path(command).is_some()
}

/// The file of a command. System directories are searched even if a user's PATH lacks them.
pub fn program_path(command: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(system)
        .map(|directory| directory.join(command))
        .find(|path| path.is_file())
}

/// Parts of the host's Rust toolchain that `cargo xtask test` calls and that are missing.
fn missing_components() -> Vec<&'static str> {
    let works = |subcommand: &str| {
        let output = crate::cargo::host_cargo()
            .args([subcommand, "--version"])
            .output();
        output.is_ok_and(|output| output.status.success())
    };
    [("fmt", "rustfmt"), ("clippy", "clippy")]
        .into_iter()
        .filter(|(subcommand, _)| !works(subcommand))
        .map(|(_, component)| component)
        .collect()
}

fn add_components(steps: &Steps, components: &[&str]) -> Result<()> {
    if components.is_empty() {
        return Ok(());
    }
    let list = components.join(" ");
    if !on_path("rustup") {
        bail!("this Rust has no {list}; install the packages your distribution has them in");
    }
    let mut command = Command::new("rustup");
    command.args(["component", "add"]).args(components);
    steps
        .run(
            &format!("adding {list} to the Rust toolchain"),
            &mut command,
        )
        .with_context(|| format!("run `rustup component add {list}` where that works"))
}
