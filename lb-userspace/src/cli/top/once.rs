//! The numbers of one interval as text.

use std::{fmt::Write as _, iter};

use super::{
    frame::Frame,
    table::{Cell, Table},
    view::{Known, View},
};
use crate::cli::output::{Output, aligned, plain};

/// A frame in this form; JSON is one line.
///
/// # Errors
/// If it cannot be written as JSON.
pub fn text(frame: &Frame, output: Output) -> anyhow::Result<String> {
    match output {
        Output::Table => Ok(tables(frame)),
        Output::Json => Ok(serde_json::to_string(frame)? + "\n"),
    }
}

/// The service ports; then the budgets; then the reasons for which packets were refused or dropped.
fn tables(frame: &Frame) -> String {
    let known = Known {
        frame: frame.clone(),
        ..Known::default()
    };
    let table = |view: View| {
        let mut table = view.table(&known);
        table.sort(view.sort());
        table
    };
    let mut reasons = table(View::Reasons);
    reasons.rows.retain(|row| row.cells[2] != Cell::Number(0));
    let mut text = format!("Node: {}\n", plain(&frame.node));
    for table in [table(View::Services), table(View::Budgets), reasons] {
        if !table.rows.is_empty() {
            write!(text, "\n{}", whole(&table)).expect("a String takes any text");
        }
    }
    text
}

/// All rows and columns of a table.
fn whole(table: &Table) -> String {
    let titles = table.columns.iter().map(|column| column.title.to_owned());
    let rows = table.rows.iter();
    let rows = rows.map(|row| row.cells.iter().map(Cell::text).collect());
    let all: Vec<Vec<_>> = iter::once(titles.collect()).chain(rows).collect();
    aligned(&all)
}
