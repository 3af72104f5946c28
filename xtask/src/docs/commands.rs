//! The commands that pages tell readers to type, and how each is checked.

use std::path::PathBuf;

use super::page::{Block, Page};

/// The languages of blocks with commands.
const LANGUAGES: [&str; 4] = ["sh", "console", "bash", "shell"];
/// What stands before a command in a block that also shows what it prints.
const PROMPT: &str = "$ ";

/// A command of a page, in one line or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub page: PathBuf,
    /// Its line in the page, from 1.
    pub line: usize,
    /// As a shell reads it, without the comment at its end.
    pub text: String,
    /// What the page says that it prints, if it does.
    pub output: Option<String>,
}

/// How a command is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// It runs on a node of a cluster: test `control_plane::documented`.
    Runs,
    /// `cargo xtask` reads its arguments, and the program that it starts does.
    Xtask,
    /// The tests that it runs are there.
    CargoTest,
    /// It is not run, for this reason. Its scripts are there, and kubectl and node-lb know its options.
    NotRun(&'static str),
}

/// The programs of commands that run.
const PROGRAMS: [&str; 10] = [
    "bpftool", "cat", "cd", "curl", "echo", "grep", "helm", "kubectl", "mkdir", "node-lb",
];
/// The beginnings of commands that cannot run in a test, and why.
const NOT_RUN: [(&str, &str); 14] = [
    ("az aks update ", "changes a cluster in a cloud"),
    ("podman build ", "needs a container engine"),
    ("ssh -N ", "needs another machine"),
    ("rustup toolchain install ", OF_THE_MACHINE),
    ("cargo binstall ", OF_THE_MACHINE),
    ("cargo build -p lb-tests", "builds the program of this test"),
    ("kubectl --namespace kube-system logs ", OF_KUBELETS),
    ("kubectl --namespace kube-system rollout ", OF_KUBELETS),
    ("kubectl -n kube-system port-forward ", OF_KUBELETS),
    ("kubectl debug node/", OF_KUBELETS),
    ("tests/cluster/continuity.sh", OF_THE_CLUSTER),
    ("tests/cluster/hostile.py", OF_THE_CLUSTER),
    ("tests/cluster/proxy.sh ", OF_THE_CLUSTER),
    ("tests/cluster/smoke.sh", OF_THE_CLUSTER),
];
const OF_THE_MACHINE: &str = "changes the machine's toolchains";
const OF_KUBELETS: &str = "needs a kubelet, which tests with a control plane have not";
const OF_THE_CLUSTER: &str = "needs `cargo xtask cluster up`";

impl Command {
    /// The commands that it consists of, by `&&` and `;`.
    pub fn parts(&self) -> Vec<&str> {
        // The text of a file may have any of these.
        if self.text.contains('\n') {
            return vec![&self.text];
        }
        let parts = self.text.split("; ").flat_map(|part| part.split(" && "));
        parts.map(str::trim).collect()
    }

    /// Whether all of it runs.
    pub fn runs(&self) -> bool {
        let mut parts = self.parts().into_iter();
        parts.all(|part| check(part) == Some(Check::Runs))
    }
}

/// How a [part](Command::parts) of a command is checked; `None` if it is of no kind that has a check.
pub fn check(part: &str) -> Option<Check> {
    let not_run = NOT_RUN.iter().find(|(start, _)| part.starts_with(start));
    if let Some((_, reason)) = not_run {
        return Some(Check::NotRun(reason));
    }
    let mut words = part.split_whitespace().skip_while(|word| is_variable(word));
    match (words.next()?, words.next()) {
        ("cargo", Some("xtask")) => Some(Check::Xtask),
        ("cargo", Some("test")) => Some(Check::CargoTest),
        (program, _) if PROGRAMS.contains(&program) => Some(Check::Runs),
        _ => None,
    }
}

/// The words of a command in one line. Blanks in single quotes are parts of a word.
pub fn words(part: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), None, false);
    for c in part.chars() {
        match c {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_with(String::new);
            }
            blank if blank.is_whitespace() && !quoted => words.extend(word.take()),
            other => word.get_or_insert_with(String::new).push(other),
        }
    }
    words.extend(word);
    words
}

/// Whether a word before a command sets a variable for it.
pub fn is_variable(word: &str) -> bool {
    let name = word.split_once('=').map(|(name, _)| name);
    name.is_some_and(|name| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    })
}

impl Page {
    /// The commands that it tells readers to type, by block.
    pub fn scripts(&self) -> Vec<Vec<Command>> {
        let mut blocks = self.blocks();
        blocks.retain(|block| LANGUAGES.contains(&block.language.as_str()));
        blocks.iter().map(|block| self.script(block)).collect()
    }

    fn script(&self, block: &Block) -> Vec<Command> {
        let shows_output = block.text.lines().any(|line| line.starts_with(PROMPT));
        let mut commands = Vec::new();
        let mut lines = block.text.lines().zip(block.line..);
        while let Some((first, line)) = lines.next() {
            let first = match (shows_output, first.strip_prefix(PROMPT)) {
                (true, None) => continue,
                (_, command) => command.unwrap_or(first),
            };
            let mut text = without_comment(first).to_owned();
            if text.is_empty() {
                continue;
            }
            while let Some(begun) = text.strip_suffix('\\') {
                let more = lines.next().map_or("", |(more, _)| more.trim());
                text = format!("{}{}", begun, without_comment(more));
            }
            if let Some(end) = here_document(&text) {
                let end = end.to_owned();
                for (more, _) in lines.by_ref() {
                    text = format!("{text}\n{more}");
                    if more == end {
                        break;
                    }
                }
            }
            let output = shows_output.then(|| {
                let rest = block.text.lines().skip(line + 1 - block.line);
                let printed = rest.take_while(|line| !line.starts_with(PROMPT));
                printed.collect::<Vec<_>>().join("\n")
            });
            commands.push(Command {
                page: self.path.clone(),
                line,
                text,
                output: output.filter(|output| !output.is_empty()),
            });
        }
        commands
    }
}

fn without_comment(line: &str) -> &str {
    match line.starts_with('#') {
        true => "",
        false => line.split(" #").next().unwrap_or(line).trim_end(),
    }
}

/// What ends the text that follows a command for its input.
fn here_document(command: &str) -> Option<&str> {
    let (_, end) = command.split_once("<<")?;
    Some(end.split_whitespace().next()?.trim_matches('\''))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docs::pages;

    fn commands() -> Vec<Command> {
        let pages = pages().unwrap();
        let scripts = pages.iter().flat_map(Page::scripts);
        scripts.flatten().collect()
    }

    #[test]
    fn each_command_is_checked_in_one_way() {
        let commands = commands();
        let mut runs = 0;
        for command in &commands {
            let place = format!("{}:{}", command.page.display(), command.line);
            let checks = command.parts().into_iter().map(|part| {
                check(part).unwrap_or_else(|| panic!("{place}: nothing checks {part:?}"))
            });
            let running = checks.map(|check| check == Check::Runs);
            let running: Vec<_> = running.collect();
            let is_whole = running.iter().all(|part| *part == running[0]);
            assert!(
                is_whole,
                "{place}: only a part of it runs: write two commands"
            );
            runs += usize::from(running[0]);
        }
        assert!(
            commands.len() > 120 && runs > 70,
            "{runs} of {}",
            commands.len()
        );
    }

    #[test]
    fn what_is_not_run_is_on_a_page() {
        let commands = commands();
        for (start, _) in NOT_RUN {
            let mut parts = commands.iter().flat_map(Command::parts);
            let is_there = parts.any(|part| part.starts_with(start));
            assert!(is_there, "no page has {start:?} any more");
        }
    }

    #[test]
    fn commands_are_read_as_a_shell_reads_them() {
        let text = "```sh\n# nothing\na --b \\\n  c   # why\ncat > x <<'EOF'\n# d; e && f\nEOF\n```\n\
                    ```console\n$ g # h\nprinted\n```\n```text\nno\n```\n";
        let page = Page {
            path: "a.md".into(),
            text: text.to_owned(),
        };
        let scripts = page.scripts().into_iter();
        let scripts: Vec<Vec<_>> = scripts
            .map(|script| script.into_iter().map(|command| command.text).collect())
            .collect();
        let first = ["a --b c", "cat > x <<'EOF'\n# d; e && f\nEOF"];
        assert_eq!(scripts, [&first[..], &["g"]]);
        let commands = page.scripts().concat();
        let lines: Vec<_> = commands.iter().map(|command| command.line).collect();
        assert_eq!(lines, [3, 5, 10]);
        assert_eq!(commands[2].output.as_deref(), Some("printed"));
        assert_eq!(words("a 'b  c' d='e f' ''"), ["a", "b  c", "d=e f", ""]);
    }

    #[test]
    fn a_command_of_no_kind_has_no_check() {
        assert_eq!(check("rm -r /"), None);
        assert_eq!(check("X=1 cargo test"), Some(Check::CargoTest));
        assert_eq!(check("cargo publish"), None);
        assert!(matches!(check("podman build ."), Some(Check::NotRun(_))));
    }
}
