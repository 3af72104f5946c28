//! The number of tests in each part. It is kept in the repository, so that a missing test is
//! noticed.

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::{Context, Result};

use super::options::Part;
use crate::cargo::Workspace;

/// The file, from the workspace's root.
const FILE: &str = "xtask/test-counts.json";

/// Numbers of tests, by the names of parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<String, u64>);

impl Counts {
    /// The numbers in the repository.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn load(workspace: &Workspace) -> Result<Self> {
        let path = path(workspace);
        let what = || format!("cannot read {}", path.display());
        let text = fs::read_to_string(&path).with_context(what)?;
        serde_json::from_str(&text).map(Self).with_context(what)
    }

    /// Writes the numbers into the repository. Returns the path.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn save(&self, workspace: &Workspace) -> Result<PathBuf> {
        let path = path(workspace);
        let text = serde_json::to_string_pretty(&self.0)?;
        fs::write(&path, text + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// The number of a part; none if it has none.
    pub fn of(&self, part: Part) -> u64 {
        self.0.get(&part.to_string()).copied().unwrap_or_default()
    }

    /// Sets the number of a part.
    pub fn set(&mut self, part: Part, count: u64) {
        self.0.insert(part.to_string(), count);
    }

    /// What to report if `ran` tests of a part ran. Fewer tests than before are a failure.
    pub fn compare(&self, part: Part, ran: u64) -> Option<Difference> {
        let known = self.of(part);
        match known.cmp(&ran) {
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Less => Some(Difference {
                fewer: false,
                text: format!(
                    "{part}: {ran} tests, {} more than {FILE} knows of; commit what \
                     `cargo xtask test --update-counts` writes",
                    ran - known
                ),
            }),
            std::cmp::Ordering::Greater => Some(Difference {
                fewer: true,
                text: format!(
                    "{part}: only {ran} of {known} tests ran; if {} went on purpose, commit what \
                     `cargo xtask test --update-counts` writes to {FILE}",
                    known - ran
                ),
            }),
        }
    }
}

/// A changed number of tests in a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Whether tests are missing, which is a failure.
    pub fewer: bool,
    pub text: String,
}

fn path(workspace: &Workspace) -> PathBuf {
    workspace.root.join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::stage::Stage;

    #[test]
    fn fewer_tests_than_before_are_a_failure_and_more_are_not() {
        let part = Part::Stage(Stage::Unit);
        let mut counts = Counts::default();
        counts.set(part, 10);
        assert_eq!(counts.compare(part, 10), None);
        let fewer = counts.compare(part, 7).unwrap();
        assert!(
            fewer.fewer && fewer.text.contains("only 7 of 10"),
            "{fewer:?}"
        );
        let more = counts.compare(part, 11).unwrap();
        assert!(!more.fewer && more.text.contains("1 more"), "{more:?}");
        assert!(counts.compare(Part::ControlPlane, 1).is_some());
    }

    #[test]
    fn the_repository_knows_every_part_that_has_tests() {
        let workspace = Workspace::locate().unwrap();
        let counts = Counts::load(&workspace).unwrap();
        let without = [Stage::Fmt, Stage::Clippy, Stage::Deps, Stage::Msrv].map(Part::Stage);
        // Their kernels have numbers.
        let of_kernels = [Stage::Kernels, Stage::Arm64].map(Part::Stage);
        let without: Vec<_> = without.into_iter().chain(of_kernels).collect();
        for part in Part::all() {
            let counted = counts.of(part) > 0;
            assert_eq!(counted, !without.contains(&part), "{part}");
        }
    }
}
