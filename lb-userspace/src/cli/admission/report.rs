//! The computed limits and the errors, as `plan` and `check` show them.

use std::fmt::Write;

use anyhow::bail;
use clap::Args;
use serde::Serialize;

use super::files::Files;
use crate::admission::objects::{ObjectError, Objects};
use crate::cli::output::{Output, json};
use crate::docs::Section;

/// What is wrong with objects, and what is only odd.
const CHECKED: Section = Section::AdmissionObjects;

/// What `plan` and `check` are told.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(flatten)]
    pub files: Files,

    /// Format of the output; JSON is an object with the levels and the errors
    #[arg(short, long, value_name = "FORM", value_enum, default_value = "table")]
    pub output: Output,
}

#[derive(Serialize)]
pub struct Report {
    levels: Vec<LevelReport>,
    errors: Vec<ObjectError>,
    #[serde(skip)]
    pub schemas: usize,
}

/// A level with its limits in seats.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LevelReport {
    name: String,
    #[serde(rename = "type")]
    type_: &'static str,
    nominal: u32,
    min: u32,
    max: u32,
    lendable: u32,
    borrowing: u32,
    /// The most seats of one connection; `None` without queues, where there is no such limit.
    max_seats: Option<u32>,
}

impl Report {
    pub fn new(files: &Files) -> anyhow::Result<Self> {
        let Objects {
            configuration,
            errors,
            ..
        } = files.load()?;
        let in_force = configuration.in_force();
        let limits = in_force.limits(files.concurrency);
        let levels = in_force.levels.iter().zip(limits);
        Ok(Self {
            levels: levels
                .map(|(level, limits)| LevelReport {
                    name: level.name.clone(),
                    type_: level.kind.as_str(),
                    nominal: limits.nominal,
                    min: limits.min,
                    max: limits.max,
                    lendable: limits.lendable,
                    borrowing: limits.borrowing,
                    max_seats: limits.max_seats,
                })
                .collect(),
            errors,
            schemas: in_force.schemas.len(),
        })
    }

    pub fn json(&self) -> anyhow::Result<String> {
        json(self)
    }

    /// A line per level.
    pub fn table(&self) -> String {
        let header = [
            "LEVEL",
            "TYPE",
            "NOMINAL",
            "MIN",
            "MAX",
            "LENDABLE",
            "BORROWING",
            "MAX SEATS",
        ];
        let mut rows = vec![header.map(str::to_owned)];
        rows.extend(self.levels.iter().map(LevelReport::row));
        let width = |column: usize| {
            rows.iter()
                .map(|row| row[column].len())
                .max()
                .unwrap_or_default()
        };
        let widths: [usize; 8] = std::array::from_fn(width);
        let mut table = String::new();
        for row in &rows {
            let [name, type_, numbers @ ..] = row;
            let mut line = format!("{name:0$}  {type_:1$}", widths[0], widths[1]);
            for (number, width) in numbers.iter().zip(&widths[2..]) {
                write!(line, "  {number:>width$}").expect("a String takes any text");
            }
            table += &line;
            table.push('\n');
        }
        table
    }

    /// A line per error.
    pub fn error_lines(&self) -> String {
        self.errors
            .iter()
            .map(|error| format!("{error}\n"))
            .collect()
    }

    pub fn levels(&self) -> usize {
        self.levels.len()
    }

    /// # Errors
    /// If the objects have errors.
    pub fn result(&self) -> anyhow::Result<()> {
        match self.errors.len() {
            0 => Ok(()),
            1 => bail!("the configuration has an error; see {CHECKED}"),
            errors => bail!("the configuration has {errors} errors; see {CHECKED}"),
        }
    }
}

impl LevelReport {
    fn row(&self) -> [String; 8] {
        let max_seats = self
            .max_seats
            .map_or_else(|| "-".to_owned(), |seats| seats.to_string());
        [
            self.name.clone(),
            self.type_.to_owned(),
            self.nominal.to_string(),
            self.min.to_string(),
            self.max.to_string(),
            self.lendable.to_string(),
            self.borrowing.to_string(),
            max_seats,
        ]
    }
}
