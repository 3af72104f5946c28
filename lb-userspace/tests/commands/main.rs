//! The commands as an operator runs them: files in; JSON, tables and sentences out.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

mod admission;
mod admission_recorded;
mod admission_simulate;
mod explain;
mod flows;
mod plan;

/// Files in a temporary directory in which commands run.
struct Files(TempDir);

impl Files {
    fn new(files: &[(&str, &str)]) -> Self {
        let directory = TempDir::new().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        Self(directory)
    }

    /// One file per text, named by number.
    fn numbered(texts: &[&str]) -> Self {
        let names: Vec<_> = (0..texts.len()).map(|n| format!("{n}.yaml")).collect();
        let names = names.iter().map(String::as_str);
        Self::new(&names.zip(texts.iter().copied()).collect::<Vec<_>>())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_node-lb"));
        command.args(arguments).current_dir(self.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The command's result as JSON, and its whole output.
    fn json(&self, arguments: &[&str]) -> (Value, Output) {
        let output = self.run(&[arguments, &["-o", "json"]].concat());
        let value = serde_json::from_slice(&output.stdout);
        (
            value.unwrap_or_else(|error| panic!("{error}: {output:?}")),
            output,
        )
    }
}

/// Runs a command that needs no files.
fn node_lb(arguments: &[&str]) -> Output {
    Files::new(&[]).run(arguments)
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}
