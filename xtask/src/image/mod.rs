//! `cargo xtask image`: builds the container image without a container engine.
//!
//! `deploy/Containerfile` describes the image. Its last stage is followed here, and its build stage
//! calls this command for the files, so both ways lead to the same image.

mod archive;
mod recipe;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use self::{archive::Image, recipe::Recipe};
use crate::{architecture::Architecture, build, cargo::Workspace};

/// The file that describes the image, from the workspace's root.
const CONTAINERFILE: &str = "deploy/Containerfile";
/// The agent's place in the image.
const AGENT: &str = "usr/local/bin/node-lb";

/// The form of the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// An archive that `ctr images import`, `podman load` and `docker load` take.
    Archive(PathBuf),
    /// An archive with an image for each architecture, and an index of them.
    Index(PathBuf),
    /// The image's files, below this directory.
    Root(PathBuf),
}

impl Output {
    /// The output that the command line asks for. Paths are relative to the caller's directory.
    pub fn parse(arguments: &[String], workspace: &Workspace) -> Result<Self> {
        match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => Ok(Self::Archive(default_archive(workspace))),
            ["--output", file] => Ok(Self::Archive(file.into())),
            ["--index"] => {
                let name = format!("node-lb-{}-index.tar", version());
                Ok(Self::Index(workspace.target.join(name)))
            }
            ["--index", "--output", file] | ["--output", file, "--index"] => {
                Ok(Self::Index(file.into()))
            }
            ["--root", directory] => Ok(Self::Root(directory.into())),
            _ => bail!(
                "image takes --index and --output FILE, or --root DIRECTORY, not {:?}",
                arguments.join(" ")
            ),
        }
    }
}

/// The default place of the archive.
pub fn default_archive(workspace: &Workspace) -> PathBuf {
    workspace.target.join(format!("node-lb-{}.tar", version()))
}

/// The image's name as container runtimes know it, with the workspace's version. In the namespace
/// of images that are only on the machine: nobody can push one of that name to a registry.
pub fn name() -> String {
    format!("localhost/node-lb:{}", version())
}

/// Builds the static agent and the image.
///
/// # Errors
/// If the agent cannot be built, or files cannot be written.
pub fn run(workspace: &Workspace, output: &Output) -> Result<()> {
    let recipe = recipe(workspace)?;
    match output {
        Output::Root(root) => {
            install(&build::run(workspace, build::Kind::Static)?, root)?;
            println!("{}", root.display());
            Ok(())
        }
        Output::Archive(file) => write(workspace, recipe, &[Architecture::here()], file),
        Output::Index(file) => {
            let all = [Architecture::Amd64, Architecture::Arm64];
            write(workspace, recipe, &all, file)
        }
    }
}

/// Writes the image's files below `root` for tests, with an agent that is not optimised.
///
/// # Errors
/// As for [`run`].
pub fn for_tests(workspace: &Workspace, root: PathBuf) -> Result<()> {
    recipe(workspace)?;
    install(&build::run(workspace, build::Kind::StaticDebug)?, &root)?;
    println!("{}", root.display());
    Ok(())
}

/// What the Containerfile says.
fn recipe(workspace: &Workspace) -> Result<Recipe> {
    let path = workspace.root.join(CONTAINERFILE);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Recipe::parse(&text).with_context(|| path.display().to_string())
}

/// Builds for some architectures, and writes their images.
fn write(
    workspace: &Workspace,
    recipe: Recipe,
    architectures: &[Architecture],
    file: &Path,
) -> Result<()> {
    let mut roots = Vec::new();
    for architecture in architectures {
        let agent = build::static_for(workspace, *architecture)?;
        let mut root = workspace.target.join("image");
        if !architecture.is_here() {
            root = workspace.target.join(architecture.target()).join("image");
        }
        install(&agent, &root)?;
        roots.push((architecture.debian(), root));
    }
    let image = Image {
        name: name(),
        recipe,
    };
    image
        .write(&roots, file)
        .with_context(|| format!("cannot write {}", file.display()))?;
    println!("{}: {}", image.name, file.display());
    Ok(())
}

/// Makes `root` the image's root directory.
fn install(agent: &Path, root: &Path) -> Result<()> {
    let target = root.join(AGENT);
    let directory = target.parent().context("the agent is in no directory")?;
    fs::create_dir_all(directory)
        .and_then(|()| fs::copy(agent, &target))
        .and_then(|_| fs::set_permissions(&target, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot write {}", target.display()))
}

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_deployed_is_this_image() {
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
        for file in [
            "base/daemonset.yaml",
            "components/mount-bpffs/kustomization.yaml",
        ] {
            let text = fs::read_to_string(deploy.join(file)).unwrap();
            let image = text
                .lines()
                .find_map(|line| line.trim().strip_prefix("image: "));
            assert_eq!(image, Some(name().as_str()), "deploy/{file}");
        }
        let chart = fs::read_to_string(deploy.join("chart/node-lb/Chart.yaml")).unwrap();
        for key in ["version", "appVersion"] {
            let line = format!("{key}: {}", version());
            assert!(
                chart.lines().any(|found| found == line),
                "Chart.yaml lacks {line:?}"
            );
        }
    }
}
