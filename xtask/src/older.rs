//! The older version of node-lb, for tests that upgrade from it and go back to it.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use xtask::ebpf::{self, Places};

use crate::cargo::{Workspace, run};

/// The last commit in which flow records have no sequence numbers.
const COMMIT: &str = "64abd3164678e5d3da226688f9538121a8d71cf7";

/// As this version is built for tests: that version optimizes its agent for them, which takes minutes.
const UNOPTIMIZED: &str = "profile.dev.package.node-lb.opt-level=0";

/// Builds that version's agent for tests, unless this machine has it: `older/node-lb` in the build
/// directory.
///
/// # Errors
/// If the repository does not have the commit, or it does not build.
pub fn for_tests(workspace: &Workspace) -> Result<()> {
    // Not below the workspace, because cargo would combine the settings of both versions.
    let directory = Places::from_env().cache.join(format!("older-{COMMIT}"));
    let agent = directory.join("node-lb");
    if !agent.is_file() {
        build(workspace, &directory, &agent)?;
    }
    let place = workspace.target.join("older");
    let link = place.join("node-lb");
    if fs::read_link(&link).is_ok_and(|to| to == agent) {
        return Ok(());
    }
    fs::create_dir_all(&place)
        .and_then(|()| match fs::remove_file(&link) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => symlink(&agent, &link),
        })
        .with_context(|| format!("cannot make {}", link.display()))
}

fn build(workspace: &Workspace, directory: &Path, agent: &Path) -> Result<()> {
    let older = Workspace {
        root: directory.join("source"),
        target: directory.join("target"),
    };
    unpack(workspace, &older.root)?;
    let object = ebpf::build_object(&older.root, &older.target, ebpf::PROGRAMS)?;
    let mut build = older.cargo(["build", "--package", "node-lb", "--bin", "node-lb"]);
    build
        .args(["--config", UNOPTIMIZED])
        .env("CARGO_TARGET_DIR", &older.target)
        .env(ebpf::OBJECT_VARIABLE, object);
    run(&mut build).context("the older version does not build")?;
    let built = older.target.join("debug/node-lb");
    fs::rename(&built, agent).with_context(|| format!("cannot move {}", built.display()))?;
    // The files of the build are many times larger than the program.
    for left in [&older.root, &older.target] {
        fs::remove_dir_all(left).with_context(|| format!("cannot remove {}", left.display()))?;
    }
    Ok(())
}

/// Writes the commit's files below `root`.
fn unpack(workspace: &Workspace, root: &Path) -> Result<()> {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(&workspace.root).args(arguments);
        git
    };
    let is_there = |mut look: Command| {
        look.stderr(Stdio::null());
        look.status().is_ok_and(|status| status.success())
    };
    let object = format!("{COMMIT}^{{commit}}");
    if !is_there(git(&["cat-file", "-e", &object])) {
        // A shallow clone contains only the newest commit.
        ensure!(
            is_there(git(&["fetch", "--quiet", "--depth=1", "origin", COMMIT])),
            "the tests go back to an older version, but this repository does not have commit {COMMIT}: \
             get it by `git fetch --unshallow`"
        );
    }
    if root.exists() {
        fs::remove_dir_all(root).with_context(|| format!("cannot remove {}", root.display()))?;
    }
    fs::create_dir_all(root).with_context(|| format!("cannot make {}", root.display()))?;
    let archive = root.with_extension("tar");
    let file = archive.to_string_lossy();
    run(&mut git(&["archive", "--output", &file, COMMIT]))?;
    let mut tar = Command::new("tar");
    run(tar.arg("-xf").arg(&archive).arg("-C").arg(root))?;
    fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))
}
