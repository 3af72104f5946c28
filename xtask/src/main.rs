#![forbid(unsafe_code)]
//! `cargo xtask`: everything around the code.

mod architecture;
mod build;
mod cargo;
mod cluster;
#[cfg(test)]
mod documented;
mod image;
mod mutants;
mod older;
mod privilege;
mod program;
mod setup;
mod site;
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
  docs                         make a site of the documentation, and check its links
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
    match Task::parse(&workspace, arguments)? {
        Task::Setup => {
            let tools = setup::run(&workspace, &setup::Need::TESTS)?;
            println!("Set-up is complete: eBPF is built with {tools}.");
        }
        Task::Build(kind) => println!("{}", build::run(&workspace, kind)?.display()),
        Task::Image(output) => image::run(&workspace, &output)?,
        Task::Test(options) => return test::run(&workspace, &options),
        Task::Docs => println!("{}", site::build(&workspace)?.display()),
        Task::Mutants(rest) => return mutants::run(&workspace, rest),
        Task::Cluster(action) => return cluster::run(&workspace, &action),
        Task::EndToEnd(rest) => return cluster::e2e(&workspace, rest),
        Task::Help => println!("{}", usage(&workspace)),
        Task::Program(name, rest) => return program::run(&workspace, name, rest),
    }
    Ok(ExitCode::SUCCESS)
}

/// What a command line asks for.
enum Task<'a> {
    Setup,
    Build(build::Kind),
    Image(image::Output),
    Test(test::Options),
    Docs,
    /// The arguments are cargo-mutants'.
    Mutants(&'a [String]),
    Cluster(cluster::Action),
    /// The arguments are those of `e2e.sh`.
    EndToEnd(&'a [String]),
    Help,
    /// The arguments are the program's.
    Program(&'a str, &'a [String]),
}

impl<'a> Task<'a> {
    fn parse(workspace: &Workspace, arguments: &'a [String]) -> Result<Self> {
        let (command, rest) = match arguments {
            [] => return Ok(Self::Help),
            [command, rest @ ..] => (command.as_str(), rest),
        };
        Ok(match command {
            "setup" => no_arguments(command, rest).map(|()| Self::Setup)?,
            "build" => Self::Build(build::Kind::parse(rest)?),
            "image" => Self::Image(image::Output::parse(rest, workspace)?),
            "test" => Self::Test(test::Options::parse(rest)?),
            "docs" => no_arguments(command, rest).map(|()| Self::Docs)?,
            "mutants" => Self::Mutants(rest),
            "cluster" => Self::Cluster(cluster::Action::parse(rest)?),
            "e2e" => Self::EndToEnd(rest),
            "help" | "--help" | "-h" => Self::Help,
            program if program::exists(workspace, program) => Self::Program(program, rest),
            unknown => bail!("no command {unknown:?}\n\n{}", usage(workspace)),
        })
    }
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
