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

/// A result as JSON.
///
/// # Errors
/// If it cannot be written as JSON.
pub fn json(result: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(result).context("cannot write JSON")? + "\n")
}
