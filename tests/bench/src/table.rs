//! Tables, for terminals and for Markdown.

use std::fmt::Write as _;

/// A table with its heading.
#[derive(Clone, Debug)]
pub struct Table {
    pub title: String,
    /// Notes for the reader, one per line.
    pub notes: Vec<String>,
    /// How many columns, from the left, hold names; the others hold numbers.
    names: usize,
    /// The first row is the columns' names.
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows. `columns` are names first, then numbers.
    pub fn new(title: &str, names: usize, columns: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            notes: Vec::new(),
            names,
            rows: vec![columns.iter().map(ToString::to_string).collect()],
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    ///
    /// If it has not one cell per column.
    pub fn add(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.rows[0].len(), "a row of {}", self.title);
        self.rows.push(row);
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.title);
        for note in &self.notes {
            let _ = writeln!(text, "{note}");
        }
        let widths = self.widths();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let _ = match column < self.names {
                    true => write!(line, "{cell:<width$}  "),
                    false => write!(line, "{cell:>width$}  "),
                };
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }

    /// For Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("**{}**\n\n", self.title);
        for note in &self.notes {
            let _ = writeln!(text, "{note}  ");
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for (number, row) in self.rows.iter().enumerate() {
            let _ = writeln!(text, "| {} |", row.join(" | "));
            if number == 0 {
                let lines = (0..row.len()).map(|column| match column < self.names {
                    true => "---",
                    false => "--:",
                });
                let _ = writeln!(text, "|{}|", lines.collect::<Vec<_>>().join("|"));
            }
        }
        text
    }

    fn widths(&self) -> Vec<usize> {
        let width = |column: usize| {
            let lengths = self.rows.iter().map(|row| row[column].chars().count());
            lengths.max().unwrap_or(0)
        };
        (0..self.rows[0].len()).map(width).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new("Packets", 1, &["case", "ns"]);
        table.notes.push("a note".to_owned());
        table.add(vec!["empty".to_owned(), "7".to_owned()]);
        table.add(vec!["x".to_owned(), "123".to_owned()]);
        table
    }

    #[test]
    fn terminal() {
        let expected = "Packets\na note\ncase    ns\nempty    7\nx      123\n";
        assert_eq!(table().text(), expected);
    }

    #[test]
    fn markdown() {
        let expected =
            "**Packets**\n\na note  \n\n| case | ns |\n|---|--:|\n| empty | 7 |\n| x | 123 |\n";
        assert_eq!(table().markdown(), expected);
    }
}
