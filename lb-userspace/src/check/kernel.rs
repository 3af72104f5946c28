//! The kernel: its version, what it allows this process to do, and whether it accepts the programs.

use std::{fs, io, path::Path, time::Instant};

use lb_common::abi;
use lb_datapath::{OBJECT, Pins, Settings, TcFlavor, hooks, load, pins::trial_root, preflight};

use super::Finding;
use crate::{
    config::{Config, snat_ports},
    docs::Section,
};

const JIT: &str = "/proc/sys/net/core/bpf_jit_enable";
/// Entries of the flow tables in the trial: the smallest possible number.
const TRIAL_FLOWS: u32 = 1024;

/// All checks except [`programs`].
pub fn check(config: &Config) -> Vec<Finding> {
    vec![
        version(),
        btf(),
        capabilities(),
        jit(&fs::read_to_string(JIT)),
        tc(),
        ports(config),
    ]
}

fn version() -> Finding {
    let (major, minor) = preflight::OLDEST_KERNEL;
    let found = preflight::kernel().map(|release| format!("Linux {release}"));
    Finding::required(
        "kernel",
        found,
        format!("boot Linux {major}.{minor} or later"),
    )
}

fn btf() -> Finding {
    Finding::required(
        "BTF",
        preflight::btf().map(|()| "the kernel describes its types"),
        "boot a kernel with CONFIG_DEBUG_INFO_BTF=y; in a container, /sys must be the node's",
    )
}

fn capabilities() -> Finding {
    Finding::required(
        "capabilities",
        preflight::capabilities().map(|()| "BPF, NET_ADMIN and PERFMON are there"),
        "run as root, or with securityContext.capabilities.add [BPF, NET_ADMIN, PERFMON]",
    )
    .see(Section::Rights)
}

/// The finding about this setting, which exists only in the machine's first network namespace.
fn jit(setting: &io::Result<String>) -> Finding {
    const CHECK: &str = "BPF JIT";
    match setting.as_ref().map(|text| text.trim()) {
        Ok("0") => Finding::warning(
            CHECK,
            "off: programs are interpreted, which is several times slower",
            "sysctl -w net.core.bpf_jit_enable=1",
        ),
        Ok(_) => Finding::ok(CHECK, "on"),
        Err(_) => Finding::ok(CHECK, "not visible from this network namespace"),
    }
}

fn tc() -> Finding {
    const CHECK: &str = "TC";
    // Without privileges the kernel does not even say what is attached.
    if preflight::capabilities().is_err() {
        return Finding::ok(CHECK, "not tried, because capabilities are missing");
    }
    let found = match TcFlavor::detect() {
        TcFlavor::Tcx => "tcx links",
        TcFlavor::Clsact => "clsact filters (tcx needs Linux 6.6): works as well",
    };
    Finding::ok(CHECK, found)
}

/// If the ports for source NAT are used by others too, connections get mixed up; if there are few,
/// they are soon used up.
fn ports(config: &Config) -> Finding {
    const CHECK: &str = "SNAT ports";
    let ours = config.datapath.snat_ports;
    match snat_ports::problem(ours, snat_ports::ephemeral(), config.datapath.node_ports) {
        Some(problem) => Finding::warning(
            CHECK,
            problem,
            format!(
                "set --snat-ports, or make {} smaller",
                snat_ports::EPHEMERAL
            ),
        ),
        None => Finding::ok(CHECK, ours.to_string()),
    }
}

/// Has the kernel verify all programs, around small maps of their own below `bpf_root`.
pub fn programs(bpf_root: &Path) -> Finding {
    const CHECK: &str = "programs";
    let is_bpf_fs = preflight::is_bpf_fs(bpf_root).is_ok_and(|is_bpf_fs| is_bpf_fs);
    if !is_bpf_fs || preflight::capabilities().is_err() {
        return Finding::ok(CHECK, "not tried, because of what is missing above");
    }
    let was_there = bpf_root.exists();
    let root = trial_root(bpf_root);
    let start = Instant::now();
    let loaded = try_to_load(&root);
    let removed = match root.exists() {
        true => fs::remove_dir_all(&root),
        false => Ok(()),
    };
    if !was_there {
        // Unless an agent has begun to use it.
        let _ = fs::remove_dir(bpf_root);
    }
    match (loaded, removed) {
        (Ok(count), Ok(())) => Finding::ok(
            CHECK,
            format!(
                "the kernel accepts all {count}, in {:.1} s",
                start.elapsed().as_secs_f64()
            ),
        ),
        (Ok(_), Err(error)) => Finding::warning(
            CHECK,
            format!("{} could not be removed: {error}", root.display()),
            "remove that directory",
        ),
        (Err(error), _) => Finding::failure(
            CHECK,
            format!("{error:#}"),
            "read the verifier's message; if the kernel is 6.1 or later, report it",
        ),
    }
}

/// Returns how many programs the kernel accepted.
fn try_to_load(root: &Path) -> anyhow::Result<usize> {
    let pins = Pins::open(root, abi::VERSION)?;
    let settings = Settings::default()
        .max_entries("FLOWS4", TRIAL_FLOWS)
        .max_entries("FLOWS6", TRIAL_FLOWS);
    let programs = hooks::programs();
    load(OBJECT, &pins, &programs, &settings)?;
    Ok(programs.len())
}

#[cfg(test)]
mod tests {
    use super::{super::Level, *};

    #[test]
    fn a_missing_jit_setting_is_no_fault() {
        let level = |text: io::Result<&str>| jit(&text.map(str::to_owned)).level;
        assert_eq!(level(Ok("0\n")), Level::Warning);
        assert_eq!(level(Ok("1\n")), Level::Ok);
        assert_eq!(level(Err(io::ErrorKind::NotFound.into())), Level::Ok);
    }
}
