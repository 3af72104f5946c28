//! The machine on which figures were measured.

use std::{fs, time::Duration};

use anyhow::{Context, Result, bail};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::utsname::uname,
    time::{clock_getcpuclockid, clock_gettime},
    unistd::{Pid, SysconfVar, sysconf},
};
use serde::Serialize;

/// The processor and the kernel.
#[derive(Debug, Serialize)]
pub struct Machine {
    cpu_model: String,
    cpus: usize,
    kernel: String,
    spectre_v2: String,
    retbleed: String,
    spec_rstack_overflow: String,
}

impl Machine {
    /// This machine. Unknown properties are "unknown".
    pub fn this() -> Self {
        let mitigation = |name: &str| {
            let path = format!("/sys/devices/system/cpu/vulnerabilities/{name}");
            let text = fs::read_to_string(path);
            text.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
        };
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus
            .lines()
            .find_map(|line| line.strip_prefix("model name"));
        let kernel = uname().map(|names| names.release().to_string_lossy().into_owned());
        Self {
            cpu_model: model
                .map_or("unknown", |line| line.trim_start_matches(['\t', ' ', ':']))
                .to_owned(),
            cpus: cpus.matches("processor\t").count(),
            kernel: kernel.unwrap_or_else(|_| "unknown".to_owned()),
            spectre_v2: mitigation("spectre_v2"),
            retbleed: mitigation("retbleed"),
            spec_rstack_overflow: mitigation("spec_rstack_overflow"),
        }
    }

    /// The properties for people, one per line.
    pub fn lines(&self) -> [String; 3] {
        [
            format!(
                "{}, {} CPUs, Linux {}",
                self.cpu_model, self.cpus, self.kernel
            ),
            format!("spectre_v2: {}", self.spectre_v2),
            format!("spec_rstack_overflow: {}", self.spec_rstack_overflow),
        ]
    }
}

/// Keeps the calling thread on one CPU.
///
/// # Errors
///
/// If there is no such CPU, or this process may not use it.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .with_context(|| format!("cannot run on CPU {cpu}"))
}

/// CPU time that a process has used so far, with all its threads.
///
/// # Errors
///
/// If there is no such process.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let time = || clock_gettime(clock_getcpuclockid(Pid::from_raw(pid as i32))?);
    Ok(time()
        .with_context(|| format!("cannot read the CPU time of process {pid}"))?
        .into())
}

/// Time of all CPUs together since boot, in the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    /// In which nothing ran.
    pub idle: Duration,
    /// In which something ran: programs and the kernel, also for packets.
    pub busy: Duration,
    /// All, with what other machines on the same hardware took.
    pub all: Duration,
}

impl Ticks {
    /// Until now.
    ///
    /// # Errors
    ///
    /// If the kernel's statistics cannot be read.
    pub fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let per_second = sysconf(SysconfVar::CLK_TCK)?.context("the kernel has no ticks")?;
        Self::parse(&text, per_second as u64)
    }

    /// Reads `/proc/stat` (proc_stat(5)).
    fn parse(text: &str, per_second: u64) -> Result<Self> {
        let line = text.lines().next().unwrap_or_default();
        let fields = line.strip_prefix("cpu ").context("no cpu in /proc/stat")?;
        let fields = fields.split_whitespace().map(str::parse::<u64>);
        let fields: Vec<u64> = fields.collect::<Result<_, _>>()?;
        // user nice system idle iowait irq softirq steal; guests' time is included in user.
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = fields[..] else {
            bail!("too few numbers in /proc/stat: {line}");
        };
        let time = |ticks: u64| Duration::from_millis(ticks * 1000 / per_second);
        let (idle, busy) = (idle + iowait, user + nice + system + irq + softirq);
        Ok(Self {
            idle: time(idle),
            busy: time(busy),
            all: time(idle + busy + steal),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_those_of_all_cpus() {
        let text = "cpu  1 2 3 40 50 6 7 8 1 2\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        let ticks = Ticks::parse(text, 100).unwrap();
        let millis = [ticks.idle, ticks.busy, ticks.all].map(|time| time.as_millis());
        assert_eq!(millis, [900, 190, 1170]);
        assert!(Ticks::parse("cpu  1 2 3\n", 100).is_err());
    }
}
