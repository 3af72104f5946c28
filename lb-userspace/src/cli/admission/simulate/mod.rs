//! `node-lb admission simulate`: what happens to connections, in virtual time.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use clap::{ArgGroup, Args};
use lb_admission::{
    controller::{Controller, LevelId},
    deadlines::Deadlines,
    level::{CATCH_ALL, EXEMPT},
    queueset::Policy,
    simulate::{
        Classes, Replay, Settings, SimulateError, run_trace, run_workload, workload::Workload,
    },
};

use super::{cluster::Cluster, files::Files};
use crate::cli::{output::Output, print};

mod table;

/// Simulate admission of a trace or a workload
///
/// Runs the connections through the agent's own queues, in virtual time. Fails if an object or the
/// input is invalid.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("load").required(true).args(["trace", "workload"])))]
pub struct Command {
    #[command(flatten)]
    files: Files,

    /// File of arrivals, one per line: t_ns,flow,hold_ns[,width[,level]], a JSON object with these
    /// names, or a connection as `record` prints it, which the flow schemas classify. Pods in the
    /// files give the identities of its sources
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// File with clients and sources, as a JSON object
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,

    /// Priority level of arrivals whose line names none; not needed if there is only one level
    #[arg(long, value_name = "NAME", conflicts_with = "workload")]
    level: Option<String>,

    /// Follow the rules of API Priority and Fairness exactly, as for requests
    #[arg(long)]
    exact: bool,

    /// How long a connection waits for a seat [default: 1s, for recorded connections as their flow
    /// schema says; with --exact without limit]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    queue_wait: Option<Duration>,

    /// Format of the output; JSON is an object with all figures
    #[arg(short, long, value_name = "FORM", value_enum, default_value = "table")]
    output: Output,
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        let loaded = self.files.load()?;
        if let Some(error) = loaded.errors.first() {
            bail!("{error}");
        }
        let in_force = loaded.configuration.in_force();
        let settings = self.settings();
        let seats = self.files.concurrency;
        let controller = Controller::new(&in_force.levels, seats, settings.policy, 0)?;
        let report = match (&self.trace, &self.workload) {
            (Some(path), _) => {
                let cluster = Cluster::new(loaded.others);
                let own_waits = self.queue_wait.is_none() && !self.exact;
                let replay = Replay {
                    level: self.default_level(&controller)?,
                    classes: Some(Classes::new(
                        &in_force,
                        seats,
                        &cluster.identities,
                        own_waits,
                    )),
                };
                run_trace(controller, settings, &replay, open(path)?)
                    .map_err(explained)
                    .with_context(|| path.display().to_string())?
            }
            (None, Some(path)) => {
                let workload = read_workload(path)?;
                run_workload(controller, settings, &workload)
                    .with_context(|| path.display().to_string())?
            }
            (None, None) => bail!("give --trace or --workload"),
        };
        print(&self.output.text(&report, table::render)?)
    }

    fn settings(&self) -> Settings {
        let policy = match self.exact {
            true => Policy::Exact,
            false => Policy::Connections,
        };
        let default = (!self.exact).then(|| Deadlines::default().queue_wait());
        let wait = self.queue_wait.or(default);
        Settings {
            policy,
            queue_wait: wait.map(|wait| u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)),
        }
    }

    /// The level that `--level` names, or else the only one that an object defines, if there is
    /// one.
    fn default_level(&self, controller: &Controller) -> anyhow::Result<Option<LevelId>> {
        if let Some(name) = &self.level {
            let found = controller.find(name);
            let found =
                found.with_context(|| format!("--level: there is no priority level {name:?}"));
            return found.map(Some);
        }
        let names = controller.levels().map(|(name, _)| name);
        let defined: Vec<_> = names
            .filter(|name| ![EXEMPT, CATCH_ALL].contains(name))
            .collect();
        Ok(match defined[..] {
            [name] => controller.find(name),
            _ => None,
        })
    }
}

/// What to do about an error in a trace, where the command line can help.
fn explained(error: SimulateError) -> anyhow::Error {
    match error {
        SimulateError::NoLevel(_) => {
            anyhow!("{error}, and there is not just one: say which with --level")
        }
        _ => error.into(),
    }
}

fn open(path: &Path) -> anyhow::Result<impl BufRead> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(BufReader::new(file))
}

fn read_workload(path: &Path) -> anyhow::Result<Workload> {
    let mut deserializer = serde_json::Deserializer::from_reader(open(path)?);
    let workload = serde_path_to_error::deserialize(&mut deserializer)
        .with_context(|| format!("{} is no workload", path.display()))?;
    let rest = deserializer.end();
    rest.with_context(|| format!("{} goes on after the workload", path.display()))?;
    Ok(workload)
}
