//! Provides a Go that can build Kubernetes, which needs a newer one than distributions have.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use xtask::ebpf::Release;

use super::Installer;

/// Where the `go` command of release `wanted` or later is. Installs one if there is none.
///
/// Any other Go can fetch a newer one: every release of Go is also a Go module, and its contents
/// are verified like those of all modules.
///
/// # Errors
/// Says what could not be installed, and how to do it by hand.
pub fn provide(installer: &mut Installer, wanted: Release) -> Result<PathBuf> {
    let unpacked = unpacked(installer, wanted);
    let mut present: Vec<_> = candidates().collect();
    present.push(unpacked.join("bin/go"));
    if let Some(go) = present.iter().find(|go| release(go) >= Some(wanted)) {
        return Ok(go.clone());
    }
    let by_hand = || format!("put Go {wanted} or later on PATH, then try again");
    println!("  Go {wanted}: builds the Kubernetes control plane that tests run against");
    if !candidates().any(|go| release(&go).is_some()) {
        let installed = installer.apt.install(&["golang-go"]);
        installed.with_context(by_hand)?;
    }
    let older = candidates().find(|go| release(go).is_some());
    let older = older
        .context("there is no Go on this machine")
        .with_context(by_hand)?;
    fetch(installer, &older, wanted, &unpacked).with_context(by_hand)?;
    Ok(unpacked.join("bin/go"))
}

/// The Go that a `go.mod` asks for.
///
/// # Errors
/// If it cannot be read, or names none.
pub fn wanted_by(go_mod: &Path) -> Result<Release> {
    let what = || format!("{} has no line `go VERSION`", go_mod.display());
    let text = fs::read_to_string(go_mod).with_context(what)?;
    parse_go_line(&text).with_context(what)
}

fn parse_go_line(go_mod: &str) -> Option<Release> {
    go_mod
        .lines()
        .find_map(|line| Release::parse(line.strip_prefix("go ")?.trim()))
}

/// Possible places of `go`: `PATH`, and where Go's own archives are unpacked.
fn candidates() -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories: Vec<_> = env::split_paths(&path)
        .chain([PathBuf::from("/usr/local/go/bin")])
        .collect();
    directories
        .into_iter()
        .map(|directory| directory.join("go"))
        .filter(|go| go.is_file())
}

/// The release of `go` itself, not of one that it would switch to.
fn release(go: &Path) -> Option<Release> {
    let output = Command::new(go)
        .arg("version")
        .env("GOTOOLCHAIN", "local")
        .output()
        .ok()?;
    parse_version(&String::from_utf8_lossy(&output.stdout))
}

/// Reads `go version go1.26.8 linux/amd64`.
fn parse_version(text: &str) -> Option<Release> {
    Release::parse(text.strip_prefix("go version go")?)
}

fn unpacked(installer: &Installer, release: Release) -> PathBuf {
    installer.places.cache.join(format!("go-{release}"))
}

/// Makes `older` download Go `wanted`, and unpacks it into `directory`.
fn fetch(installer: &Installer, older: &Path, wanted: Release, directory: &Path) -> Result<()> {
    let platform = go_env(older, "GOOS")? + "-" + &go_env(older, "GOARCH")?;
    let module = format!("golang.org/toolchain@v0.0.1-go{wanted}.{platform}");
    let download = || {
        let mut command = Command::new(older);
        // Outside any module, because this Go would refuse a newer go.mod.
        command.args(["mod", "download", "-json", &module]);
        command.env("GOTOOLCHAIN", "local").env("GO111MODULE", "on");
        command.env("GOFLAGS", "").current_dir("/");
        command
    };
    let title = format!("downloading Go {wanted}");
    installer.steps.run(&title, &mut download())?;
    // The second time it only says where the module is.
    let output = download().output().context("cannot run go")?;
    let answer: Value =
        serde_json::from_slice(&output.stdout).context("cannot read what go says")?;
    let source = answer["Dir"]
        .as_str()
        .context("go does not say where it is")?;

    // Files in modules are neither executable nor writable.
    let fresh = directory.with_file_name("go-unfinished");
    let _ = fs::remove_dir_all(&fresh); // left by a set-up that was cut off
    let parent = directory.parent().unwrap_or(directory);
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    let mut copy = Command::new("cp");
    copy.args(["--recursive", "--no-preserve=mode", source])
        .arg(&fresh);
    let title = format!("unpacking Go {wanted}");
    installer.steps.run(&title, &mut copy)?;
    let mut allow = Command::new("chmod");
    allow.args(["--recursive", "a+x"]);
    allow.args([fresh.join("bin"), fresh.join("pkg/tool")]);
    installer.steps.run("making it executable", &mut allow)?;
    ensure!(
        release(&fresh.join("bin/go")) == Some(wanted),
        "{} does not run as Go {wanted}",
        fresh.display()
    );
    fs::rename(&fresh, directory).with_context(|| format!("cannot make {}", directory.display()))
}

fn go_env(go: &Path, variable: &str) -> Result<String> {
    let output = Command::new(go).args(["env", variable]).output();
    let output = output.context("cannot run go")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_from_go_and_from_go_mod() {
        let debian = parse_version("go version go1.19.8 linux/amd64\n");
        assert_eq!(debian, Some(Release::new(1, 19, 8)));
        assert_eq!(parse_version("go: cannot find GOROOT directory\n"), None);
        let go_mod = "module m\n\ngo 1.26.0\n\ntool (\n\tgo.etcd.io/etcd/server/v3\n)\n";
        assert_eq!(parse_go_line(go_mod), Some(Release::new(1, 26, 0)));
        assert_eq!(parse_go_line("module m\n"), None);
    }
}
