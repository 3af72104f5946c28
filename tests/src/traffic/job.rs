//! Traffic as jobs: the same code runs as a thread inside a namespace or as a child process
//! inside a namespace and a cgroup.

use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io::{self, BufRead, BufReader, Write};
use std::mem::ManuallyDrop;
use std::process::{Child, ChildStdout, Stdio};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{dup2_stderr, setsid};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime;
use tokio::sync::oneshot;

use crate::lab::{Host, TrafficRunsIn, lab_tool};

/// Work that reports when it is ready, can be told to stop, and returns a report.
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// `lab-tool`'s subcommand for it.
    const NAME: &str;
    /// The message that tells it to stop.
    type Stop: fmt::Debug + Serialize + DeserializeOwned + Send + 'static;
    /// The report that it returns when it is done.
    type Report: fmt::Debug + Serialize + DeserializeOwned + Send + 'static;

    /// Does the work. If the sender of `stop` is gone, it must give up at once.
    fn run(
        self,
        ready: oneshot::Sender<()>,
        stop: oneshot::Receiver<Self::Stop>,
    ) -> impl Future<Output = Result<Self::Report>>;
}

/// A job that runs on a host. If dropped, it is told to give up, and waited for: then its ports are free.
#[derive(Debug)]
pub struct Running<J: Job>(Means<J>);

#[derive(Debug)]
enum Means<J: Job> {
    Thread(Thread<J>),
    Process {
        child: Reaped,
        stdout: BufReader<ChildStdout>,
    },
}

impl<J: Job> Running<J> {
    /// Starts a job and returns when it is ready.
    pub(crate) fn start(host: &Host, job: J) -> Result<Self> {
        let started = match host.traffic_runs_in() {
            TrafficRunsIn::Thread => Self::start_thread(host, job),
            TrafficRunsIn::Process => Self::start_process(host, job),
        };
        started.with_context(|| format!("{host}: cannot {}", J::NAME))
    }

    /// Tells the job to stop and returns its report.
    pub(crate) fn stop(self, how: J::Stop) -> Result<J::Report> {
        match self.0 {
            Means::Thread(thread) => thread.stop(how),
            Means::Process { mut child, stdout } => {
                let mut line = serde_json::to_vec(&how)?;
                line.push(b'\n');
                let stdin = child
                    .0
                    .stdin
                    .as_mut()
                    .context("lab-tool's stdin is closed")?;
                let _ = stdin.write_all(&line);
                report(child, stdout)
            }
        }
    }

    /// Waits until the job ends by itself and returns its report.
    pub(crate) fn wait(self) -> Result<J::Report> {
        match self.0 {
            Means::Thread(thread) => thread.wait(),
            Means::Process { child, stdout } => report(child, stdout),
        }
    }

    /// Lets the job go on after this process has ended, which only a child process can.
    pub(super) fn leave(self) -> Result<()> {
        let Means::Process { mut child, .. } = self.0 else {
            bail!("a thread cannot outlive its process: start the job on `with_processes()`");
        };
        let stdin = child
            .0
            .stdin
            .as_mut()
            .context("lab-tool's stdin is closed")?;
        stdin
            .write_all(STAY.as_bytes())
            .context("lab-tool is gone")?;
        // Not killed on drop, because it must outlive this process.
        let _ = ManuallyDrop::new(child);
        Ok(())
    }

    fn start_thread(host: &Host, job: J) -> Result<Self> {
        let (ready, is_ready) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name(format!("{}/{}", host.name(), J::NAME))
            .spawn({
                let host = host.clone();
                move || {
                    host.netns()
                        .enter()
                        .with_context(|| format!("cannot enter {host}"))?;
                    block_on(job.run(ready, stopped))
                }
            })
            .context("cannot start a thread")?;
        if is_ready.blocking_recv().is_err() {
            join(thread)?;
            bail!("ended before it was ready");
        }
        Ok(Self(Means::Thread(Thread {
            stop: Some(stop),
            thread: Some(thread),
        })))
    }

    fn start_process(host: &Host, job: J) -> Result<Self> {
        let mut command = host.command(lab_tool()?)?;
        command.arg(J::NAME).arg(serde_json::to_string(&job)?);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map(Reaped)
            .context("cannot start lab-tool")?;
        let stdout = child.0.stdout.take().expect("stdout was just piped");
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        stdout
            .read_line(&mut line)
            .context("cannot read from lab-tool")?;
        if line != READY {
            bail!("lab-tool ended before it was ready; its message is on stderr");
        }
        Ok(Self(Means::Process { child, stdout }))
    }
}

/// The child process's side: runs the job that `json` describes. It is controlled through stdin,
/// and writes its messages to stdout.
pub fn run_as_child<J: Job>(json: &str) -> Result<()> {
    let job: J = serde_json::from_str(json).context("the job's description is not valid")?;
    let (ready, is_ready) = oneshot::channel();
    let (stop, stopped) = oneshot::channel();
    let announce = thread::spawn(move || {
        if is_ready.blocking_recv().is_ok() {
            let mut stdout = io::stdout().lock();
            let _ = stdout
                .write_all(READY.as_bytes())
                .and_then(|()| stdout.flush());
        }
    });
    // Although it blocks on stdin, this thread ends with the process.
    thread::spawn(move || {
        let mut line = String::new();
        let _ = io::stdin().lock().read_line(&mut line);
        if line == STAY {
            detach();
            // Never dropped, because that would mean stop.
            let _ = ManuallyDrop::new(stop);
        } else if let Ok(how) = serde_json::from_str(&line) {
            let _ = stop.send(how);
        }
    });
    let report = block_on(job.run(ready, stopped))?;
    // The job has used or dropped `ready`, so the report comes after the announcement.
    let _ = announce.join();
    // The process that started this may be gone. Then nothing reads the report.
    let _ = writeln!(io::stdout(), "{}", serde_json::to_string(&report)?);
    Ok(())
}

const READY: &str = "ready\n";
const STAY: &str = "stay\n";

/// Releases the terminal, and the reader of this process's messages.
fn detach() {
    let _ = setsid();
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = dup2_stderr(null);
    }
}

/// A thread that does not outlive this value.
#[derive(Debug)]
struct Thread<J: Job> {
    stop: Option<oneshot::Sender<J::Stop>>,
    thread: Option<JoinHandle<Result<J::Report>>>,
}

impl<J: Job> Thread<J> {
    fn stop(mut self, how: J::Stop) -> Result<J::Report> {
        if let Some(stop) = self.stop.take() {
            // A job that has ended does not listen; its report says everything.
            let _ = stop.send(how);
        }
        self.wait()
    }

    fn wait(mut self) -> Result<J::Report> {
        join(self.thread.take().expect("only waited for once"))
    }
}

impl<J: Job> Drop for Thread<J> {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Nobody asks for its report.
            let _ = thread.join();
        }
    }
}

/// A child that does not outlive this value.
#[derive(Debug)]
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        // It may already have ended, which is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start an asynchronous runtime")?
        .block_on(work)
}

fn join<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    thread
        .join()
        .unwrap_or_else(|_| Err(anyhow!("the thread panicked")))
}

fn report<T: DeserializeOwned>(child: Reaped, mut stdout: BufReader<ChildStdout>) -> Result<T> {
    let mut line = String::new();
    stdout
        .read_line(&mut line)
        .context("cannot read from lab-tool")?;
    drop(child);
    serde_json::from_str(&line).context("lab-tool gave no report; its message is on stderr")
}

/// Lets this process, and the servers and clients that it starts from now on, have as many files
/// and connections open as the system allows.
///
/// # Errors
/// If the system refuses.
pub fn allow_many_files() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}
