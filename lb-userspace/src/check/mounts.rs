//! File systems that the agent needs.

use std::path::Path;

use lb_datapath::preflight::{self, BPF_FS};

use super::Finding;
use crate::{
    config::{DatapathConfig, SocketLb},
    docs::Section,
};

pub fn check(config: &DatapathConfig) -> Vec<Finding> {
    let findings = [bpf_fs(&config.bpf_root), cgroup2(config)];
    let findings = findings.map(|finding| finding.see(Section::Rights));
    findings.into()
}

fn bpf_fs(root: &Path) -> Finding {
    const CHECK: &str = "BPF file system";
    let remedy = format!(
        "mount it on the node (mount -t bpf bpf {BPF_FS}) and, in a container, mount the node's there"
    );
    match preflight::is_bpf_fs(root) {
        Ok(true) => Finding::ok(CHECK, format!("{} is on one", root.display())),
        Ok(false) if root.starts_with(BPF_FS) && preflight::may_mount() => Finding::warning(
            CHECK,
            "not mounted; the agent will mount it, but in a container that mount ends with the container",
            remedy,
        ),
        Ok(false) => Finding::failure(CHECK, format!("{} is not on one", root.display()), remedy),
        Err(error) => Finding::failure(CHECK, error.to_string(), remedy),
    }
}

fn cgroup2(config: &DatapathConfig) -> Finding {
    const CHECK: &str = "cgroup v2";
    if config.socket_lb == SocketLb::Off {
        return Finding::ok(CHECK, "not needed with --socket-lb=off");
    }
    let remedy = "mount it (mount -t cgroup2 none /sys/fs/cgroup; in a container, mount the node's), or run \
                  with --socket-lb=off";
    let root = match (&config.cgroup_path, preflight::cgroup2_root()) {
        (Some(path), _) => path.clone(),
        (None, Ok(Some(root))) => root,
        (None, Ok(None)) => return Finding::failure(CHECK, "not mounted", remedy),
        (None, Err(error)) => return Finding::failure(CHECK, error.to_string(), remedy),
    };
    if !preflight::is_cgroup2(&root) {
        let found = format!("{} is not in a cgroup v2 hierarchy", root.display());
        return Finding::failure(
            CHECK,
            found,
            "set --cgroup-path to a directory in a cgroup v2 hierarchy",
        );
    }
    // Only a root cgroup has no type. In a container, what is mounted may be its own part of the
    // hierarchy.
    match root.join("cgroup.type").exists() && config.cgroup_path.is_none() {
        true => Finding::warning(
            CHECK,
            format!(
                "{} is not the node's root: only processes below it will reach Services",
                root.display()
            ),
            "mount the node's /sys/fs/cgroup into the container",
        ),
        false => Finding::ok(CHECK, root.display().to_string()),
    }
}
