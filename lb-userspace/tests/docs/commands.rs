//! The commands that pages tell readers to type.

use clap::error::ErrorKind;
use node_lb::cli;
use xtask::docs::{Page, code_spans, pages};

/// What stands for a reader's own values, and a value that could be one.
const PLACEHOLDERS: [(&str, &str); 7] = [
    ("--kubeconfig …", "--kubeconfig PATH"),
    ("--from …", "--from 192.0.2.1"),
    ("--to …", "--to 192.0.2.2:80"),
    (" …", ""),
    ("ADDRESS:PORT", "192.0.2.2:80"),
    ("NODE:", "192.0.2.3:"),
    ("CLIENT", "192.0.2.1"),
];
/// Options of the kubectl plugin, which come before the command, each with a value.
const OF_PLUGIN: [&str; 3] = ["--node", "--pod", "--service"];

/// With each option that it has there, and as far as can be told, with a value that the option takes.
#[test]
fn each_command_of_node_lb_is_one() {
    let (mut commands, mut wrong) = (0, Vec::new());
    for page in pages().unwrap() {
        let blocks = in_blocks(&page).into_iter().map(|line| (line, true));
        let spans = in_prose(&page).into_iter().map(|span| (span, false));
        for (command, is_whole) in blocks.chain(spans) {
            commands += 1;
            if let Err(error) = parse(&command, is_whole) {
                wrong.push(format!("{}: {command}\n{error}", page.path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(commands > 150, "{commands}");
}

#[test]
fn what_is_no_command_is_found() {
    assert!(parse("status -o json", true).is_ok());
    assert!(parse("explain", false).is_ok(), "prose names a command");
    for wrong in [
        "state",
        "status --jsn",
        "status -o text",
        "explain",
        "top --interval never",
    ] {
        assert!(parse(wrong, true).is_err(), "{wrong}");
    }
}

/// Parses the words after `node-lb`. Prose may name a command without its arguments, and `…` may stand for
/// more of them.
fn parse(command: &str, is_whole: bool) -> Result<(), clap::Error> {
    let is_whole = is_whole && !command.ends_with('…');
    let mut command = command.to_owned();
    for (placeholder, value) in PLACEHOLDERS {
        command = command.replace(placeholder, value);
    }
    let words = command.split_whitespace();
    let words = ["node-lb"].into_iter().chain(words);
    match cli::definition().try_get_matches_from(words) {
        Err(error) if is_accepted(error.kind(), is_whole) => Ok(()),
        parsed => parsed.map(drop),
    }
}

fn is_accepted(error: ErrorKind, is_whole: bool) -> bool {
    match error {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => !is_whole,
        _ => false,
    }
}

/// The commands in a page's blocks for a shell, by the words after `node-lb`.
fn in_blocks(page: &Page) -> Vec<String> {
    let mut blocks = page.blocks();
    blocks.retain(|block| matches!(block.language.as_str(), "sh" | "console"));
    let blocks = blocks.iter();
    let text: Vec<_> = blocks
        .map(|block| block.text.replace("\\\n", " "))
        .collect();
    let lines = text.iter().flat_map(|block| block.lines());
    lines.filter_map(command).collect()
}

/// The commands in a page's prose.
fn in_prose(page: &Page) -> Vec<String> {
    let prose = page.prose().collect::<Vec<_>>().join(" ");
    let spans = code_spans(&prose).into_iter();
    spans
        .filter(|span| span.starts_with("node-lb "))
        .filter_map(|span| command(&span))
        .collect()
}

/// The words after `node-lb` of a line that runs it, perhaps by kubectl.
fn command(line: &str) -> Option<String> {
    let line = line.trim().trim_start_matches("$ ");
    let line = line.split(" #").next()?;
    let line = line.split(['|', '>', ';']).next()?.trim();
    if let Some(command) = line.strip_prefix("node-lb ") {
        return Some(command.to_owned());
    }
    if let Some(arguments) = line.strip_prefix("kubectl node-lb ") {
        let mut words: Vec<_> = arguments.split_whitespace().collect();
        while words.first().is_some_and(|word| OF_PLUGIN.contains(word)) {
            words.drain(..2);
        }
        // Of a whole way, the plugin itself asks the agents.
        if words.contains(&"--from-pod") {
            words.retain(|word| *word != "--live");
        }
        return Some(words.join(" "));
    }
    let (_, command) = line.split_once(" -- node-lb ")?;
    Some(command.to_owned())
}
