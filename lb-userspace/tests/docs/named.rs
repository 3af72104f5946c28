//! The pages that messages, comments, charts and alerts name.

use std::{
    fs,
    path::{Path, PathBuf},
};

use node_lb::docs::Section;
use xtask::docs::{Page, root};

/// Where node-lb itself comes from, and what is installed with it.
const SOURCES: [&str; 7] = [
    "deploy",
    "fuzz/fuzz_targets",
    "lb-common/src",
    "lb-ebpf/src",
    "lb-userspace",
    "tests",
    "xtask",
];
/// What a page's name ends with.
const END: &str = ".md";

#[test]
fn each_section_that_messages_name_is_there() {
    for section in Section::ALL {
        let name = section.to_string();
        assert!(name.contains('#'), "{name} is a whole page");
        assert!(is_there(&name), "there is no {name}");
    }
}

#[test]
fn each_page_that_other_files_name_is_there() {
    let (mut files, mut names, mut missing) = (0, 0, Vec::new());
    for source in SOURCES {
        each_text(&root().join(source), &mut |path, text| {
            // Here are names of pages that are not there.
            if path.ends_with("tests/docs/named.rs") {
                return;
            }
            files += 1;
            for name in named(text) {
                names += 1;
                if !is_there(name) {
                    missing.push(format!("{}: {name}", path.display()));
                }
            }
        });
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(files > 500 && names > 40, "{files} files, {names} names");
}

#[test]
fn names_of_pages_are_found_in_text() {
    let text = "see docs/a.md#b-c), `docs/d/e.md`, docs/f and https://example.com/docs/g";
    let names: Vec<_> = named(text).collect();
    assert_eq!(names, ["docs/a.md#b-c", "docs/d/e.md"]);
    assert!(is_there("docs/alerts.md") && !is_there("docs/alarms.md"));
    assert!(!is_there("docs/alerts.md#nodelbnothing"));
}

/// The names `docs/PAGE.md` and `docs/PAGE.md#SECTION` in a text.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.match_indices("docs/").map(|(at, _)| &text[at..]);
    starts.filter_map(|rest| {
        let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '/' | '-' | '_' | '.' | '#');
        let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
        let (page, after) = rest[..end].split_once(END)?;
        let length = match after.starts_with('#') {
            true => end,
            false => page.len() + END.len(),
        };
        Some(rest[..length].trim_end_matches(['.', '-', '/']))
    })
}

fn is_there(name: &str) -> bool {
    let (path, anchor) = name.split_once('#').unwrap_or((name, ""));
    let page = Page::read(path);
    page.is_ok_and(|page| anchor.is_empty() || page.has_anchor(anchor))
}

/// Calls `look` with each file of text below a directory.
fn each_text(directory: &Path, look: &mut impl FnMut(&Path, &str)) {
    let entries = fs::read_dir(directory).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            each_text(&path, look);
        } else if let Ok(text) = fs::read_to_string(&path) {
            look(&path, &text);
        }
    }
}
