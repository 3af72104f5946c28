//! The pages of the documentation, as text.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A page, in Markdown.
pub struct Page {
    pub path: PathBuf,
    pub text: String,
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

impl Page {
    pub fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path, text }
    }

    /// The lines that are not in a block of code.
    pub fn prose(&self) -> impl Iterator<Item = &str> {
        let mut in_code = false;
        self.text.lines().filter(move |line| {
            let fence = line.trim_start().starts_with("```");
            in_code ^= fence;
            !in_code && !fence
        })
    }

    /// The blocks of code in a language.
    pub fn code(&self, language: &str) -> Vec<String> {
        let mut blocks = Vec::new();
        let mut lines = self.text.lines();
        while let Some(line) = lines.next() {
            let Some(fence) = line.trim_start().strip_prefix("```") else {
                continue;
            };
            let block: Vec<_> = lines
                .by_ref()
                .take_while(|line| !line.trim_start().starts_with("```"))
                .collect();
            if fence == language {
                blocks.push(block.join("\n"));
            }
        }
        blocks
    }

    /// The headings of a level, in order.
    pub fn headings(&self, level: usize) -> Vec<&str> {
        let mark = format!("{} ", "#".repeat(level));
        self.prose()
            .filter_map(|line| line.strip_prefix(&mark))
            .collect()
    }
}

/// All pages in a directory, in the order of their names.
pub fn pages(directory: &Path) -> Vec<Page> {
    let entries = fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    paths.sort();
    paths.into_iter().map(Page::read).collect()
}

/// The pages about distributions and CNIs, without their index.
pub fn distributions() -> Vec<Page> {
    let mut all = pages(&root().join("docs/distributions"));
    all.retain(|page| !page.path.ends_with("README.md"));
    all
}
