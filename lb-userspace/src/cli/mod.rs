//! The command line: parses arguments and the configuration file, and runs the command.

use std::{
    ffi::OsString,
    io::{self, ErrorKind, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, parser::ValueSource};

use crate::config::file;

mod admission;
mod agent;
mod bpf_root;
mod check;
mod cleanup;
mod completions;
mod explain;
mod findings;
mod flows;
mod live;
mod local_api;
mod man;
mod mount_bpffs;
mod output;
mod plan;
mod probe;
mod snapshot;
mod status;
mod top;
mod trace;
mod verify;

/// Runs the command in `arguments`, which start with the program's name.
///
/// Exits with 2 if the arguments are wrong, with 1 if the command fails.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match Cli::from_arguments(arguments.into_iter().collect()).and_then(Cli::run) {
        Ok(code) => code,
        Err(error) => report(&error),
    }
}

/// The commands and their options.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// The program's name.
const NAME: &str = "node-lb";

/// Balances this node's traffic to Kubernetes Services, with eBPF
#[derive(Debug, Parser)]
#[command(name = NAME, version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Agent(agent::Command),
    Check(check::Command),
    Cleanup(cleanup::Command),
    MountBpffs(mount_bpffs::Command),
    Plan(plan::Command),
    Flows(flows::Command),
    Explain(explain::Command),
    Status(status::Command),
    Verify(verify::Command),
    Top(top::Command),
    Probe(probe::Command),
    Trace(trace::Command),
    Admission(admission::Command),
    Completions(completions::Command),
    Man(man::Command),
}

impl Cli {
    /// Parses the arguments. If they name a configuration file, parses them again with its
    /// settings.
    fn from_arguments(mut arguments: Vec<OsString>) -> anyhow::Result<Self> {
        let mut matches = Self::command().try_get_matches_from(&arguments)?;
        if let Some((_, command)) = matches.subcommand()
            && let Ok(Some(path)) = command.try_get_one::<PathBuf>("config")
        {
            arguments.extend(file::arguments(path, |flag| {
                command.value_source(flag) == Some(ValueSource::CommandLine)
            })?);
            matches = Self::command().try_get_matches_from(&arguments)?;
        }
        Ok(Self::from_arg_matches(&matches)?)
    }

    fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Agent(command) => command.run(),
            Command::Check(command) => return command.run(),
            Command::Cleanup(command) => command.run(),
            Command::MountBpffs(command) => command.run(),
            Command::Plan(command) => command.run(),
            Command::Flows(command) => command.run(),
            Command::Explain(command) => return command.run(),
            Command::Status(command) => return command.run(),
            Command::Verify(command) => return command.run(),
            Command::Top(command) => command.run(),
            Command::Probe(command) => command.run(),
            Command::Trace(command) => command.run(),
            Command::Admission(command) => command.run(),
            Command::Completions(command) => command.run(),
            Command::Man(command) => command.run(),
        }
        .map(|()| ExitCode::SUCCESS)
    }
}

/// Runs asynchronous work on this thread, so that it stays in this thread's network namespace.
fn block_on<T>(work: impl Future<Output = T>) -> anyhow::Result<T> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build();
    Ok(runtime.context("cannot start the runtime")?.block_on(work))
}

/// Prints what went wrong, or the help that was asked for.
fn report(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref::<clap::Error>() {
        Some(error) => error.exit(),
        None => print_error(&format!("error: {error:#}\n")),
    }
    ExitCode::FAILURE
}

/// Prints an error. A failure to print it is ignored, because there is no other place to report it.
fn print_error(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Prints a command's result. It is no error if the reader closes its end early.
fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}
