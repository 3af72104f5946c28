//! Runs QEMU, and follows what its guests report.

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};

use super::report::{Reader, Report};
use crate::{
    architecture::Architecture,
    setup::kernels::{Kernel, Series},
    test::outcome::Outcome,
};

/// How long a guest may be silent. A test takes seconds; emulated on a busy machine, minutes.
const LIMIT: Duration = Duration::from_secs(600);
/// How long a kernel may take to find that there is nothing to start; usually half a second.
const PROBE_LIMIT: Duration = Duration::from_secs(10);
/// Any failure stops the machine, without a restart. There are no attackers, and mitigations cost
/// most where a processor is emulated.
const PARAMETERS: &str = "quiet panic=-1 oops=panic mitigations=off init_on_alloc=0";
/// How often a machine is started that goes off before its kernel is up. Emulated processors may run
/// into code that the kernel is just patching, which has nothing to do with the tests.
const BOOTS: usize = 3;
/// How many of the console's last lines are shown if a guest did not finish.
const LAST_WORDS: usize = 25;

/// How QEMU runs a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    Kvm,
    /// Emulation: many times slower, but works everywhere.
    Tcg,
}

impl Accelerator {
    /// KVM if it works; it runs only kernels of this machine's architecture. In nested machines it
    /// may be there and still hang. So a kernel is booted without anything to start, and should
    /// panic.
    pub fn detect(kernel: &Kernel) -> Self {
        if !kernel.architecture.is_here() {
            return Self::Tcg;
        }
        let kvm = OpenOptions::new().read(true).write(true).open("/dev/kvm");
        if kvm.is_err() {
            println!("There is no KVM here: older kernels are emulated, which takes longer.");
            return Self::Tcg;
        }
        let mut qemu = command(kernel, Self::Kvm);
        let spawned = qemu.stderr(Stdio::null()).spawn();
        match spawned.map(|child| ends_well(child, PROBE_LIMIT)) {
            Ok(true) => Self::Kvm,
            _ => {
                println!("KVM does not work here: older kernels are emulated, which takes longer.");
                Self::Tcg
            }
        }
    }
}

/// A guest: a kernel, its initial archive, and the tests in it.
pub struct Guest {
    pub series: Series,
    pub kernel: Kernel,
    pub image: PathBuf,
    /// The file for the kernel's console output.
    pub console: PathBuf,
    /// The tests' names in the guest.
    pub tests: Vec<String>,
}

impl Guest {
    /// Boots the kernel and returns the outcome of each test. A test without a report has failed.
    /// An emulated kernel that does not come up is booted again.
    ///
    /// # Errors
    ///
    /// If QEMU cannot be run.
    pub fn run(&self, accelerator: Accelerator) -> Result<Vec<Outcome>> {
        let mut boots = 1;
        loop {
            let progress = self.boot(accelerator)?;
            let again = accelerator == Accelerator::Tcg && !progress.is_up && boots < BOOTS;
            if !again {
                return Ok(progress.outcomes());
            }
            boots += 1;
            println!("Linux {}: it is booted again", self.kernel.release);
        }
    }

    /// What a machine reports from its start until it is off.
    fn boot(&self, accelerator: Accelerator) -> Result<Progress<'_>> {
        let mut qemu = command(&self.kernel, accelerator);
        let console = format!("file:{}", self.console.display());
        qemu.arg("-initrd").arg(&self.image);
        // The first is the kernel's console, the second carries the reports: see `init.sh`.
        qemu.args(["-serial", &console]);
        qemu.args(Ports::of(self.kernel.architecture).second);
        let child = qemu.stdout(Stdio::piped()).spawn();
        let mut machine = Machine(child.context("cannot run QEMU by way of setpriv")?);
        let port = machine.0.stdout.take().context("QEMU has no output")?;
        let mut progress = Progress::new(self.series, &self.tests);
        let result = progress.follow(&chunks(port));
        drop(machine);
        if let Err(problem) = result {
            println!("\nLinux {}: {problem:#}", self.kernel.release);
            println!("The end of {}:", self.console.display());
            println!("{}", last_lines(&self.console, LAST_WORDS));
        }
        Ok(progress)
    }
}

/// The outcomes of a kernel's tests if none can run.
pub fn all_lost(series: Series, tests: &[String]) -> Vec<Outcome> {
    Progress::new(series, tests).outcomes()
}

/// What a guest has reported so far.
struct Progress<'a> {
    series: Series,
    /// Whether the kernel has come up.
    is_up: bool,
    missing: BTreeSet<&'a str>,
    ended: Vec<Outcome>,
}

impl<'a> Progress<'a> {
    fn new(series: Series, tests: &'a [String]) -> Self {
        Self {
            series,
            is_up: false,
            missing: tests.iter().map(String::as_str).collect(),
            ended: Vec::new(),
        }
    }

    /// Follows the reports to their end.
    ///
    /// # Errors
    ///
    /// If they end before the tests do, cannot be read, or do not come for too long.
    fn follow(&mut self, chunks: &Receiver<Vec<u8>>) -> Result<()> {
        let mut reader = Reader::default();
        let mut current = None;
        let lost = |current: Option<String>, what: &str| match current {
            Some(name) => anyhow!("{what} while it ran {name}"),
            None => anyhow!("{what} and no test was running"),
        };
        loop {
            let chunk = match chunks.recv_timeout(LIMIT) {
                Ok(chunk) => chunk,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(lost(current, "it went off"));
                }
                Err(RecvTimeoutError::Timeout) => {
                    let silent = format!("it was silent for {} s", LIMIT.as_secs());
                    return Err(lost(current, &silent));
                }
            };
            reader.feed(&chunk);
            while let Some(report) = reader.next()? {
                match report {
                    Report::Up { release, after } => {
                        self.is_up = true;
                        println!("Linux {release} is up after {:.1} s.", after.as_secs_f64());
                    }
                    Report::Begun { name } => current = Some(name),
                    Report::Ended {
                        name,
                        passed,
                        took,
                        output,
                    } => {
                        current = None;
                        ensure!(self.missing.remove(&*name), "{name} was not to run");
                        self.end(&name, passed, took, output);
                    }
                    Report::Complete => {
                        ensure!(self.missing.is_empty(), "it did not run all tests");
                        return Ok(());
                    }
                }
            }
        }
    }

    /// The outcomes of all tests.
    fn outcomes(mut self) -> Vec<Outcome> {
        for name in std::mem::take(&mut self.missing) {
            self.end(
                name,
                false,
                Duration::ZERO,
                "it did not run to its end".to_owned(),
            );
        }
        self.ended
    }

    fn end(&mut self, name: &str, passed: bool, took: Duration, output: String) {
        let name = format!("Linux {}: {name}", self.series);
        let outcome = Outcome::ended(name, passed, took, output);
        outcome.show(false);
        self.ended.push(outcome);
    }
}

fn command(kernel: &Kernel, accelerator: Accelerator) -> Command {
    // No machine outlives this process, even if it is killed.
    let mut qemu = Command::new("setpriv");
    qemu.args(["--pdeathsig", "KILL", &kernel.architecture.emulator()]);
    let emulated = match kernel.architecture {
        // The emulation of `rep movsb` goes from byte to byte. Kernels avoid it without this feature.
        Architecture::Amd64 => "max,-erms,-fsrm",
        // With atomic instructions, as every current server. `max` also signs pointers, and
        // emulating that takes most of the time.
        Architecture::Arm64 => "neoverse-n1",
    };
    qemu.args(match accelerator {
        Accelerator::Kvm => ["-accel", "kvm", "-cpu", "host"],
        Accelerator::Tcg => ["-accel", "tcg,thread=multi", "-cpu", emulated],
    });
    if kernel.architecture == Architecture::Arm64 {
        // There is no machine that every arm64 kernel knows but this one.
        qemu.args(["-machine", "virt"]);
    }
    let Ports {
        console, reports, ..
    } = Ports::of(kernel.architecture);
    qemu.args(["-smp", "2", "-m", "2G", "-nodefaults", "-display", "none"])
        .args(["-no-reboot", "-kernel"])
        .arg(kernel.image())
        .arg("-append")
        // What the kernel does not know gets into the environment of the first process.
        .arg(format!("console={console} {PARAMETERS} REPORTS={reports}"))
        .stdin(Stdio::null());
    qemu
}

/// The serial ports of a machine.
struct Ports {
    /// The kernel's name of the first.
    console: &'static str,
    /// The kernel's name of the second.
    reports: &'static str,
    /// QEMU's options for the second, which is its standard output.
    second: &'static [&'static str],
}

impl Ports {
    fn of(architecture: Architecture) -> Self {
        match architecture {
            Architecture::Amd64 => Self {
                console: "ttyS0",
                reports: "ttyS1",
                second: &["-serial", "stdio"],
            },
            // The machine itself has only one.
            Architecture::Arm64 => Self {
                console: "ttyAMA0",
                reports: "ttyS0",
                second: &[
                    "-chardev",
                    "stdio,id=reports",
                    "-device",
                    "pci-serial,chardev=reports",
                ],
            },
        }
    }
}

/// Whether a process ends successfully within a time. If it does not, it is killed.
fn ends_well(child: Child, limit: Duration) -> bool {
    let mut machine = Machine(child);
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        match machine.0.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => thread::sleep(Duration::from_millis(50)),
            Err(_) => return false,
        }
    }
    false
}

/// QEMU; switched off when dropped.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        // It may already have ended, which is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The output of a serial port until the machine is off.
fn chunks(mut port: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, chunks) = channel();
    thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(length @ 1..) = port.read(&mut chunk) {
            if sender.send(chunk[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    chunks
}

/// The last lines of a file; empty if it cannot be read.
fn last_lines(path: &Path, count: usize) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).replace('\r', "");
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which tests passed and failed, and the error, when a guest reports this and stops.
    fn of_reports(tests: &[&str], reports: &str) -> (Vec<String>, Option<String>) {
        let tests: Vec<_> = tests.iter().map(ToString::to_string).collect();
        let (sender, chunks) = channel();
        sender.send(reports.as_bytes().to_vec()).unwrap();
        drop(sender);
        let mut progress = Progress::new(Series::amd64("6.1"), &tests);
        let problem = progress.follow(&chunks).err();
        assert_eq!(progress.is_up, reports.starts_with("up"));
        let outcomes = progress.outcomes().into_iter();
        let ended = outcomes.map(|ended| format!("{} {:?}", ended.name, ended.verdict));
        (
            ended.collect(),
            problem.map(|problem| format!("{problem:#}")),
        )
    }

    #[test]
    fn a_guest_that_comes_to_its_end_is_counted_test_by_test() {
        let reports = "up 6.1 2.0\nbegin a\nend 0 2.0 3.0 0 a\nend 1 3.0 3.5 3 b\nno\ncomplete\n";
        let (ended, problem) = of_reports(&["a", "b"], reports);
        assert_eq!(problem, None);
        assert_eq!(ended, ["Linux 6.1: a Passed", "Linux 6.1: b Failed"]);
    }

    #[test]
    fn tests_that_a_guest_does_not_report_have_failed() {
        for (reports, expected) in [
            ("", "it went off and no test was running"),
            ("up 6.1 2.0\nbegin a\n", "it went off while it ran a"),
            ("up 6.1 2.0\ncomplete\n", "it did not run all tests"),
            (
                "Kernel panic\n",
                "the guest reported \"Kernel panic\": that is no report",
            ),
        ] {
            let (ended, problem) = of_reports(&["a", "b"], reports);
            assert_eq!(problem.as_deref(), Some(expected));
            assert_eq!(ended, ["Linux 6.1: a Failed", "Linux 6.1: b Failed"]);
        }
    }

    #[test]
    fn a_test_that_was_not_asked_for_is_not_counted() {
        let (ended, problem) = of_reports(&["a"], "end 0 0 1 0 b\n");
        assert_eq!(problem.as_deref(), Some("b was not to run"));
        assert_eq!(ended, ["Linux 6.1: a Failed"]);
    }

    #[test]
    fn a_machine_that_hangs_is_switched_off() {
        let sleep = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!ends_well(sleep, Duration::from_millis(100)));
        let end = Command::new("true").spawn().unwrap();
        assert!(ends_well(end, Duration::from_secs(30)));
    }
}
