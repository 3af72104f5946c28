//! What programs use: time, CPU and memory.

use std::{
    fs,
    io::Write as _,
    iter::Sum,
    mem,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::machine::cpu_time;

/// What a piece of work used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    pub wall: Duration,
    /// CPU time, in the program and in the kernel for it.
    pub cpu: Duration,
    /// The most memory at one time, in bytes.
    pub memory: u64,
    /// Memory that is not shared with other processes, at the end, in bytes; 0 if not measured.
    pub own_memory: u64,
}

/// The usage of several programs that run one after the other.
impl Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            wall: sum.wall + one.wall,
            cpu: sum.cpu + one.cpu,
            memory: sum.memory.max(one.memory),
            own_memory: sum.own_memory.max(one.own_memory),
        })
    }
}

/// Runs a command to its end, with `input` on its standard input.
///
/// # Errors
///
/// If it does not start, or fails. Its error message is on standard error.
pub fn run(mut command: Command, input: &str) -> Result<Usage> {
    let since = Instant::now();
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot run {command:?}"))?;
    let mut stdin = child.stdin.take().expect("standard input is piped");
    // If the command ends without reading, its status shows that.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);

    let (mut status, pid) = (0, child.id() as libc::pid_t);
    // SAFETY: all-zero bytes are a valid value of this struct of integers.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: `status` and `usage` live through the call. The child is ours, and no other thread
    // waits for it.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    ensure!(waited == pid, "cannot wait for {command:?}");
    ensure!(status == 0, "{command:?} failed");
    Ok(Usage {
        wall: since.elapsed(),
        cpu: duration(usage.ru_utime) + duration(usage.ru_stime),
        memory: usage.ru_maxrss as u64 * 1024,
        own_memory: 0,
    })
}

/// What a running process has used since it started `wall` ago.
///
/// # Errors
///
/// If it has ended.
pub fn so_far(pid: u32, wall: Duration) -> Result<Usage> {
    let memory = memory(pid)?;
    Ok(Usage {
        wall,
        cpu: cpu_time(pid)?,
        memory: memory.most,
        own_memory: memory.own,
    })
}

/// The memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    pub resident: u64,
    /// The most that has been resident at one time.
    pub most: u64,
    /// The resident memory that is not shared with other processes.
    pub own: u64,
}

/// The present memory of a running process.
///
/// # Errors
///
/// If it has ended.
pub fn memory(pid: u32) -> Result<Memory> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let bytes = |name| bytes(&text, name).with_context(|| format!("no {name} in {path}"));
    Ok(Memory {
        resident: bytes("VmRSS:")?,
        most: bytes("VmHWM:")?,
        own: bytes("RssAnon:")?,
    })
}

/// CPU time of all processes that are or were in a cgroup.
///
/// # Errors
///
/// If there is no such cgroup.
pub fn cgroup_cpu_time(cgroup: &Path) -> Result<Duration> {
    let path = cgroup.join("cpu.stat");
    let text = fs::read_to_string(&path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "));
    let micros = line.with_context(|| format!("no usage_usec in {}", path.display()))?;
    Ok(Duration::from_micros(micros.parse()?))
}

/// A line of `/proc/PID/status` (proc_pid_status(5)), in bytes.
fn bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

fn duration(time: libc::timeval) -> Duration {
    Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
}
