//! The programs that tests and the lab call, and the packages that contain them.

use anyhow::{Context, Result};

use super::{Need, apt::Apt, on_path};
use crate::architecture::Architecture;

/// A program that tests or the lab call.
pub struct Tool {
    /// Its name; of a library, the path of its header; of what is in no directory of commands, its own.
    command: &'static str,
    /// Packages that contain it, by preference; their names differ between distributions.
    packages: &'static [&'static str],
    need: Need,
    purpose: &'static str,
}

static TOOLS: [Tool; 28] = [
    Tool {
        command: "ip",
        packages: &["iproute2"],
        need: Need::Lab,
        purpose: "network namespaces, devices and routes of the lab",
    },
    Tool {
        command: "bpftool",
        packages: &["bpftool", "linux-tools-generic"],
        need: Need::Lab,
        purpose: "shows loaded programs and maps",
    },
    Tool {
        command: "nft",
        packages: &["nftables"],
        need: Need::Lab,
        purpose: "firewall and masquerade rules to be tested beside",
    },
    Tool {
        command: "ethtool",
        packages: &["ethtool"],
        need: Need::Lab,
        purpose: "offloads of the lab's devices",
    },
    Tool {
        command: "ping",
        packages: &["iputils-ping"],
        need: Need::Lab,
        purpose: "reachability in the lab",
    },
    Tool {
        command: "sysctl",
        packages: &["procps"],
        need: Need::Lab,
        purpose: "kernel settings of the lab's namespaces",
    },
    Tool {
        command: "tcpdump",
        packages: &["tcpdump"],
        need: Need::Lab,
        purpose: "captures of a test that failed",
    },
    Tool {
        command: "/usr/lib/usrsctp/echo_server",
        packages: &["libusrsctp-examples"],
        need: Need::Lab,
        purpose: "SCTP, which the kernel may not have, between the lab's hosts",
    },
    Tool {
        command: "iperf3",
        packages: &["iperf3"],
        need: Need::Lab,
        purpose: "throughput in benchmarks",
    },
    Tool {
        command: "chromium",
        packages: &["chromium"],
        need: Need::Browser,
        purpose: "shows the status page",
    },
    Tool {
        command: "chromedriver",
        packages: &["chromium-driver"],
        need: Need::Browser,
        purpose: "drives that browser",
    },
    Tool {
        command: "haproxy",
        packages: &["haproxy"],
        need: Need::Peers,
        purpose: "a balancer that the benchmark compares node-lb with",
    },
    Tool {
        command: "c++",
        packages: &["g++"],
        need: Need::Fuzz,
        purpose: "libFuzzer, which the fuzz targets run in",
    },
    Tool {
        command: "qemu-system-x86_64",
        packages: &["qemu-system-x86"],
        need: Need::Kernels(Architecture::Amd64),
        purpose: "runs older kernels",
    },
    Tool {
        command: "qemu-system-aarch64",
        packages: &["qemu-system-arm"],
        need: Need::Kernels(Architecture::Arm64),
        purpose: "runs kernels for arm64",
    },
    Tool {
        command: "qemu-aarch64",
        packages: &["qemu-user"],
        need: Need::Kernels(Architecture::Arm64),
        purpose: "lists the tests of programs for arm64",
    },
    Tool {
        command: "aarch64-linux-gnu-gcc",
        packages: &["gcc-aarch64-linux-gnu"],
        need: Need::Cross(Architecture::Arm64),
        purpose: "links programs for arm64",
    },
    Tool {
        command: "/usr/aarch64-linux-gnu/include/stdio.h",
        packages: &["libc6-dev-arm64-cross"],
        need: Need::Cross(Architecture::Arm64),
        purpose: "the C library that these are linked with",
    },
    Tool {
        command: "cpio",
        packages: &["cpio"],
        need: Need::Guests,
        purpose: "the file systems of those kernels",
    },
    Tool {
        command: "depmod",
        packages: &["kmod"],
        need: Need::Guests,
        purpose: "the modules of those kernels",
    },
    Tool {
        command: "mmdebstrap",
        packages: &["mmdebstrap"],
        need: Need::Cluster,
        purpose: "the file systems of the cluster's pods",
    },
    Tool {
        command: "pkg-config",
        packages: &["pkg-config"],
        need: Need::Cluster,
        purpose: "finds the C library that runc is built with",
    },
    Tool {
        command: "/usr/include/seccomp.h",
        packages: &["libseccomp-dev"],
        need: Need::Cluster,
        purpose: "system call filters, which runc is built with",
    },
    Tool {
        command: "python3",
        packages: &["python3"],
        need: Need::Cluster,
        purpose: "scripts of the cluster",
    },
    Tool {
        command: "openssl",
        packages: &["openssl"],
        need: Need::Cluster,
        purpose: "the cluster's keys",
    },
    Tool {
        command: "curl",
        packages: &["curl"],
        need: Need::ControlPlane,
        purpose: "asks agents and a cluster's nodes, as the documentation does",
    },
    Tool {
        command: "jq",
        packages: &["jq"],
        need: Need::ControlPlane,
        purpose: "reads JSON in commands of the documentation",
    },
    Tool {
        command: "iptables",
        packages: &["iptables"],
        need: Need::ControlPlane,
        purpose: "kube-proxy's iptables mode, port mappings of a cluster's pods",
    },
];

/// The tools for `needs` that are missing.
pub fn missing(needs: &[Need]) -> Vec<&'static Tool> {
    // This machine's own C compiler is there.
    let is_native = |need| matches!(need, Need::Cross(architecture) if architecture.is_here());
    TOOLS
        .iter()
        .filter(|tool| needs.contains(&tool.need) && !is_native(tool.need))
        .filter(|tool| !on_path(tool.command))
        .collect()
}

/// Installs the packages that contain these programs.
///
/// # Errors
///
/// Says which programs are missing and what to run by hand.
pub fn install(apt: &mut Apt, missing: &[&Tool]) -> Result<()> {
    let mut packages = Vec::new();
    for tool in missing {
        let package = apt
            .first_available(tool.packages)
            .unwrap_or(tool.packages[0]);
        println!("  {package}: {}", tool.purpose);
        packages.push(package);
    }
    apt.install(&packages).with_context(|| {
        let commands: Vec<_> = missing.iter().map(|tool| tool.command).collect();
        format!("these commands are missing: {}", commands.join(" "))
    })
}
