//! A page, in Markdown.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result};

use super::root;

/// A page, in Markdown.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its file, from the root of the repository.
    pub path: PathBuf,
    pub text: String,
}

/// Where a link leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// A file, from the root of the repository.
    pub path: PathBuf,
    /// The name of a heading there.
    pub anchor: Option<String>,
}

/// A block of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub language: String,
    /// The number of its first line in the page, from 1.
    pub line: usize,
    pub text: String,
}

impl Page {
    /// Reads a file, named from the root of the repository.
    ///
    /// # Errors
    /// If it cannot be read as text.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let text = fs::read_to_string(root().join(&path));
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self { path, text })
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

    /// The blocks of code.
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut lines = self.text.lines().zip(1..);
        while let Some((line, number)) = lines.next() {
            let Some(language) = line.trim_start().strip_prefix("```") else {
                continue;
            };
            let text: Vec<_> = lines
                .by_ref()
                .map(|(line, _)| line)
                .take_while(|line| !line.trim_start().starts_with("```"))
                .collect();
            blocks.push(Block {
                language: language.to_owned(),
                line: number + 1,
                text: text.join("\n"),
            });
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

    /// Whether it has a heading that links call `anchor`.
    pub fn has_anchor(&self, anchor: &str) -> bool {
        let mut headings = (1..=6).flat_map(|level| self.headings(level));
        headings.any(|heading| slug(heading) == anchor)
    }

    /// Where its links lead that do not leave the repository.
    pub fn targets(&self) -> Vec<Target> {
        // A link may begin in one line and end in the next.
        let prose = self.prose().collect::<Vec<_>>().join(" ");
        let ends = prose.split("](").skip(1);
        let links = ends.filter_map(|rest| rest.split([')', ' ']).next());
        links
            .filter(|link| !link.starts_with("http://") && !link.starts_with("https://"))
            .map(|link| self.target(link))
            .collect()
    }

    /// Where a relative link leads.
    pub fn target(&self, link: &str) -> Target {
        let (file, anchor) = match link.split_once('#') {
            Some((file, anchor)) => (file, Some(anchor.to_owned())),
            None => (link, None),
        };
        let path = match file {
            "" => self.path.clone(),
            file => {
                let directory = self.path.parent().unwrap_or(Path::new(""));
                normal(&directory.join(file))
            }
        };
        Target { path, anchor }
    }
}

/// A path without `.` and, as far as it goes, without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir if normal.file_name().is_some() => drop(normal.pop()),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// What links call a heading, on forges and on the site.
pub fn slug(heading: &str) -> String {
    let lower = heading.to_lowercase();
    let kept = lower
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The texts in backquotes.
pub fn code_spans(text: &str) -> Vec<String> {
    let parts = text.split('`').skip(1).step_by(2);
    parts.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(path: &str, text: &str) -> Page {
        Page {
            path: path.into(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn links_lead_from_their_page() {
        let text = "See [a](a.md#one-two), [b](../x/b) and [the\nabove](#top), not [c](https://example.com).\n\
                    ```sh\n[d](d)\n```\n";
        let targets = page("pages/here.md", text).targets();
        let target = |path: &str, anchor: Option<&str>| Target {
            path: path.into(),
            anchor: anchor.map(str::to_owned),
        };
        assert_eq!(
            targets,
            [
                target("pages/a.md", Some("one-two")),
                target("x/b", None),
                target("pages/here.md", Some("top")),
            ]
        );
        let outside = page("README.md", "").target("../secret");
        assert_eq!(outside.path, Path::new("../secret"));
    }

    #[test]
    fn headings_have_names_for_links_and_blocks_have_lines() {
        let page = page("a.md", "# `A` thing, 1!\n```sh\n# no heading\n```\n");
        assert!(page.has_anchor("a-thing-1"));
        assert!(!page.has_anchor("no-heading"));
        let blocks = page.blocks();
        assert_eq!((blocks[0].line, blocks[0].language.as_str()), (3, "sh"));
        assert_eq!(blocks[0].text, "# no heading");
    }
}
