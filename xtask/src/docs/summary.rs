//! The order of the pages in the site.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::page::Page;

/// The page that has the order.
pub const SUMMARY: &str = "docs/SUMMARY.md";

/// The order of the pages in the site, as [mdBook](https://rust-lang.github.io/mdBook/format/summary.html) reads it.
/// Its links are relative to its own place, so a forge shows it as a table of contents.
pub struct Summary(Page);

impl Summary {
    /// Reads [`SUMMARY`].
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read() -> Result<Self> {
        Page::read(SUMMARY).map(Self)
    }

    /// The pages of the site, in order.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn pages(&self) -> Result<Vec<Page>> {
        let targets = self.0.targets().into_iter();
        targets.map(|target| Page::read(target.path)).collect()
    }

    /// Its text for a reader that stands at the root of the repository.
    ///
    /// # Errors
    /// If a link leads out of the repository.
    pub fn at_root(&self) -> Result<String> {
        let mut parts = self.0.text.split("](");
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (link, rest) = part
                .split_once(')')
                .with_context(|| format!("{SUMMARY}: a link has no end: {part}"))?;
            let path = self.0.target(link).path;
            let path = path.to_str().context("a path is not UTF-8")?;
            text += &format!("]({path}){rest}");
        }
        Ok(text)
    }

    /// The files that pages of the site lead to and that are no pages: scripts, manifests, licences, pictures.
    ///
    /// # Errors
    /// If a page cannot be read.
    pub fn attachments(&self) -> Result<BTreeSet<PathBuf>> {
        let pages = self.pages()?;
        let targets = pages.iter().flat_map(Page::targets);
        let paths = targets.map(|target| target.path);
        let is_page = |path: &Path| path.extension().is_some_and(|extension| extension == "md");
        Ok(paths.filter(|path| !is_page(path)).collect())
    }
}
