//! Runs the program under test on a node as the kubelet would: in the node's namespace and cgroup,
//! with its output in a log. It counts as ready only when it says so.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use node_lb::agent::vitals::Verdict;

use crate::http_get;
use crate::lab::Node;
use crate::patience::{LOADED, patient};

/// With so few file descriptors an agent gets no new ones (EMFILE): see [`Agent::limit_files`].
pub const NO_FILES: u32 = 3;
/// As many as it has without a limit.
pub const USUAL_FILES: u32 = 1024;

/// How to start an agent on a node.
#[derive(Clone, Debug)]
pub struct AgentSpec {
    program: PathBuf,
    args: Vec<OsString>,
    ready: Readiness,
    deadline: Duration,
    log: &'static str,
}

/// How an agent says that it is ready.
#[derive(Clone, Debug)]
pub enum Readiness {
    /// An HTTP GET of the path, from within the node, is answered with 200.
    Http { address: SocketAddr, path: String },
    /// Its log contains this text, written since the start.
    Log(String),
    /// `node-lb probe` at this socket says so: of this very agent, where several share a port.
    Probe(PathBuf),
}

impl AgentSpec {
    /// Will run `program` with `args`.
    pub fn new<A: Into<OsString>>(
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = A>,
        ready: Readiness,
    ) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            ready,
            deadline: LOADED,
            log: "agent.log",
        }
    }

    /// `PROGRAM agent --source dir:MANIFESTS --node NAME`, ready when `/healthz` of its health
    /// server says so.
    pub fn node_lb(program: impl Into<PathBuf>, node: &Node) -> Self {
        let source = format!("dir:{}", node.manifests().display());
        let ready = Readiness::Http {
            address: SocketAddr::from(([127, 0, 0, 1], 10256)),
            path: "/healthz".to_owned(),
        };
        Self::new(
            program,
            ["agent", "--source", &source, "--node", node.name()],
            ready,
        )
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Replaces the program, the arguments unchanged.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = program.into();
        self
    }

    /// Has the agent answer probes of its own, and be ready when they say so. `name` tells it from
    /// others on its node.
    pub fn probed(self, node: &Node, name: &str) -> Self {
        let path = node.dir.join(format!("{name}.probe"));
        self.arg(format!("--probe-socket={}", path.display()))
            .ready(Readiness::Probe(path))
    }

    /// Replaces how the agent says that it is ready.
    pub fn ready(mut self, ready: Readiness) -> Self {
        self.ready = ready;
        self
    }

    /// Has the output go to another file of the node's directory than `agent.log`: for what runs
    /// beside an agent.
    pub fn log(mut self, name: &'static str) -> Self {
        self.log = name;
        self
    }

    /// Sets how long the agent may take to get ready, [`LOADED`] by default.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

/// A running agent; dropped, it is killed.
#[derive(Debug)]
pub struct Agent {
    node: Node,
    spec: AgentSpec,
    process: Child,
    log: PathBuf,
    /// Where in the log the output of this start begins, in bytes.
    log_start: u64,
    left_running: bool,
    /// Whether the test changes the agent's data plane.
    expects_differences: bool,
}

impl Agent {
    /// Starts an agent and waits until it is ready.
    pub fn start(node: &Node, spec: AgentSpec) -> Result<Self> {
        let mut agent = Self::launch(node, spec)?;
        agent.wait_until_ready()?;
        Ok(agent)
    }

    /// Starts an agent without waiting.
    pub fn launch(node: &Node, spec: AgentSpec) -> Result<Self> {
        let log = node.dir.join(spec.log);
        let open = || OpenOptions::new().create(true).append(true).open(&log);
        let stdout: File = open().with_context(|| format!("cannot open {}", log.display()))?;
        let log_start = stdout
            .metadata()
            .context("cannot stat the agent's log")?
            .len();
        let mut command = node.command(&spec.program)?;
        command.args(&spec.args);
        command
            .stdin(Stdio::null())
            .stdout(stdout.try_clone()?)
            .stderr(stdout);
        let process = command.spawn().with_context(|| {
            format!(
                "cannot start {} on {node}",
                spec.program.display(),
                node = node.name()
            )
        })?;
        Ok(Self {
            node: node.clone(),
            spec,
            process,
            log,
            log_start,
            left_running: false,
            expects_differences: false,
        })
    }

    /// Waits until the agent is ready; fails when it ends instead, or at the deadline.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        while !self.is_ready()? {
            let problem = match self
                .process
                .try_wait()
                .context("cannot wait for the agent")?
            {
                Some(status) => format!("ended with {status}"),
                None if start.elapsed() > patient(self.spec.deadline) => {
                    format!("is not ready after {:?}", patient(self.spec.deadline))
                }
                None => {
                    thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            bail!(
                "the agent on {} {problem}; its log:\n{}",
                self.node.name(),
                self.log()?
            );
        }
        Ok(())
    }

    /// Fails if the agent has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.process.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => bail!("the agent on {} ended with {status}", self.node.name()),
            Err(error) => Err(error).context("cannot wait for the agent"),
        }
    }

    /// The node the agent runs on.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Limits the agent's file descriptors. It keeps those that it has.
    pub fn limit_files(&self, most: u32) -> Result<()> {
        let arguments = [format!("--pid={}", self.pid()), format!("--nofile={most}:")];
        let status = Command::new("prlimit").args(arguments).status()?;
        ensure!(status.success(), "prlimit ends with {status}");
        Ok(())
    }

    /// The agent's process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// What the agent has written since it was started.
    pub fn log(&self) -> Result<String> {
        let bytes =
            fs::read(&self.log).with_context(|| format!("cannot read {}", self.log.display()))?;
        let fresh = bytes.get(self.log_start as usize..).unwrap_or_default();
        Ok(String::from_utf8_lossy(fresh).into_owned())
    }

    /// Asks the agent to end (SIGTERM) and waits; one that takes longer than `deadline`
    /// ([`patient`]) is killed and that is an error.
    pub fn stop(mut self, deadline: Duration) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        let start = Instant::now();
        loop {
            if let Some(status) = self
                .process
                .try_wait()
                .context("cannot wait for the agent")?
            {
                return Ok(status);
            }
            if start.elapsed() > patient(deadline) {
                bail!(
                    "the agent did not end within {deadline:?}; its log:\n{}",
                    self.log()?
                );
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the agent (SIGKILL) and waits until it is gone. What it pinned stays.
    pub fn kill(mut self) -> Result<()> {
        self.end()
    }

    /// Says that the test changes what the agent has written or attached. In all other tests an agent
    /// that finds such a change has raised a false alarm, and fails the test.
    pub fn expect_differences(&mut self) {
        self.expects_differences = true;
    }

    /// What the agent has put right that nobody had changed, and what its programs did wrong as it says.
    fn false_alarms(&self) -> Vec<String> {
        if self.expects_differences {
            return Vec::new();
        }
        let log = self.log().unwrap_or_default();
        let alarms = log.lines().filter(|line| {
            line.ends_with("; put right") || line.contains("test packets meet something else")
        });
        alarms.map(str::to_owned).collect()
    }

    /// Lets the agent go on, for a lab that is kept; it ends with the lab.
    pub fn leave_running(mut self) {
        self.left_running = true;
    }

    /// Sends a signal to the agent, for example SIGSTOP.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.process.id() as i32), signal)
            .with_context(|| format!("cannot send {signal} to the agent"))
    }

    fn is_ready(&self) -> Result<bool> {
        match &self.spec.ready {
            Readiness::Log(text) => Ok(self.log()?.contains(text)),
            Readiness::Probe(path) => Ok(verdict(path).is_ok_and(|found| found.ready.is_none())),
            Readiness::Http { address, path } => self
                .node
                .netns()
                .run(|| answers_200(*address, path).unwrap_or(false)),
        }
    }

    fn end(&mut self) -> Result<()> {
        self.process.kill().context("cannot kill the agent")?;
        self.process.wait().context("cannot wait for the agent")?;
        Ok(())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.left_running {
            return;
        }
        if thread::panicking() {
            let log = self.log().unwrap_or_default();
            eprintln!("the log of the agent on {}:\n{log}", self.node.name());
            let metrics = metrics(&self.node).unwrap_or_default();
            let packets = |line: &&str| line.starts_with("node_lb_packets_total");
            metrics
                .lines()
                .filter(packets)
                .for_each(|line| eprintln!("{line}"));
        }
        // It may already have ended, which is fine.
        let _ = self.end();
        if !thread::panicking() {
            let alarms = self.false_alarms();
            let node = self.node.name();
            assert!(
                alarms.is_empty(),
                "nobody changed what {node} has: {alarms:#?}"
            );
        }
    }
}

/// The metrics of the agent on a node.
pub(crate) fn metrics(node: &Node) -> Result<String> {
    let address = SocketAddr::from(([127, 0, 0, 1], 10249));
    Ok(http_get::get(node, address, "/metrics")?.body)
}

/// What an agent says to the probes of its pod.
///
/// # Errors
/// If it says nothing.
pub fn verdict(path: &Path) -> Result<Verdict> {
    let mut text = String::new();
    UnixStream::connect(path)?.read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

fn answers_200(address: SocketAddr, path: &str) -> Result<bool> {
    let limit = patient(Duration::from_millis(500));
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut status = [0; 12];
    stream.read_exact(&mut status)?;
    Ok(status == *b"HTTP/1.1 200")
}
