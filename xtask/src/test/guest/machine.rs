//! QEMU, and what comes out of its serial line.

use std::{
    fs::OpenOptions,
    io::{Read, Write, stdout},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::Tally;
use crate::setup::kernels::Kernel;

/// How long a kernel may take with all its tests, emulated on a machine that has other work as well; two
/// minutes are usual.
const LIMIT: Duration = Duration::from_secs(600);
/// How long a kernel may take to find that it has nothing to start; half a second is usual.
const PROBE_LIMIT: Duration = Duration::from_secs(10);
/// Whatever goes wrong ends the machine, which is not to start again; nobody attacks it, and what
/// keeps attackers off costs most where a processor is emulated.
const PARAMETERS: &str = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off";
/// What the guest's last line starts with.
const ENDED: &str = "The tests ended with ";

/// How QEMU runs a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    Kvm,
    /// Emulation: many times slower, and works everywhere.
    Tcg,
}

impl Accelerator {
    /// KVM where it works. In nested machines it may be there and hang all the same, so a kernel is
    /// booted without anything to start, for it to panic about.
    pub fn detect(kernel: &Kernel) -> Self {
        let kvm = OpenOptions::new().read(true).write(true).open("/dev/kvm");
        if kvm.is_err() {
            println!("There is no KVM here: older kernels are emulated, which takes longer.");
            return Self::Tcg;
        }
        let mut qemu = command(kernel, Self::Kvm);
        let spawned = qemu.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        match spawned.map(|child| ends_well(child, PROBE_LIMIT)) {
            Ok(true) => Self::Kvm,
            _ => {
                println!("KVM does not work here: older kernels are emulated, which takes longer.");
                Self::Tcg
            }
        }
    }
}

/// Boots a kernel with an initial file system, shows what it prints, and counts its tests.
///
/// # Errors
///
/// If QEMU cannot be run.
pub fn run(kernel: &Kernel, image: &Path, accelerator: Accelerator) -> Result<Tally> {
    let mut qemu = command(kernel, accelerator);
    let child = qemu.arg("-initrd").arg(image).stdout(Stdio::piped());
    let mut child = Guest(child.spawn().context("cannot run QEMU by way of setpriv")?);
    let console = child.0.stdout.take().context("QEMU has no output")?;
    let mut console = Console::new(console);
    let problem = console.show_until(Instant::now() + LIMIT);
    drop(child);

    let output = console.text;
    let success = match (problem, last_line(&output)) {
        (None, Some("0")) => true,
        (None, Some(_)) => false,
        (problem, _) => {
            let problem = problem.unwrap_or("it ended before its tests did");
            println!("\nLinux {}: {problem}", kernel.release);
            false
        }
    };
    let name = format!("Linux {}", kernel.release);
    Ok(Tally::of_program(&name, &output, success))
}

fn command(kernel: &Kernel, accelerator: Accelerator) -> Command {
    // No machine outlives this process, not even a killed one.
    let mut qemu = Command::new("setpriv");
    qemu.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
    qemu.args(match accelerator {
        Accelerator::Kvm => ["-accel", "kvm", "-cpu", "host"],
        Accelerator::Tcg => ["-accel", "tcg,thread=multi", "-cpu", "max"],
    });
    qemu.args(["-smp", "2", "-m", "2G", "-nodefaults", "-display", "none"])
        .args(["-serial", "stdio", "-no-reboot", "-kernel"])
        .arg(kernel.image())
        .args(["-append", PARAMETERS])
        .stdin(Stdio::null());
    qemu
}

/// Whether a process ends within a time, and with success; it is killed if it does not.
fn ends_well(child: Child, limit: Duration) -> bool {
    let mut guest = Guest(child);
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        match guest.0.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => thread::sleep(Duration::from_millis(50)),
            Err(_) => return false,
        }
    }
    false
}

/// A machine; switched off when dropped.
struct Guest(Child);

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have ended by itself, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a guest writes to its serial line.
struct Console {
    chunks: Receiver<Vec<u8>>,
    text: String,
}

impl Console {
    fn new(mut pipe: impl Read + Send + 'static) -> Self {
        let (sender, chunks) = channel();
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(length @ 1..) = pipe.read(&mut chunk) {
                if sender.send(chunk[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            chunks,
            text: String::new(),
        }
    }

    /// Shows what comes until the machine is off; what was wrong if it is not at the deadline.
    fn show_until(&mut self, deadline: Instant) -> Option<&'static str> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.chunks.recv_timeout(left) {
                Ok(chunk) => {
                    // Serial lines end in two characters.
                    let text = String::from_utf8_lossy(&chunk).replace('\r', "");
                    // Nobody may be watching.
                    let _ = stdout().write_all(text.as_bytes());
                    let _ = stdout().flush();
                    self.text += &text;
                }
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    return Some("its tests took longer than they may and were cut off");
                }
            }
        }
    }
}

/// What the guest's tests ended with, if they did.
fn last_line(output: &str) -> Option<&str> {
    let line = output
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix(ENDED))?;
    line.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_did_not_come_to_its_end_has_no_result() {
        assert_eq!(
            last_line("The tests ended with 0 after 81.2 s.\n[ 81] off\n"),
            Some("0")
        );
        assert_eq!(last_line("The tests ended with 1 after 9 s.\n"), Some("1"));
        assert_eq!(last_line("Linux 6.1 is up\nKernel panic\n"), None);
    }

    #[test]
    fn a_machine_that_hangs_is_switched_off() {
        let sleep = Command::new("sleep").arg("60").spawn().unwrap();
        let start = Instant::now();
        assert!(!ends_well(sleep, Duration::from_millis(100)));
        assert!(start.elapsed() < Duration::from_secs(5));
        let end = Command::new("true").spawn().unwrap();
        assert!(ends_well(end, Duration::from_secs(10)));
    }
}
