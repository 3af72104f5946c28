//! The machine on which figures were measured.

use std::{fs, time::Duration};

use anyhow::{Context, Result};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::utsname::uname,
    time::{clock_getcpuclockid, clock_gettime},
    unistd::Pid,
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
