//! The output formats of commands.

use anyhow::Context as _;
use clap::ValueEnum;
use serde::Serialize;

/// `--output` of commands that show a table.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Output {
    /// Text for people
    Table,
    /// For programs
    Json,
}

impl Output {
    /// The result in this form. `table` produces the one for people.
    ///
    /// # Errors
    /// If `result` cannot be written as JSON.
    pub fn text<T: Serialize>(
        self,
        result: &T,
        table: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<String> {
        match self {
            Self::Table => Ok(table(result)),
            Self::Json => json(result),
        }
    }
}

/// Rows of cells, each column as wide as its widest cell.
pub fn aligned<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let mut widths = [0; COLUMNS];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths);
        let line: Vec<_> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text += line.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// A result as JSON.
///
/// # Errors
/// If it cannot be written as JSON.
pub fn json(result: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(result).context("cannot write JSON")? + "\n")
}
