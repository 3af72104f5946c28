//! `node-lb admission levels`: priority levels and flow schemas on this node, live.

use anyhow::ensure;
use clap::Args;
use serde::Serialize;

use crate::{
    agent::status::{FlowSchema, PriorityLevel, Status},
    cli::{live::Live, output::aligned, status},
};

/// Show priority levels and flow schemas on this node, and the connections in them now
#[derive(Args, Debug)]
pub struct Command {
    #[command(flatten)]
    live: Live,
}

/// What is shown.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// `audit` or `enforce`.
    admission: String,
    priority_levels: Vec<PriorityLevel>,
    flow_schemas: Vec<FlowSchema>,
    problems: Vec<String>,
}

impl Command {
    /// # Errors
    /// If no agent answers, or it does not classify connections.
    pub fn run(self) -> anyhow::Result<()> {
        self.live
            .show(|agent| Report::of(status::of(agent)?), render)?;
        Ok(())
    }
}

impl Report {
    fn of(status: Status) -> anyhow::Result<Self> {
        let Status {
            admission,
            priority_levels,
            flow_schemas,
            admission_problems,
            ..
        } = status;
        ensure!(
            matches!(admission.as_str(), "audit" | "enforce"),
            "the agent on this node does not classify connections; run it with --admission audit, \
             --max-connections and --admission-objects"
        );
        Ok(Self {
            admission,
            priority_levels,
            flow_schemas,
            problems: admission_problems,
        })
    }
}

fn render(report: &Report) -> String {
    let mut levels = vec![
        [
            "PRIORITY LEVEL",
            "IN USE",
            "HIGHEST",
            "LIMIT",
            "NOMINAL",
            "MIN",
            "MAX",
            "REFUSED",
            "OVER LIMIT",
            "KEPT",
            "WAITING",
            "QUEUE FULL",
            "SLOW HANDSHAKES",
        ]
        .map(str::to_owned),
    ];
    levels.extend(report.priority_levels.iter().map(|level| {
        let of_limited = |number: u32| match level.exempt {
            true => "-".to_owned(),
            false => number.to_string(),
        };
        [
            level.name.clone(),
            level.in_use.to_string(),
            level.highest.to_string(),
            of_limited(level.limit),
            level.nominal.to_string(),
            of_limited(level.min),
            of_limited(level.max),
            level.refused.to_string(),
            level.over.to_string(),
            level.kept.to_string(),
            level.waiting.to_string(),
            level.queue_full.to_string(),
            match level.pressed {
                true => format!("{} (pressed)", level.slow_handshakes),
                false => level.slow_handshakes.to_string(),
            },
        ]
    }));
    let mut schemas = vec![
        [
            "FLOW SCHEMA",
            "PRIORITY LEVEL",
            "SEATS EACH",
            "ADMITTED",
            "REFUSED",
            "FLOW LIMIT",
            "OVER LIMIT",
            "WAITED",
            "TIME-OUT",
            "EXPIRED",
        ]
        .map(str::to_owned),
    ];
    schemas.extend(report.flow_schemas.iter().map(|schema| {
        [
            schema.name.clone(),
            schema.priority_level.clone(),
            schema.seats.to_string(),
            schema.admitted.to_string(),
            schema.refused.to_string(),
            schema.flow_limit.to_string(),
            schema.over.to_string(),
            match schema.waited {
                0 => "0".to_owned(),
                waited => format!("{waited} ({} ms each)", schema.mean_wait_ms),
            },
            schema.timed_out.to_string(),
            expired(schema),
        ]
    }));
    let problems = report.problems.iter();
    let problems: Vec<_> = problems
        .map(|problem| format!("Problem: {problem}\n"))
        .collect();
    let parts = [
        format!("Mode: {}\n", report.admission),
        aligned(&levels),
        aligned(&schemas),
        problems.concat(),
    ];
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("\n")
}

/// How many connections ran into which deadline.
fn expired(schema: &FlowSchema) -> String {
    let by_deadline = schema.expired.iter();
    let by_deadline =
        by_deadline.map(|(deadline, connections)| format!("{connections} {deadline}"));
    match by_deadline.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "0".to_owned(),
        some => some,
    }
}
