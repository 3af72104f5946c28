//! Whether the links of a site lead somewhere: each `href` and `src` to a file of it, and its anchor to an `id` there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

/// What other hosts have, and what is no file at all.
const ELSEWHERE: [&str; 4] = ["http://", "https://", "data:", "javascript:"];

/// The links of a site in a directory that lead nowhere, each with its page.
///
/// # Errors
/// If a page cannot be read, or there is none.
pub fn dead_links(site: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    read_pages(site, Path::new(""), &mut pages)?;
    ensure!(!pages.is_empty(), "{} has no page", site.display());
    let mut dead = Vec::new();
    for (path, page) in &pages {
        for link in &page.links {
            if !leads(site, &pages, path, link) {
                dead.push(format!("{}: {link}", path.display()));
            }
        }
    }
    Ok(dead)
}

/// What a page says of links.
struct Page {
    links: BTreeSet<String>,
    anchors: BTreeSet<String>,
}

impl Page {
    fn parse(html: &str) -> Self {
        let of = |name| attributes(html, name);
        Self {
            links: of("href").chain(of("src")).collect(),
            anchors: of("id").collect(),
        }
    }
}

fn read_pages(site: &Path, below: &Path, pages: &mut BTreeMap<PathBuf, Page>) -> Result<()> {
    let directory = site.join(below);
    let entries = fs::read_dir(&directory);
    for entry in entries.with_context(|| format!("cannot read {}", directory.display()))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            read_pages(site, &path, pages)?;
        } else if path.extension().is_some_and(|end| end == "html") {
            let html = fs::read_to_string(entry.path());
            let html = html.with_context(|| format!("cannot read {}", path.display()))?;
            pages.insert(path, Page::parse(&html));
        }
    }
    Ok(())
}

fn leads(site: &Path, pages: &BTreeMap<PathBuf, Page>, from: &Path, link: &str) -> bool {
    if ELSEWHERE.iter().any(|start| link.starts_with(start)) {
        return true;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => Some(from.to_owned()),
        file => below(from.parent().unwrap_or(Path::new("")), file),
    };
    let Some(target) = target else {
        return false;
    };
    match pages.get(&target) {
        Some(page) => anchor.is_empty() || page.anchors.contains(anchor),
        None => anchor.is_empty() && site.join(target).is_file(),
    }
}

/// A relative link's file in the site; `None` if it leads out of it.
fn below(directory: &Path, link: &str) -> Option<PathBuf> {
    let mut path = directory.to_owned();
    for component in Path::new(link).components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::ParentDir => path = path.parent()?.to_owned(),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

/// The values of all attributes of this name, in double quotes as mdBook writes them.
fn attributes<'a>(html: &'a str, name: &str) -> impl Iterator<Item = String> + use<'a> {
    let start = format!(" {name}=\"");
    let mut rest = html;
    std::iter::from_fn(move || {
        let at = rest.find(&start)? + start.len();
        let (value, after) = rest[at..].split_once('"')?;
        rest = after;
        Some(value.replace("&amp;", "&"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_files_and_to_anchors_of_pages() {
        let html = |path: &str, text: &str| (PathBuf::from(path), Page::parse(text));
        let pages = BTreeMap::from([
            html(
                "index.html",
                r#"<h1 id="top"><a class="x" href="docs/a.html#one">"#,
            ),
            html("docs/a.html", r#"<h2 id="one"><img src="../pic.svg">"#),
        ]);
        let nowhere = Path::new("/nonexistent");
        let leads = |from: &str, link: &str| leads(nowhere, &pages, Path::new(from), link);
        for (from, link) in [
            ("index.html", "docs/a.html#one"),
            ("docs/a.html", "../index.html"),
            ("docs/a.html", "#one"),
            ("docs/a.html", "https://example.com/#any"),
        ] {
            assert!(leads(from, link), "{from}: {link}");
        }
        for (from, link) in [
            ("index.html", "docs/a.html#two"),
            ("docs/a.html", "index.html"),
            ("docs/a.html", "../../index.html"),
            ("docs/a.html", "../pic.svg"),
            ("docs/a.html", "/index.html"),
        ] {
            assert!(!leads(from, link), "{from}: {link}");
        }
        let links = &pages[Path::new("docs/a.html")].links;
        assert_eq!(links, &BTreeSet::from(["../pic.svg".to_owned()]));
    }
}
