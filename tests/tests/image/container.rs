//! A minimal container runtime: a root directory, mounts and capabilities, as the DaemonSet says.

use std::{
    ffi::CString,
    fs, io,
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use lb_tests::Node;
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    unistd::{chdir, chroot},
};
use serde_json::Value;

/// The directory with the image's files.
const IMAGE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../image");
/// The directory with the deployed manifests.
const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/base");
/// Where the container finds the lab's manifests of the node.
pub const MANIFESTS: &str = "/manifests";
/// The agent's place in the image.
const AGENT: &str = "usr/local/bin/node-lb";

/// The probes of the container.
const PROBES: [&str; 3] = ["startupProbe", "livenessProbe", "readinessProbe"];

/// The numbers of capabilities that the DaemonSet may ask for (`linux/capability.h`).
const CAPABILITIES: [(&str, i32); 3] = [("NET_ADMIN", 12), ("PERFMON", 38), ("BPF", 39)];
/// The highest number that any kernel has.
const MAX_CAPABILITY: i32 = 63;

/// The DaemonSet's container on a node of a lab.
pub struct Container {
    node: Node,
    root: PathBuf,
    arguments: Vec<String>,
    /// Names and values.
    environment: Vec<(String, String)>,
    mounts: Vec<Mount>,
    capabilities: Vec<i32>,
    /// The arguments of each probe's command.
    probes: Vec<Vec<String>>,
}

/// A directory of the node in the container.
#[derive(Clone)]
struct Mount {
    source: CString,
    target: CString,
    read_only: bool,
}

impl Container {
    /// Prepares the root directory, which a runtime makes from the image and mount points.
    pub fn on(node: &Node) -> Result<Self> {
        let daemonset = object("daemonset.yaml")?;
        let pod = &daemonset["spec"]["template"]["spec"];
        let spec = &pod["containers"][0];
        let context = &spec["securityContext"];
        ensure!(context["readOnlyRootFilesystem"] == true && context["privileged"] == false);
        ensure!(context["capabilities"]["drop"] == serde_json::json!(["ALL"]));
        let capabilities = list(&context["capabilities"]["add"]).map(capability);
        let mut container = Self {
            node: node.clone(),
            root: node.dir.join("root"),
            arguments: list(&spec["args"])
                .map(|argument| text(argument).replace("$(NODE_NAME)", node.name()))
                .collect(),
            environment: list(&spec["env"])
                .filter(|variable| variable["value"].is_string())
                .map(|variable| {
                    let [name, value] = [&variable["name"], &variable["value"]].map(text);
                    (name.to_owned(), value.to_owned())
                })
                .collect(),
            capabilities: capabilities.collect::<Result<_>>()?,
            mounts: Vec::new(),
            probes: PROBES
                .map(|probe| list(&spec[probe]["exec"]["command"]).skip(1))
                .map(|arguments| arguments.map(|one| text(one).to_owned()).collect())
                .into(),
        };
        ensure!(
            container.probes.iter().all(|probe| !probe.is_empty()),
            "a probe is no command"
        );
        let agent = container.root.join(AGENT);
        fs::create_dir_all(agent.parent().context("a path with a parent")?)?;
        fs::copy(Path::new(IMAGE).join(AGENT), &agent)
            .context("the image is not there: run `cargo xtask image --root target/image`")?;
        for directory in ["proc", "sys", "dev"] {
            fs::create_dir_all(container.root.join(directory))?;
        }
        container.add_mount(Path::new("/proc"), "/proc", false)?;
        container.add_mount(Path::new("/proc/sys"), "/proc/sys", true)?;
        container.add_mount(Path::new("/dev"), "/dev", false)?;
        container.add_mount(&node.manifests(), MANIFESTS, true)?;
        for mount in list(&spec["volumeMounts"]) {
            let mut volumes = list(&pod["volumes"]);
            let volume = volumes.find(|volume| volume["name"] == mount["name"]);
            let source = container.volume(volume.context("a mount without volume")?)?;
            container.add_mount(
                &source,
                text(&mount["mountPath"]),
                mount["readOnly"] == true,
            )?;
        }
        Ok(container)
    }

    /// The agent's arguments, as deployed.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// Whether all probes pass, run in the container as the kubelet does.
    pub fn passes_its_probes(&self) -> Result<bool> {
        for probe in &self.probes {
            if !self.command(probe)?.output()?.status.success() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The node's directory that is `/run/node-lb` in the container: a lab has many nodes on one
    /// machine.
    pub fn run_directory(&self) -> PathBuf {
        self.node.dir.join("run")
    }

    /// The agent in the container, with these arguments.
    pub fn command(&self, arguments: &[String]) -> Result<Command> {
        let mut command = self.node.command(Path::new("/").join(AGENT))?;
        command.args(arguments).env_clear();
        let environment = self.environment.iter();
        command.envs(environment.map(|(name, value)| (name, value)));
        let root = c_string(&self.root)?;
        let sys = c_string(&self.root.join("sys"))?;
        let kept = self.capabilities.clone();
        let mounts = self.mounts.clone();
        let enter = move || {
            unshare(CloneFlags::CLONE_NEWNS)?;
            let nothing = None::<&str>;
            mount(
                nothing,
                "/",
                nothing,
                MsFlags::MS_REC | MsFlags::MS_SLAVE,
                nothing,
            )?;
            bind(&root, &root, false)?;
            // The one of the node's network namespace.
            mount(
                Some("sysfs"),
                &*sys,
                Some("sysfs"),
                MsFlags::MS_RDONLY,
                nothing,
            )?;
            for mount in &mounts {
                bind(&mount.source, &mount.target, mount.read_only)?;
            }
            make_read_only(&root)?;
            chroot(&*root)?;
            chdir("/")?;
            keep_capabilities(&kept)
        };
        // SAFETY: between fork and exec the closure only makes system calls on memory that already
        // exists; it neither allocates nor takes a lock.
        unsafe { command.pre_exec(enter) };
        Ok(command)
    }

    /// The node's directory for a volume.
    fn volume(&self, volume: &Value) -> Result<PathBuf> {
        if let Some(path) = volume["hostPath"]["path"].as_str() {
            let own = self.run_directory();
            return Ok(match path {
                "/run/node-lb" => own,
                "/sys/fs/bpf/node-lb" => self.node.pin_root.clone(),
                path => path.into(),
            });
        }
        if volume["emptyDir"].is_object() {
            return Ok(self.node.dir.join(text(&volume["name"])));
        }
        ensure!(
            volume["configMap"]["name"] == "node-lb",
            "{volume} is not known here"
        );
        let directory = self.node.dir.join("config");
        fs::create_dir_all(&directory)?;
        let config = object("config.yaml")?;
        let data = config["data"]
            .as_object()
            .context("a ConfigMap without data")?;
        for (name, value) in data {
            fs::write(directory.join(name), text(value))?;
        }
        Ok(directory)
    }

    fn add_mount(&mut self, source: &Path, target: &str, read_only: bool) -> Result<()> {
        let target = self.root.join(target.trim_start_matches('/'));
        fs::create_dir_all(source)?;
        fs::create_dir_all(&target)?;
        self.mounts.push(Mount {
            source: c_string(source)?,
            target: c_string(&target)?,
            read_only,
        });
        Ok(())
    }
}

fn bind(source: &CString, target: &CString, read_only: bool) -> io::Result<()> {
    let nothing = None::<&str>;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(&**source), &**target, nothing, flags, nothing)?;
    match read_only {
        true => make_read_only(target),
        false => Ok(()),
    }
}

fn make_read_only(target: &CString) -> io::Result<()> {
    let nothing = None::<&str>;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    Ok(mount(nothing, &**target, nothing, flags, nothing)?)
}

/// Removes all capabilities but these from what is executed next, and every way to get more.
fn keep_capabilities(kept: &[i32]) -> io::Result<()> {
    let ours = (0..=MAX_CAPABILITY).filter(|capability| !kept.contains(capability));
    for capability in ours {
        // SAFETY: prctl with this option takes a number and touches no memory. The kernel refuses
        // numbers that it does not know.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
    nix::sys::prctl::set_no_new_privs()?;
    Ok(())
}

fn capability(name: &Value) -> Result<i32> {
    let found = CAPABILITIES.iter().find(|(known, _)| name == known);
    match found {
        Some((_, number)) => Ok(*number),
        None => bail!("capability {name} is not known here"),
    }
}

/// The object in a file of [`DEPLOY`].
fn object(file: &str) -> Result<Value> {
    let path = Path::new(DEPLOY).join(file);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_saphyr::from_str(&text).with_context(|| path.display().to_string())
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn c_string(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).context("a path with a zero byte")
}
