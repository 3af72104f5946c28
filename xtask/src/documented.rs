//! The commands that pages tell developers to type.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, process::Command as Process};

use anyhow::{Context, Result, ensure};
use xtask::docs::{self, Check, Command, Page, check, is_variable, words};

use crate::{Task, cargo::Workspace};

/// The parts of all commands that are checked in a way, each with its place.
fn parts(wanted: impl Fn(Check) -> bool) -> Vec<(String, String)> {
    let pages = docs::pages().unwrap();
    let commands = pages.iter().flat_map(Page::scripts).flatten();
    let parts = commands.flat_map(|command: Command| {
        let place = format!("{}:{}", command.page.display(), command.line);
        let parts = command.parts().into_iter();
        let parts = parts.filter(|part| check(part).is_some_and(&wanted));
        parts
            .map(|part| (place.clone(), part.to_owned()))
            .collect::<Vec<_>>()
    });
    parts.collect()
}

#[test]
fn each_command_of_xtask_is_one() {
    let workspace = Workspace::locate().unwrap();
    let parts = parts(|check| check == Check::Xtask);
    assert!(parts.len() > 30, "{}", parts.len());
    for (place, part) in parts {
        let words = words(&part);
        let parsed = Task::parse(&workspace, &words[2..]);
        let error = parsed.err().map(|error| format!("{error:#}"));
        assert_eq!(error, None, "{place}: {part}");
    }
}

#[test]
fn tests_that_are_to_be_run_are_there() {
    let parts = parts(|check| check == Check::CargoTest);
    assert!(parts.len() > 5, "{}", parts.len());
    for (place, part) in parts {
        let found = find_tests(&part);
        assert!(found.is_ok(), "{place}: {part}: {:#}", found.unwrap_err());
    }
    for wrong in [
        "cargo test -p lb-tests --test hostil -- short::",
        "cargo test -p lb-tests --test hostile -- long::",
        "cargo test -p lb-test --test hostile",
        "LAB_ATTACK_MINUTES=1 cargo test -p lb-tests --test hostile",
    ] {
        assert!(find_tests(wrong).is_err(), "{wrong}");
    }
}

/// Looks for the program, the module and the variables of a run of tests.
fn find_tests(part: &str) -> Result<()> {
    let words = words(part);
    let words = words.iter().map(String::as_str);
    let words: Vec<_> = words.skip_while(|word| is_variable(word)).collect();
    let value = |option: &str| {
        let at = words.iter().position(|word| *word == option);
        let value = at.and_then(|at| words.get(at + 1));
        value.with_context(|| format!("no {option}"))
    };
    let package = match *value("-p")? {
        "lb-tests" => "tests",
        "node-lb" => "lb-userspace",
        other => anyhow::bail!("no package {other} with tests of its own"),
    };
    let name = value("--test")?;
    let tests = docs::root().join(package).join("tests");
    let alone = tests.join(format!("{name}.rs"));
    let main = tests.join(name).join("main.rs");
    let source = fs::read_to_string(&main).or_else(|_| fs::read_to_string(&alone));
    let source = source.with_context(|| format!("no program {name} in {package}"))?;

    // Positions of options and of their values; what remains is the filter.
    let is_value = |at: usize| matches!(words[at - 1], "-p" | "--test" | "--test-threads");
    let filters = (2..words.len()).filter(|at| !words[*at].starts_with('-') && !is_value(*at));
    for at in filters {
        let module = words[at].trim_end_matches("::");
        let is_there = source.contains(&format!("mod {module};"));
        ensure!(is_there, "{name} has no module {module}");
    }
    for variable in part.split_whitespace().take_while(|word| is_variable(word)) {
        let (variable, _) = variable.split_once('=').context("no value")?;
        let mut grep = Process::new("grep");
        grep.args([
            "--recursive",
            "--quiet",
            "--word-regexp",
            "--include=*.rs",
            variable,
        ]);
        let found = grep.arg(docs::root().join(package)).status();
        let is_known = found.context("cannot run grep")?.success();
        ensure!(is_known, "{package} does not know {variable}");
    }
    Ok(())
}

#[test]
fn scripts_that_are_not_run_are_there() {
    let parts = parts(|check| matches!(check, Check::NotRun(_)));
    let scripts: Vec<PathBuf> = parts
        .iter()
        .filter_map(|(_, part)| part.split_whitespace().next())
        .filter(|program| program.contains('/'))
        .map(|program| docs::root().join(program))
        .collect();
    assert!(scripts.len() > 3, "{scripts:?}");
    for script in scripts {
        let mode = fs::metadata(&script).map(|script| script.permissions().mode());
        assert!(
            mode.is_ok_and(|mode| mode & 0o111 != 0),
            "{}",
            script.display()
        );
    }
}
