//! `lab-tool` does for the lab what a thread cannot, and runs the guard.

use std::env;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{PathBuf, absolute};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::unistd::setsid;

use super::registry::{LabId, Registry};
use super::{Lab, Topology};
use crate::Serve;

/// Where `lab-tool` is: `$LAB_TOOL`, else beside the running program (cargo puts tests one
/// directory below).
pub fn lab_tool() -> Result<PathBuf> {
    if let Some(path) = env::var_os("LAB_TOOL") {
        return absolute(path).context("LAB_TOOL is not a path");
    }
    let program = env::current_exe().context("cannot tell which program this is")?;
    program
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("lab-tool"))
        .find(|path| path.is_file())
        .with_context(|| {
            format!(
                "lab-tool is not beside {}: build it with `cargo build -p lb-tests --bins` or \
                 set LAB_TOOL",
                program.display()
            )
        })
}

/// A process that removes the lab when its owner ends, in whatever way it ends: it waits for the
/// end of a pipe that the kernel closes even after SIGKILL.
#[derive(Debug)]
pub struct Guard {
    process: Child,
}

impl Guard {
    /// Starts guarding `id` for the calling process.
    pub fn start(id: &LabId) -> Result<Self> {
        let mut command = Command::new(lab_tool()?);
        command.args(["guard", &id.to_string()]).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        // SAFETY: the closure makes one system call, which is allowed between fork and exec. A
        // session of its own keeps the terminal's Ctrl-C away from the guard.
        unsafe { command.pre_exec(|| Ok(setsid().map(drop)?)) };
        let process = command.spawn().context("cannot start the lab's guard")?;
        Ok(Self { process })
    }

    /// Has the guard remove the lab now, and waits for that.
    pub fn tear_down(self) -> Result<()> {
        self.finish("")
    }

    /// Sends the guard away; the lab stays.
    pub fn dismiss(self) -> Result<()> {
        self.finish(DISMISSAL)
    }

    fn finish(mut self, message: &str) -> Result<()> {
        let mut stdin = self
            .process
            .stdin
            .take()
            .expect("stdin was piped at the start");
        stdin
            .write_all(message.as_bytes())
            .context("the lab's guard is gone")?;
        drop(stdin);
        let status = self
            .process
            .wait()
            .context("cannot wait for the lab's guard")?;
        if !status.success() {
            bail!("the lab's guard ended with {status}; its message is on stderr");
        }
        Ok(())
    }
}

/// The guard's side: waits for the owner's end (or a dismissal), then removes the lab.
pub fn guard(id: &LabId) -> Result<()> {
    let mut line = String::new();
    io::stdin()
        .lock()
        .read_line(&mut line)
        .context("cannot read from the lab's owner")?;
    if line == DISMISSAL {
        return Ok(());
    }
    Registry::lock()?.remove(id)
}

/// An owner, for tests of how labs end: builds a lab of so many nodes with a server on the first
/// one, prints its name, and waits to be killed.
pub fn own(nodes: u8) -> Result<()> {
    let lab = Lab::up(Topology {
        nodes,
        pods_per_node: 1,
        ..Topology::default()
    })?;
    let _server = Serve::new("node").tcp(80).start(lab.node(1))?;
    println!("{}", lab.id());
    thread::sleep(LIFETIME);
    bail!("nobody has ended this process in {LIFETIME:?}")
}

/// How long an owner lives after its test is gone.
const LIFETIME: Duration = Duration::from_secs(120);

const DISMISSAL: &str = "dismissed\n";
