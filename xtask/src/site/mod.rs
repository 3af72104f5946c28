//! `cargo xtask docs`: the documentation as a site, in `target/docs/site`.
//!
//! mdBook takes all pages from one directory. Here they are at several places, and lead to files beside them. So the
//! site is made from a copy of the pages, at the same places below one directory, with the files that they lead to.
//! Therefore a link works on a forge and on the site, and the site needs no other server.

mod check;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use xtask::docs::{self, Summary};

use crate::cargo::{self, Workspace};

/// The version of mdBook that is known to work.
const VERSION: &str = "0.5.4";
/// Without its server and its watcher, which are most of the code.
const OPTIONS: [&str; 3] = ["--no-default-features", "--features", "search"];
/// What mdBook is to make of the pages.
const SETTINGS: &str = "docs/book.toml";

/// Builds the site and checks its links. Returns its first page.
///
/// # Errors
/// If mdBook cannot be installed or fails, or a link of the site leads nowhere.
pub fn build(workspace: &Workspace) -> Result<PathBuf> {
    let purpose = "makes a site of the documentation";
    let program = cargo::provide("mdbook", VERSION, &OPTIONS, purpose)?;
    let directory = workspace.target.join("docs");
    // What an earlier version of the pages had.
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    let (book, site) = (directory.join("book"), directory.join("site"));
    copy_pages(&book)?;
    let mut mdbook = Command::new(program);
    cargo::run(mdbook.arg("build").arg(&book).env("MDBOOK_LOG", "warn"))?;
    let dead = check::dead_links(&site)?;
    ensure!(
        dead.is_empty(),
        "links of the site lead nowhere:\n{}",
        dead.join("\n")
    );
    Ok(site.join("index.html"))
}

/// Makes a book for mdBook of the pages in the summary and of the files that they lead to.
fn copy_pages(book: &Path) -> Result<()> {
    let pages = book.join("src");
    let summary = Summary::read()?;
    for page in summary.pages()? {
        write(&pages.join(page.path), page.text.as_bytes())?;
    }
    for path in summary.attachments()? {
        let content = fs::read(docs::root().join(&path));
        let content = content.with_context(|| format!("cannot read {}", path.display()))?;
        write(&pages.join(path), &content)?;
    }
    write(&pages.join("SUMMARY.md"), summary.at_root()?.as_bytes())?;
    let settings = fs::read(docs::root().join(SETTINGS));
    let settings = settings.with_context(|| format!("cannot read {SETTINGS}"))?;
    write(&book.join("book.toml"), &settings)
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    let directory = path.parent().unwrap_or(path);
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(path, content))
        .with_context(|| format!("cannot write {}", path.display()))
}
