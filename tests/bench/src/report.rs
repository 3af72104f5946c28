//! The results of a run: for people, for programs, and as plots.

use std::{env, path::Path};

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::{
    machine::Machine,
    plot::{self, Plot},
    table::Table,
};

/// What a part of the benchmark found.
#[derive(Debug)]
pub struct Findings {
    /// Its key in the JSON.
    pub key: &'static str,
    pub tables: Vec<Table>,
    pub json: Value,
    pub plots: Vec<Plot>,
}

impl Findings {
    /// The tables, for a terminal.
    pub fn text(&self) -> String {
        let texts: Vec<_> = self.tables.iter().map(Table::text).collect();
        texts.join("\n")
    }
}

/// All parts of a run.
#[derive(Debug)]
pub struct Report {
    machine: Machine,
    /// The command line of the run.
    arguments: Vec<String>,
    parts: Vec<Findings>,
}

impl Report {
    /// A report without findings yet.
    pub fn new() -> Self {
        Self {
            machine: Machine::this(),
            arguments: env::args().skip(1).collect(),
            parts: Vec::new(),
        }
    }

    /// Adds a part.
    pub fn add(&mut self, findings: Findings) {
        self.parts.push(findings);
    }

    /// The machine, for a terminal.
    pub fn heading(&self) -> String {
        self.machine.lines().join("\n")
    }

    /// All tables as Markdown, with the command and the machine.
    pub fn markdown(&self) -> String {
        let mut words = vec!["cargo xtask bench"];
        words.extend(self.arguments.iter().map(String::as_str));
        let command = words.join(" ");
        let machine = self.machine.lines().join("  \n");
        let tables = self.parts.iter().flat_map(|part| &part.tables);
        let tables: Vec<_> = tables.map(Table::markdown).collect();
        let tables = tables.join("\n");
        format!("# Benchmark figures\n\n`{command}`\n\n{machine}\n\n{tables}")
    }

    /// All figures, for programs.
    ///
    /// # Errors
    ///
    /// If a figure is no number.
    pub fn json(&self) -> Result<String> {
        let parts = self.parts.iter();
        let mut parts: Map<String, Value> = parts
            .map(|part| (part.key.to_owned(), part.json.clone()))
            .collect();
        parts.insert("machine".to_owned(), json!(self.machine));
        parts.insert("arguments".to_owned(), json!(self.arguments));
        Ok(serde_json::to_string_pretty(&parts)? + "\n")
    }

    /// Writes all plots.
    ///
    /// # Errors
    ///
    /// If the directory cannot be made or written to.
    pub fn plot(&self, directory: &Path) -> Result<()> {
        let plots = self.parts.iter().flat_map(|part| &part.plots);
        plot::write_all(plots, directory)
    }
}
