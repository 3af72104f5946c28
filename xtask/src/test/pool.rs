//! Runs tests: each in its own process, several at the same time.
//!
//! With a process per test, its time is known and its output stays together, and tests of different
//! programs can run at the same time.

use std::{
    fs::{self, File},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use xtask::ebpf::Places;

use super::{
    alone,
    outcome::{Outcome, Verdict},
    queue::Queue,
    suite::Test,
};
use crate::privilege::Privilege;

/// A test that takes longer than this is named, once.
const LONG: Duration = Duration::from_secs(60);

/// A test that takes longer than this is stopped, because it will never end.
const ENDLESS: Duration = Duration::from_secs(8 * 60);
/// The exit code of `timeout` when it has stopped something.
const STOPPED: i32 = 124;

/// How tests are run.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Runs tests as root in this way; `None` means as the present user.
    pub privilege: Option<Privilege>,
    /// How many tests run at the same time.
    pub workers: NonZeroUsize,
    /// The directory for each test's output.
    pub outputs: PathBuf,
    /// Whether to show the output of passed tests, too.
    pub show_output: bool,
    /// How many failed tests may be repeated, alone. If more fail, that is no accident.
    pub second_tries: usize,
}

/// What a worker says.
enum Message {
    Begun(String),
    Ended(Outcome),
}

impl Pool {
    /// Runs all of `tests`, even if some fail, and returns the outcome of each.
    ///
    /// # Errors
    ///
    /// If a test cannot be started.
    pub fn run(&self, tests: Vec<Test>) -> Result<Vec<Outcome>> {
        fs::create_dir_all(&self.outputs)
            .with_context(|| format!("cannot make {}", self.outputs.display()))?;
        let (ignored, tests): (Vec<_>, Vec<_>) = tests.into_iter().partition(Test::is_ignored);
        let ignored = ignored.iter().map(|test| Outcome::ignored(test.name()));
        let mut outcomes: Vec<_> = ignored.inspect(|outcome| outcome.show(false)).collect();
        let all = tests.clone();
        let (alone, beside) = tests.into_iter().partition(|test| alone::is(&test.name()));
        self.run_beside(beside, self.workers, &mut outcomes)?;
        self.run_beside(alone, NonZeroUsize::MIN, &mut outcomes)?;
        self.repeat_failed(&all, &mut outcomes)?;
        Ok(outcomes)
    }

    /// Gives failed tests their second try. One that did not end would not end again.
    fn repeat_failed(&self, tests: &[Test], outcomes: &mut Vec<Outcome>) -> Result<()> {
        let is_failed =
            |outcome: &Outcome| outcome.verdict == Verdict::Failed && outcome.took < ENDLESS;
        let failed = outcomes.iter().filter(|outcome| is_failed(outcome)).count();
        if failed > self.second_tries {
            return Ok(());
        }
        let (failed, mut rest): (Vec<_>, Vec<_>) = outcomes.drain(..).partition(is_failed);
        for first in failed {
            println!("test {} failed, and is repeated alone", first.name);
            let test = tests.iter().find(|test| test.name() == first.name);
            let second = self.run_one(test.expect("it has run"))?;
            second.show(self.show_output);
            rest.push(Outcome {
                first_failure: Some(first.why()),
                ..second
            });
        }
        *outcomes = rest;
        Ok(())
    }

    fn run_beside(
        &self,
        tests: Vec<Test>,
        workers: NonZeroUsize,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<()> {
        let half = NonZeroUsize::new(workers.get() / 2).unwrap_or(NonZeroUsize::MIN);
        let queue = Queue::new(tests, half);
        let (sender, messages) = channel();
        thread::scope(|scope| {
            let workers: Vec<_> = (0..workers.get())
                .map(|_| {
                    let sender = sender.clone();
                    scope.spawn(|| self.work(&queue, sender))
                })
                .collect();
            drop(sender);
            self.follow(&messages, outcomes);
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().expect("a worker does not panic"))
        })
    }

    fn work(&self, queue: &Queue, messages: Sender<Message>) -> Result<()> {
        while let Some(test) = queue.next() {
            // The receiver exists until all senders are gone.
            let _ = messages.send(Message::Begun(test.name()));
            let outcome = self.run_one(&test);
            queue.end(&test);
            let _ = messages.send(Message::Ended(outcome?));
        }
        Ok(())
    }

    fn run_one(&self, test: &Test) -> Result<Outcome> {
        let name = test.name();
        let path = self.outputs.join(&name);
        let output =
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut command = self.command(test);
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let start = Instant::now();
        let status = command
            .status()
            .with_context(|| format!("cannot run {name}"))?;
        let took = start.elapsed();
        let mut output = read(&path)?;
        if status.code() == Some(STOPPED) {
            let limit = ENDLESS.as_secs();
            output += &format!("\nit had not ended after {limit} s, and was stopped\n");
        } else if status.code().is_none() {
            output += &format!("\nit was ended by a signal: {status}\n");
        }
        Ok(Outcome::ended(name, status.success(), took, output))
    }

    fn command(&self, test: &Test) -> Command {
        // No test outlives this process, and its lab ends with it.
        let mut command = match self.privilege {
            None => Command::new("setpriv"),
            Some(privilege) => {
                let mut command = privilege.command("setpriv");
                // root may have another home directory.
                let programs = Places::from_env().cluster_programs();
                command.env("NODE_LB_CLUSTER_BIN", programs);
                command
            }
        };
        const DIE_TOO: [&str; 2] = ["--pdeathsig", "KILL"];
        command.args(DIE_TOO).args(["timeout", "--foreground"]);
        command.arg(ENDLESS.as_secs().to_string());
        command.arg("setpriv").args(DIE_TOO);
        test.add_to(&mut command);
        command
    }

    /// Shows and keeps the messages of workers until the last one is done.
    fn follow(&self, messages: &Receiver<Message>, outcomes: &mut Vec<Outcome>) {
        let mut running: Vec<(String, Instant)> = Vec::new();
        loop {
            match messages.recv_timeout(Duration::from_secs(1)) {
                Ok(Message::Begun(name)) => running.push((name, Instant::now())),
                Ok(Message::Ended(outcome)) => {
                    running.retain(|(name, _)| *name != outcome.name);
                    outcome.show(self.show_output);
                    outcomes.push(outcome);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            running.retain(|(name, since)| {
                let long = since.elapsed() > LONG;
                if long {
                    println!("test {name} has been running for over {} s", LONG.as_secs());
                }
                !long
            });
        }
    }
}

fn read(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
