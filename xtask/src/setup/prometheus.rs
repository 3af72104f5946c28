//! Prometheus, which tests give the alerts and dashboards of `deploy/monitoring` to: a package of Debian,
//! unpacked and never installed, because that would start a server.

use std::{fs, process::Command};

use anyhow::{Context, Result};
use xtask::ebpf::Places;

use super::apt::Apt;
use crate::cargo::run;

/// What is needed of the package.
const PROGRAMS: [&str; 2] = ["prometheus", "promtool"];

/// Whether a program is not beside those of the cluster.
pub fn is_missing(places: &Places) -> bool {
    let directory = places.cluster_programs();
    let mut programs = PROGRAMS.iter();
    programs.any(|program| !directory.join(program).is_file())
}

/// Downloads the package, and puts its programs beside those of the cluster.
///
/// # Errors
///
/// If it cannot be downloaded or unpacked.
pub(super) fn fetch(apt: &mut Apt, places: &Places) -> Result<()> {
    println!("  prometheus: alerts and dashboards are tested with it; it is not installed");
    let (unpacked, programs) = (places.cache.join("prometheus"), places.cluster_programs());
    // Left by a set-up that was interrupted.
    let _ = fs::remove_dir_all(&unpacked);
    for directory in [&unpacked, &programs] {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let package = apt.download("prometheus", &unpacked).with_context(|| {
        let programs = programs.display();
        format!(
            "put {} of another package into {programs}",
            PROGRAMS.join(" and ")
        )
    })?;
    let mut dpkg = Command::new("dpkg-deb");
    run(dpkg.arg("--extract").arg(package).arg(&unpacked))?;
    for program in PROGRAMS {
        let from = unpacked.join("usr/bin").join(program);
        fs::copy(&from, programs.join(program))
            .with_context(|| format!("cannot copy {}", from.display()))?;
    }
    fs::remove_dir_all(&unpacked)?;
    Ok(())
}
