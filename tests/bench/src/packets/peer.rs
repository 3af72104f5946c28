//! Another program that measures in turn: it reads names of cases and writes nanoseconds.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// A program that speaks the protocol of `bench --serve`. It ends when its input ends.
pub struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Cases that it knows by another name.
    names: Vec<(&'static str, String)>,
    unknown: BTreeSet<&'static str>,
}

impl Peer {
    /// Starts a shell command.
    ///
    /// # Errors
    ///
    /// If there is no shell.
    pub fn start(command: &str, names: Vec<(&'static str, String)>) -> Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run the peer {command:?}"))?;
        let input = child.stdin.take();
        let output = child.stdout.take().expect("standard output is piped");
        Ok(Self {
            child,
            input,
            output: BufReader::new(output),
            names,
            unknown: BTreeSet::new(),
        })
    }

    /// One sample of a case, in nanoseconds; `None` if the peer does not have it.
    ///
    /// # Errors
    ///
    /// If the peer ends, or answers anything else.
    pub fn sample(&mut self, case: &'static str) -> Result<Option<f64>> {
        if self.unknown.contains(case) {
            return Ok(None);
        }
        let other = self.names.iter().find(|(ours, _)| *ours == case);
        let theirs = other.map_or(case, |(_, theirs)| theirs);
        let input = self.input.as_mut().expect("open until the peer is dropped");
        writeln!(input, "{theirs}").context("the peer has ended")?;
        let mut answer = String::new();
        self.output.read_line(&mut answer)?;
        match answer.trim() {
            "" => bail!("the peer ended at case {theirs}"),
            error if error.starts_with("error: no case") => {
                self.unknown.insert(case);
                Ok(None)
            }
            number => match number.parse() {
                Ok(ns) => Ok(Some(ns)),
                Err(_) => bail!("the peer answered {number:?} to case {theirs}"),
            },
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.input = None;
        // Its status no longer matters.
        let _ = self.child.wait();
    }
}
