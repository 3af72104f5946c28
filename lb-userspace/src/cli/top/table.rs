//! Tables: rows of numbers that can be sorted and filtered.

use std::cmp::Ordering;

use super::view::Subject;
use crate::cli::output::plain;

/// A value in a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Text(String),
    Number(u64),
    /// `None` if it is not known.
    Known(Option<u64>),
    /// Per second.
    Rate(Option<f64>),
    /// In microseconds; `None` if it is not known.
    Time(Option<f64>),
    /// So many of so many; of zero if there is no limit.
    Of(u64, u64),
    /// A part between zero and one.
    Percent(f64),
    /// The same as a bar.
    Bar(f64),
}

impl Cell {
    /// The whole value.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => plain(text),
            Self::Number(number) | Self::Known(Some(number)) => number.to_string(),
            Self::Known(None) | Self::Rate(None) | Self::Time(None) => "-".to_owned(),
            Self::Time(Some(micros)) => time(*micros),
            Self::Rate(Some(rate)) => format!("{rate:.1}"),
            Self::Of(used, 0) => used.to_string(),
            Self::Of(used, room) => format!("{used}/{room}"),
            Self::Percent(part) => format!("{:.1} %", part * 100.0),
            Self::Bar(part) => bar(*part, 20),
        }
    }

    /// The value in at most so many characters, where numbers lose digits before they lose their
    /// size.
    pub fn within(&self, width: usize) -> String {
        let whole = match self {
            Self::Bar(part) => bar(*part, width),
            _ => self.text(),
        };
        if whole.len() <= width {
            return whole;
        }
        match self {
            Self::Number(number) | Self::Known(Some(number)) => short(*number as f64),
            Self::Rate(Some(rate)) => short(*rate),
            Self::Of(used, room) => format!("{}/{}", short(*used as f64), short(*room as f64)),
            _ => whole,
        }
    }

    /// Whether it is a number, which is written to the right.
    pub fn is_number(&self) -> bool {
        !matches!(self, Self::Text(_) | Self::Bar(_))
    }

    /// As a number, for sorting. What is not known is less than anything.
    fn size(&self) -> f64 {
        match self {
            Self::Text(_) | Self::Known(None) | Self::Rate(None) | Self::Time(None) => -1.0,
            Self::Number(number) | Self::Known(Some(number)) | Self::Of(number, _) => {
                *number as f64
            }
            Self::Rate(Some(size))
            | Self::Time(Some(size))
            | Self::Percent(size)
            | Self::Bar(size) => *size,
        }
    }

    fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            _ => self.size().total_cmp(&other.size()),
        }
    }
}

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    pub title: &'static str,
    /// In characters; 0 for the one column that takes what is left.
    pub width: u16,
    /// The columns are left out first that have the highest number here.
    pub rank: u8,
}

/// A line of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it is about.
    pub subject: Subject,
    /// One for each column.
    pub cells: Vec<Cell>,
}

/// How a table is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort {
    pub column: usize,
    pub is_descending: bool,
}

/// Rows under the titles of their columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    pub columns: &'static [Column],
    pub rows: Vec<Row>,
}

impl Table {
    /// Leaves the rows that have `filter` in one of their texts, whatever its case.
    pub fn filter(&mut self, filter: &str) {
        if filter.is_empty() {
            return;
        }
        let filter = filter.to_lowercase();
        self.rows.retain(|row| {
            row.cells.iter().any(|cell| match cell {
                Cell::Text(text) => text.to_lowercase().contains(&filter),
                _ => false,
            })
        });
    }

    /// Sorts the rows; equal ones by what they are about, so that they keep their places.
    pub fn sort(&mut self, sort: Sort) {
        self.rows.sort_by(|one, other| {
            let (Some(left), Some(right)) =
                (one.cells.get(sort.column), other.cells.get(sort.column))
            else {
                return Ordering::Equal;
            };
            let order = match sort.is_descending {
                true => right.order(left),
                false => left.order(right),
            };
            order.then_with(|| one.subject.cmp(&other.subject))
        });
    }

    /// The columns that fit into so many characters, with their places and widths.
    pub fn fitting(&self, width: u16) -> Vec<(usize, u16)> {
        /// The least that is left for the column without a width of its own.
        const REST: u16 = 16;
        let wanted = |column: &Column| match column.width {
            0 => REST,
            width => width,
        };
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let taken = |shown: &[usize]| -> u16 {
            let widths = shown.iter().map(|index| wanted(&self.columns[*index]) + 1);
            widths.sum::<u16>().saturating_sub(1)
        };
        while taken(&shown) > width && shown.len() > 1 {
            let last = shown.iter().enumerate();
            let last = last.max_by_key(|(_, index)| self.columns[**index].rank);
            let Some((place, _)) = last else { break };
            shown.remove(place);
        }
        let rest = width.saturating_sub(taken(&shown));
        let shown = shown.into_iter().map(|index| {
            let column = &self.columns[index];
            let more = if column.width == 0 { rest } else { 0 };
            (index, (wanted(column) + more).min(width))
        });
        shown.collect()
    }
}

/// A bar of so many characters.
fn bar(part: f64, width: usize) -> String {
    let room = width.saturating_sub(2);
    let full = (part.clamp(0.0, 1.0) * room as f64).round() as usize;
    format!("[{}{}]", "|".repeat(full), " ".repeat(room - full))
}

/// A time in microseconds, in at most five characters below 1000 seconds.
fn time(micros: f64) -> String {
    let (number, unit) = match micros {
        ..999.5 => (micros, "us"),
        ..999_500.0 => (micros / 1e3, "ms"),
        _ => (micros / 1e6, "s"),
    };
    match number < 9.95 {
        true => format!("{number:.1}{unit}"),
        false => format!("{number:.0}{unit}"),
    }
}

/// A number in at most four characters up to 10^15.
fn short(number: f64) -> String {
    const UNITS: [&str; 5] = ["", "k", "M", "G", "T"];
    let (mut number, mut unit) = (number, 0);
    while number >= 999.5 && unit + 1 < UNITS.len() {
        number /= 1000.0;
        unit += 1;
    }
    match number < 9.95 && unit > 0 {
        true => format!("{number:.1}{}", UNITS[unit]),
        false => format!("{number:.0}{}", UNITS[unit]),
    }
}
