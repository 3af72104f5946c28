//! `node-lb admission simulate`: what happens to connections, in virtual time.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{ArgGroup, Args};
use lb_admission::{
    controller::{Controller, LevelId},
    deadlines::Deadlines,
    level::{CATCH_ALL, EXEMPT},
    queueset::Policy,
    simulate::{Report, Settings, run_trace, run_workload, workload::Workload},
};

use super::files::{Files, Loaded};
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

    /// File of arrivals, one per line: t_ns,flow,hold_ns[,width[,level]], or a JSON object with
    /// these names
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

    /// How long a connection waits for a seat [default: 1s, with --exact without limit]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    queue_wait: Option<Duration>,

    /// Format of the output; JSON is an object with all figures
    #[arg(short, long, value_name = "FORM", value_enum, default_value = "table")]
    output: Output,
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        let Loaded {
            configuration,
            errors,
            ..
        } = self.files.load()?;
        if let Some(error) = errors.first() {
            bail!("{error}");
        }
        let levels = configuration.in_force().levels;
        let settings = self.settings();
        let controller = Controller::new(&levels, self.files.concurrency, settings.policy, 0)?;
        let report = match (&self.trace, &self.workload) {
            (Some(path), _) => self.run_trace(controller, settings, path)?,
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

    fn run_trace(
        &self,
        controller: Controller,
        settings: Settings,
        path: &Path,
    ) -> anyhow::Result<Report> {
        let level = self.default_level(&controller)?;
        run_trace(controller, settings, level, open(path)?)
            .with_context(|| path.display().to_string())
    }

    /// The level that `--level` names, or else the only one that an object defines.
    fn default_level(&self, controller: &Controller) -> anyhow::Result<LevelId> {
        if let Some(name) = &self.level {
            let found = controller.find(name);
            return found.with_context(|| format!("--level: there is no priority level {name:?}"));
        }
        let names = controller.levels().map(|(name, _)| name);
        let defined: Vec<_> = names
            .filter(|name| ![EXEMPT, CATCH_ALL].contains(name))
            .collect();
        match defined[..] {
            [name] => controller.find(name).context("the level is gone"),
            _ => bail!(
                "there are {} priority levels: say which with --level",
                defined.len()
            ),
        }
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
