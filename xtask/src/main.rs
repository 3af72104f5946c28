#![forbid(unsafe_code)]
//! `cargo xtask`: everything around the code.

mod architecture;
mod build;
mod cargo;
mod cluster;
mod image;
mod mutants;
mod older;
mod privilege;
mod program;
mod setup;
mod step;
mod test;

use std::{env, process::ExitCode};

use anyhow::{Result, bail};

use crate::cargo::Workspace;

const USAGE: &str = "\
Usage: cargo xtask COMMAND

Commands:
  setup                        install what building and testing need; skip what is installed
  build [--release|--static]   build the eBPF object and the agent; static: one file for any
                               container
  image [--output FILE]        make the container image as an archive, without a container engine
       [--index]               for amd64 and arm64, with an index of both
  test [STAGE...]              run everything that CI checks, or these stages: fmt clippy deps
                               msrv unit doc fuzz kernel kernels arm64
       [--only NAME]           run only tests with this in PROGRAM::MODULE::FUNCTION
       [--skip PART]           leave out a stage, control-plane, kernel:6.1, kernel:6.12, arm64:6.1
                               or arm64:6.12
       [--jobs N]              run this many tests at the same time
       [--update-counts]       run no test, but count them for xtask/test-counts.json
  mutants planner|lb-common    break the planner or lb-common in one place after another, and
       [ARG...]                check that tests notice; arguments go to cargo-mutants
  cluster up|down|status       run a real Kubernetes cluster on this machine, with node-lb
  e2e [--focus RE]             run Kubernetes' own end-to-end tests on that cluster";

fn main() -> ExitCode {
    let result =
        test::as_compiler().unwrap_or_else(|| run(&env::args().skip(1).collect::<Vec<_>>()));
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<ExitCode> {
    let workspace = Workspace::locate()?;
    let (command, rest) = match arguments {
        [] => ("help", arguments),
        [command, rest @ ..] => (command.as_str(), rest),
    };
    match command {
        "setup" => {
            no_arguments(command, rest)?;
            let tools = setup::run(&workspace, &setup::Need::TESTS)?;
            println!("Set-up is complete: eBPF is built with {tools}.");
        }
        "build" => {
            let agent = build::run(&workspace, build::Kind::parse(rest)?)?;
            println!("{}", agent.display());
        }
        "image" => image::run(&workspace, &image::Output::parse(rest, &workspace)?)?,
        "test" => return test::run(&workspace, &test::Options::parse(rest)?),
        "mutants" => return mutants::run(&workspace, rest),
        "cluster" => return cluster::run(&workspace, &cluster::Action::parse(rest)?),
        "e2e" => return cluster::e2e(&workspace, rest),
        "help" | "--help" | "-h" => println!("{}", usage(&workspace)),
        program if program::exists(&workspace, program) => {
            return program::run(&workspace, program, rest);
        }
        unknown => bail!("no command {unknown:?}\n\n{}", usage(&workspace)),
    }
    Ok(ExitCode::SUCCESS)
}

fn usage(workspace: &Workspace) -> String {
    let mut usage = USAGE.to_owned();
    for program in program::PROGRAMS
        .iter()
        .filter(|program| program.exists(workspace))
    {
        usage += &format!(
            "\n  {:<28} {}",
            format!("{} [ARG...]", program.name),
            program.purpose
        );
    }
    usage
}

fn no_arguments(command: &str, rest: &[String]) -> Result<()> {
    match rest {
        [] => Ok(()),
        [unexpected, ..] => bail!("{command} takes no argument {unexpected:?}"),
    }
}
