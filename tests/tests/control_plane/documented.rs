//! The commands of the documentation, run as a reader types them: on a node of a cluster, with the files that the
//! examples are about. `xtask::docs` says which commands these are.
//!
//! The lab has node-lb's sockets, pins and cgroups at places of its own. `documented/enter` puts them at the usual ones, in
//! a mount namespace, and `documented/bin` has the programs that need help with that.

mod reader;

use std::{collections::BTreeMap, process::Command as Process};

use anyhow::{Result, ensure};
use reader::{Ending, Reader};
use xtask::{
    docs::{self, Check, Command, Page, check, words},
    ebpf::Places,
};

/// Parts of commands that go on until they are interrupted. `top` is one unless it is to show [`ONE`] interval.
const STAY: [&str; 7] = [
    "node-lb agent ",
    "--watch",
    "?watch",
    "--for 1h",
    "--seconds 60",
    "--reason ",
    " top",
];
const ONE: &str = "--once";
/// What `timeout` ends with if it had to end the command.
const INTERRUPTED: i32 = 124;
/// Commands that end with more than 0, and with what. Whether something needs attention depends on the machine.
const STATUSES: [(&str, &[i32]); 2] = [("node-lb status", &[0, 3]), ("-f bad.yaml", &[1])];
/// What must print exactly what the page says, because nothing depends on the node.
const EXACT: [&str; 3] = [
    "node-lb admission check -f bad.yaml",
    "node-lb admission plan --concurrency 20000",
    "node-lb admission explain --from 10.244.1.7 --to shop/web:80 --ingress pod",
];
/// Commands after which the account of the lab's agents is another one.
const LAST: [&str; 2] = ["helm ", "--kustomize "];

#[test]
fn every_command_of_the_pages_works() -> Result<()> {
    let pages = docs::pages()?;
    let mut scripts: Vec<_> = pages.iter().flat_map(Page::scripts).collect();
    for script in &mut scripts {
        script.retain(Command::runs);
    }
    scripts.sort_by_key(|script| {
        let texts = script.iter().map(|command| command.text.as_str());
        LAST.map(|part| texts.clone().any(|text| text.contains(part)))
    });
    let mut reader = Reader::up()?;
    let mut wrong = Vec::new();
    for script in &scripts {
        for (command, ending) in script.iter().zip(reader.run(script)?) {
            if let Some(trouble) = trouble(command, &ending) {
                let Command {
                    page, line, text, ..
                } = command;
                let Ending { status, printed } = ending;
                let place = format!("{}:{line}", page.display());
                wrong.push(format!(
                    "{place}: {text}\n{trouble}, with {status}:\n{printed}"
                ));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let commands: Vec<_> = scripts.iter().flatten().collect();
    for part in STAY.iter().chain(STATUSES.iter().map(|(part, _)| part)) {
        let is_there = commands.iter().any(|command| command.text.contains(part));
        ensure!(is_there, "no command has {part:?} any more");
    }
    for text in EXACT {
        let is_there = commands.iter().any(|command| is_told(command, text));
        ensure!(is_there, "no page shows any more what {text} prints");
    }
    Ok(())
}

/// Whether a page shows what this command prints.
fn is_told(command: &Command, text: &str) -> bool {
    command.text == text && command.output.is_some()
}

/// With each option that stands before a command for a pod; `--help` has kubectl say no more than that.
#[test]
fn kubectl_knows_the_options_of_commands_that_are_not_run() -> Result<()> {
    let parts = parts_with(|check| matches!(check, Check::NotRun(_)))?;
    let parts = parts.iter().filter(|part| part.starts_with("kubectl "));
    let mut count = 0;
    for part in parts {
        count += 1;
        let options = part.split(" -- ").next().unwrap_or(part);
        let kubectl = Places::from_env().cluster_programs().join("kubectl");
        let arguments = words(options)
            .into_iter()
            .skip(1)
            .chain(["--help".to_owned()]);
        let output = Process::new(kubectl).args(arguments).output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{part}: {error}");
    }
    ensure!(count > 3, "{count}");
    Ok(())
}

/// `cargo xtask` hands their arguments on.
#[test]
fn programs_of_the_lab_know_their_arguments() -> Result<()> {
    let programs = BTreeMap::from([
        ("demo", env!("CARGO_BIN_EXE_demo")),
        ("faults", env!("CARGO_BIN_EXE_faults")),
        ("lab", env!("CARGO_BIN_EXE_lab")),
    ]);
    let mut count = 0;
    for part in parts_with(|check| check == Check::Xtask)? {
        let words = words(&part);
        let Some(program) = programs.get(words[2].as_str()) else {
            continue;
        };
        count += 1;
        let output = Process::new(program)
            .args(&words[3..])
            .arg("--help")
            .output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{part}: {error}");
    }
    ensure!(count > 4, "{count}");
    let list = Process::new(programs["faults"]).output()?;
    ensure!(list.status.success() && String::from_utf8(list.stdout)?.contains("dead-endpoint"));
    Ok(())
}

/// The parts of all commands that are checked in a way.
fn parts_with(wanted: impl Fn(Check) -> bool) -> Result<Vec<String>> {
    let pages = docs::pages()?;
    let commands: Vec<_> = pages.iter().flat_map(Page::scripts).flatten().collect();
    let parts = commands.iter().flat_map(Command::parts);
    let parts = parts.filter(|part| check(part).is_some_and(&wanted));
    Ok(parts.map(str::to_owned).collect())
}

/// What is wrong with how a command has ended.
fn trouble(command: &Command, ending: &Ending) -> Option<&'static str> {
    let text = &command.text;
    let expected = match STATUSES.iter().find(|(part, _)| text.contains(part)) {
        _ if stays(text) => &[INTERRUPTED],
        Some((_, statuses)) => *statuses,
        None => &[0],
    };
    if !expected.contains(&ending.status) {
        return Some("it has not ended as it should");
    }
    let told = command
        .output
        .as_deref()
        .filter(|_| EXACT.contains(&text.as_str()));
    let is_told = told.is_none_or(|told| told.trim_end() == ending.printed.trim_end());
    (!is_told).then_some("it prints something else")
}

fn stays(text: &str) -> bool {
    STAY.iter().any(|part| text.contains(part)) && !text.contains(ONE)
}
