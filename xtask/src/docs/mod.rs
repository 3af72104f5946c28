//! The documentation: its pages as text, their order in the site, and the commands that they tell readers to type.

mod commands;
mod page;
mod summary;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

pub use self::{
    commands::{Check, Command, check, is_variable, words},
    page::{Page, code_spans, slug},
    summary::{SUMMARY, Summary},
};

/// The directories with pages, in the repository.
const DIRECTORIES: [&str; 4] = ["", "docs", "docs/distributions", "tests/cluster"];

/// The root of the repository.
pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().unwrap_or(root)
}

/// All pages, the site's summary among them.
///
/// # Errors
/// If one cannot be read.
pub fn pages() -> Result<Vec<Page>> {
    let of = DIRECTORIES.map(pages_in);
    let of: Result<Vec<_>> = of.into_iter().collect();
    Ok(of?.into_iter().flatten().collect())
}

/// The pages in a directory of the repository, in the order of their names.
///
/// # Errors
/// If one cannot be read.
pub fn pages_in(directory: &str) -> Result<Vec<Page>> {
    let place = root().join(directory);
    let entries = fs::read_dir(&place);
    let entries = entries.with_context(|| format!("cannot read {}", place.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let name = PathBuf::from(entry?.file_name());
        if name.extension().is_some_and(|extension| extension == "md") {
            names.push(Path::new(directory).join(name));
        }
    }
    names.sort();
    names.iter().map(Page::read).collect()
}
