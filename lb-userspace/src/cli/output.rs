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
    /// Whether people read it.
    pub fn is_for_people(self) -> bool {
        matches!(self, Self::Table)
    }

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
pub fn aligned<R: AsRef<[String]>>(rows: &[R]) -> String {
    let columns = rows.iter().map(|row| row.as_ref().len()).max();
    let mut widths = vec![0; columns.unwrap_or(0)];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row.as_ref()) {
            *width = (*width).max(cell.len());
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.as_ref().iter().zip(&widths);
        let line: Vec<_> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text += line.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Text of others without what could do something to a terminal. Names are made of ASCII; what is not
/// is shown as `?`.
pub fn plain(text: &str) -> String {
    let is_plain = |character: char| character == ' ' || character.is_ascii_graphic();
    let plain = |character| if is_plain(character) { character } else { '?' };
    text.chars().map(plain).collect()
}

/// A result as JSON.
///
/// # Errors
/// If it cannot be written as JSON.
pub fn json(result: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(result).context("cannot write JSON")? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_nothing_to_a_terminal() {
        assert_eq!(plain("shop/web:http 10%"), "shop/web:http 10%");
        assert_eq!(
            plain("a\x1b[2Jb\r\n\u{202e}\u{9b}31m\u{7f}"),
            "a?[2Jb????31m?"
        );
    }
}
