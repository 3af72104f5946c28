//! `cargo xtask setup`: makes a Debian or Ubuntu machine with only Rust ready.

mod apt;
mod compiler;
mod linker;
mod toolchain;

use std::{env, path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};
use xtask::ebpf::{Places, Tools};

use self::apt::Apt;
use crate::{cargo::Workspace, step::Steps};

/// A program that building, tests or the lab call.
struct Tool {
    command: &'static str,
    /// Packages that have it, by preference; distributions name them differently.
    packages: &'static [&'static str],
    purpose: &'static str,
}

static TOOLS: [Tool; 8] = [
    Tool {
        command: "ip",
        packages: &["iproute2"],
        purpose: "network namespaces, devices and routes of the lab",
    },
    Tool {
        command: "bpftool",
        packages: &["bpftool", "linux-tools-generic"],
        purpose: "shows loaded programs and maps",
    },
    Tool {
        command: "nft",
        packages: &["nftables"],
        purpose: "firewall and masquerade rules to be tested beside",
    },
    Tool {
        command: "ethtool",
        packages: &["ethtool"],
        purpose: "offloads of the lab's devices",
    },
    Tool {
        command: "ping",
        packages: &["iputils-ping"],
        purpose: "reachability in the lab",
    },
    Tool {
        command: "sysctl",
        packages: &["procps"],
        purpose: "kernel settings of the lab's namespaces",
    },
    Tool {
        command: "tcpdump",
        packages: &["tcpdump"],
        purpose: "captures of a test that failed",
    },
    Tool {
        command: "iperf3",
        packages: &["iperf3"],
        purpose: "throughput in benchmarks",
    },
];

/// What the caller is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Build, and nothing else.
    Toolchain,
    /// Test, or run the lab.
    Everything,
}

/// Installs what is missing for `need` and returns what eBPF is built with.
///
/// # Errors
/// Says what could not be installed and how to do it by hand.
pub fn run(workspace: &Workspace, need: Need) -> Result<Tools> {
    let places = Places::from_env();
    let tools = Tools::find(&places);
    let (missing, components, lint) = match need {
        Need::Toolchain => (Vec::new(), Vec::new(), false),
        Need::Everything => (missing_tools(), missing_components(), true),
    };
    let complete = |tools: &Tools| !lint || tools.compiler.clippy().is_file();
    let tools = match tools {
        Ok(tools) if missing.is_empty() && components.is_empty() && complete(&tools) => {
            return Ok(tools);
        }
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
    install_tools(&mut installer.apt, &missing)?;
    add_components(&steps, &components)?;
    let tools = match tools {
        Some(tools) => tools,
        None => toolchain::install(&mut installer)?,
    };
    if !complete(&tools) {
        compiler::install_clippy(&mut installer, &tools.compiler)?;
    }
    Ok(tools)
}

/// What installing anything takes.
struct Installer<'a> {
    steps: &'a Steps,
    apt: Apt<'a>,
    places: Places,
}

/// Whether a command can be run; system directories count even when a user's PATH lacks them.
fn on_path(command: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(system)
        .any(|directory| directory.join(command).is_file())
}

fn missing_tools() -> Vec<&'static Tool> {
    TOOLS.iter().filter(|tool| !on_path(tool.command)).collect()
}

fn install_tools(apt: &mut Apt, missing: &[&Tool]) -> Result<()> {
    let mut packages = Vec::new();
    for tool in missing {
        let package = apt
            .first_available(tool.packages)
            .unwrap_or(tool.packages[0]);
        println!("  {package}: {}", tool.purpose);
        packages.push(package);
    }
    apt.install(&packages).with_context(|| {
        let commands: Vec<_> = missing.iter().map(|tool| tool.command).collect();
        format!("these commands are missing: {}", commands.join(" "))
    })
}

/// Parts of the host's Rust toolchain that `cargo xtask test` calls and that are not there.
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
