//! Tables whose cells are figures of several samples.

use serde_json::{Map, Value, json};

use crate::{statistics::Figures, table::Table};

/// What a column tells of the samples of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tells {
    /// Their median, and their range if there are several.
    Median,
    /// Their sum.
    Sum,
}

/// A column of figures.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its heading in the table.
    pub name: &'static str,
    /// Its key in the JSON.
    pub key: &'static str,
    pub decimals: usize,
    pub tells: Tells,
}

impl Column {
    /// A column of medians.
    pub const fn median(name: &'static str, key: &'static str, decimals: usize) -> Self {
        Self {
            name,
            key,
            decimals,
            tells: Tells::Median,
        }
    }

    /// A column of sums of whole numbers.
    pub const fn sum(name: &'static str, key: &'static str) -> Self {
        Self {
            name,
            key,
            decimals: 0,
            tells: Tells::Sum,
        }
    }

    fn cell(self, samples: &[f64]) -> String {
        let decimals = self.decimals;
        match (self.tells, Figures::of(samples)) {
            (_, None) => "-".to_owned(),
            (Tells::Sum, _) => format!("{:.decimals$}", samples.iter().sum::<f64>()),
            (Tells::Median, Some(figures)) if samples.len() == 1 => {
                format!("{:.decimals$}", figures.median)
            }
            (Tells::Median, Some(figures)) => {
                format!("{:.decimals$} {}", figures.median, figures.range(decimals))
            }
        }
    }

    fn json(self, samples: &[f64]) -> Value {
        match self.tells {
            Tells::Median => json!(Figures::of(samples)),
            Tells::Sum => json!(samples.iter().sum::<f64>()),
        }
    }
}

/// The values of one sample, one per column; `None` where there is none.
pub type Sample = Vec<Option<f64>>;

/// A table with a row for each case.
#[derive(Debug)]
pub struct Sheet {
    title: &'static str,
    /// Its key in the JSON.
    pub key: &'static str,
    columns: &'static [Column],
    notes: Vec<String>,
    cases: Vec<(String, Vec<Sample>)>,
}

impl Sheet {
    /// A table without rows.
    pub fn new(
        title: &'static str,
        key: &'static str,
        columns: &'static [Column],
        notes: Vec<String>,
    ) -> Self {
        Self {
            title,
            key,
            columns,
            notes,
            cases: Vec::new(),
        }
    }

    /// Adds a sample of a case.
    ///
    /// # Panics
    ///
    /// If it has not one value per column.
    pub fn add(&mut self, case: &str, sample: Sample) {
        assert_eq!(sample.len(), self.columns.len(), "a sample of {case}");
        match self.cases.iter_mut().find(|(name, _)| name == case) {
            Some((_, samples)) => samples.push(sample),
            None => self.cases.push((case.to_owned(), vec![sample])),
        }
    }

    /// For people.
    pub fn table(&self) -> Table {
        let names = self.columns.iter().map(|column| column.name);
        let names: Vec<_> = ["case"].into_iter().chain(names).collect();
        let mut table = Table::new(self.title, 1, &names);
        table.notes.clone_from(&self.notes);
        for (case, samples) in &self.cases {
            let cells = self.values(samples).map(|(column, of)| column.cell(&of));
            table.add([case.clone()].into_iter().chain(cells).collect());
        }
        table
    }

    /// For programs: an object for each case.
    pub fn json(&self) -> Value {
        let case = |(case, samples): &(String, Vec<Sample>)| {
            let values = self.values(samples);
            let values = values.map(|(column, of)| (column.key.to_owned(), column.json(&of)));
            let mut object = Map::from_iter(values);
            object.insert("case".to_owned(), json!(case));
            Value::Object(object)
        };
        self.cases.iter().map(case).collect()
    }

    /// Each column, with its values in the samples of a case.
    fn values(&self, samples: &[Sample]) -> impl Iterator<Item = (Column, Vec<f64>)> {
        let values = |(number, column): (usize, &Column)| {
            let values = samples.iter().filter_map(|sample| sample[number]);
            (*column, values.collect())
        };
        self.columns.iter().enumerate().map(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[
        Column::median("p99, µs", "p99_us", 1),
        Column::sum("failed", "failed"),
    ];

    fn sheet() -> Sheet {
        let mut sheet = Sheet::new("Goals", "goals", COLUMNS, vec!["a note".to_owned()]);
        sheet.add("one", vec![Some(3.0), Some(1.0)]);
        sheet.add("other", vec![None, Some(2.0)]);
        sheet.add("one", vec![Some(1.0), Some(4.0)]);
        sheet
    }

    #[test]
    fn a_row_has_the_median_and_the_range_or_the_sum_of_its_samples() {
        let expected = "Goals\na note\n\
                        case          p99, µs  failed\n\
                        one    2.0 [1.0..3.0]       5\n\
                        other               -       2\n";
        assert_eq!(sheet().table().text(), expected);
    }

    #[test]
    fn programs_get_the_same_by_its_keys() {
        let one = json!({
            "case": "one",
            "p99_us": {"median": 2.0, "min": 1.0, "max": 3.0},
            "failed": 5.0,
        });
        let other = json!({"case": "other", "p99_us": null, "failed": 2.0});
        assert_eq!(sheet().json(), json!([one, other]));
    }
}
