//! The commands as an operator runs them: files in; JSON, tables and sentences out.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixListener,
    path::Path,
    process::{Command, Output},
    thread,
};

use node_lb::agent::status::Status;
use serde::Serialize;
use serde_json::Value;
use tempfile::TempDir;

mod admission;
mod admission_connections;
mod admission_levels;
mod admission_queues;
mod admission_recorded;
mod admission_simulate;
mod explain;
mod flows;
mod help;
mod plan;
mod status;
mod top;

/// Runs something beside an agent that answers one request for its status; `run` gets the path of
/// its socket.
fn beside_an_agent<T>(status: &Status, run: impl FnOnce(&str) -> T) -> T {
    beside_an_agent_of("/status", status, run)
}

/// The same beside an agent that is asked for this path.
fn beside_an_agent_of<T>(path: &str, answer: &impl Serialize, run: impl FnOnce(&str) -> T) -> T {
    let expected = format!("GET {path} ");
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("agent.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let body = serde_json::to_string(answer).unwrap();
    let agent = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // It comes in pieces.
        let lines = BufReader::new(&stream).lines().map(Result::unwrap);
        let request: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
        assert!(request[0].starts_with(&expected), "{request:?}");
        write!(stream, "HTTP/1.0 200 OK\r\n\r\n{body}").unwrap();
    });
    let result = run(socket.to_str().unwrap());
    agent.join().unwrap();
    result
}

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
