//! Hosts of a lab: the client, the router, nodes and pods.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result, bail};

use super::address::{Addresses, Family, Networks};
use super::cgroup::Cgroup;
use super::netns::Netns;

/// A network namespace with addresses of its own and a cgroup for its processes.
///
/// A cheap handle: clones are the same host.
#[derive(Clone, Debug)]
pub struct Host(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    netns: Arc<Netns>,
    cgroup: Cgroup,
    addresses: Addresses,
    traffic: TrafficRunsIn,
}

/// Where servers and clients of a host run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficRunsIn {
    /// A thread of this process that has entered the host's namespace: quick, and not a member
    /// of the host's cgroup.
    Thread,
    /// A child process in the host's namespace and cgroup, which is what cgroup programs act on.
    Process,
}

impl Host {
    pub(super) fn new(
        name: &str,
        netns: Netns,
        cgroup: Cgroup,
        addresses: Addresses,
        traffic: TrafficRunsIn,
    ) -> Self {
        Self(Arc::new(Inner {
            name: name.to_owned(),
            netns: Arc::new(netns),
            cgroup,
            addresses,
            traffic,
        }))
    }

    /// The host's name in its lab, for example `node-1`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The host's network namespace.
    pub fn netns(&self) -> &Netns {
        &self.0.netns
    }

    /// The cgroup v2 directory that [`Host::command`] starts processes in.
    pub fn cgroup(&self) -> &Path {
        self.0.cgroup.path()
    }

    /// The host's main addresses, on its `eth0`.
    pub fn addresses(&self) -> Addresses {
        self.0.addresses
    }

    /// The host's main address of one family.
    pub fn ip(&self, family: Family) -> IpAddr {
        self.0.addresses.of(family)
    }

    /// The host's main address of one family, with a port.
    pub fn at(&self, family: Family, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip(family), port)
    }

    /// Where this host's servers and clients run: processes for nodes, else threads.
    pub fn traffic_runs_in(&self) -> TrafficRunsIn {
        self.0.traffic
    }

    /// The same host, with its servers and clients in processes inside its cgroup.
    pub fn with_processes(&self) -> Self {
        let inner = &self.0;
        Self(Arc::new(Inner {
            name: inner.name.clone(),
            netns: Arc::clone(&inner.netns),
            cgroup: inner.cgroup.clone(),
            addresses: inner.addresses,
            traffic: TrafficRunsIn::Process,
        }))
    }

    /// A command that will run in this host's namespace and cgroup.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let mut command = self.0.netns.command(program)?;
        self.0.cgroup.adopt(&mut command)?;
        // The lab must not use a web proxy of the machine.
        for proxy in ["http_proxy", "https_proxy", "all_proxy"] {
            command.env_remove(proxy).env_remove(proxy.to_uppercase());
        }
        Ok(command)
    }

    /// Runs a command line (words separated by blanks, no quoting) to its end and returns what
    /// it wrote to stdout. A non-zero exit is an error that quotes stderr.
    pub fn run(&self, line: &str) -> Result<String> {
        self.feed(line, "")
    }

    /// Like [`Host::run`], with `input` on the command's stdin.
    pub fn feed(&self, line: &str, input: &str) -> Result<String> {
        let mut words = line.split_whitespace();
        let mut command = self.command(words.next().context("empty command line")?)?;
        command.args(words);
        output_of(command, input).with_context(|| format!("{}: {line}", self.name()))
    }

    /// Writes a setting below `/proc/sys` of this host's namespace, for example
    /// `net/ipv4/ip_forward`.
    pub fn set_sysctl(&self, key: &str, value: &str) -> Result<()> {
        self.0
            .netns
            .run(|| fs::write(Path::new("/proc/sys").join(key), value))?
            .with_context(|| format!("{}: cannot set {key} to {value}", self.name()))
    }

    /// Lets this host open many short connections from one address, which need many ports.
    pub fn allow_many_connections(&self) -> Result<()> {
        self.set_sysctl("net/ipv4/ip_local_port_range", "10240 65535")?;
        self.set_sysctl("net/ipv4/tcp_tw_reuse", "1")
    }

    /// Makes the first CPU handle all packets that arrive at `eth0`, in their order (RPS).
    pub fn receive_on_one_cpu(&self) -> Result<()> {
        // A sysfs shows the devices of the namespace that it was mounted in: iproute2 mounts one.
        let name = self.netns().name();
        let setting = "/sys/class/net/eth0/queues/rx-0/rps_cpus";
        self.feed(&format!("ip netns exec {name} tee {setting}"), "1")?;
        Ok(())
    }
}

impl AsRef<Host> for Host {
    fn as_ref(&self) -> &Host {
        self
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A node: the host an agent runs on.
#[derive(Clone, Debug)]
pub struct Node {
    pub(super) host: Host,
    /// From 1.
    pub index: u8,
    /// The networks of this node's pods.
    pub pod_networks: Networks,
    /// This node's own directory for manifests and logs.
    pub dir: PathBuf,
    /// Where this node's agent pins: other nodes of the lab see the same bpffs.
    pub pin_root: PathBuf,
    /// The whole node's cgroup: its own processes are in [`Host::cgroup`] and those of its pods
    /// in siblings of that, below this one.
    pub cgroup_root: PathBuf,
    pub(super) next_pod: Arc<AtomicU8>,
}

impl Node {
    /// The device to the node network.
    pub const UPLINK: &str = "eth0";

    /// The directory the lab writes this node's manifests to (`--source dir:...`).
    pub fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    /// A pod of this node that shares the node's network: its processes are in a pod's cgroup.
    pub fn host_network_pod(&self, name: &str) -> Result<Host> {
        let inner = &self.host.0;
        Ok(Host(Arc::new(Inner {
            name: name.to_owned(),
            netns: Arc::clone(&inner.netns),
            cgroup: Cgroup::create(self.cgroup_root.join("pods").join(name))?,
            addresses: inner.addresses,
            traffic: TrafficRunsIn::Process,
        })))
    }

    /// The next free host number in the pod networks.
    pub(super) fn take_pod_number(&self) -> Result<u8> {
        let number = self.next_pod.fetch_add(1, Ordering::Relaxed);
        if number > 250 {
            bail!("{}: no pod address is left", self.name());
        }
        Ok(number)
    }
}

/// A pod on a node.
#[derive(Clone, Debug)]
pub struct Pod {
    pub(super) host: Host,
    /// The node's end of the pod's veth.
    pub host_end: String,
    /// The name of the node the pod is on.
    pub node: String,
}

impl Pod {
    /// The same pod, with its servers and clients in processes inside its cgroup.
    pub fn with_processes(&self) -> Self {
        Self {
            host: self.host.with_processes(),
            ..self.clone()
        }
    }
}

/// Everything a host can do, a node and a pod can do.
macro_rules! is_a_host {
    ($($kind:ty),*) => {$(
        impl Deref for $kind {
            type Target = Host;

            fn deref(&self) -> &Host {
                &self.host
            }
        }

        impl AsRef<Host> for $kind {
            fn as_ref(&self) -> &Host {
                &self.host
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.host.fmt(f)
            }
        }
    )*};
}
is_a_host!(Node, Pod);

/// Runs a command to its end with `input` on stdin and returns its stdout.
pub(crate) fn output_of(mut command: Command, input: &str) -> Result<String> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot be started")?;
    let mut stdin = child.stdin.take().expect("stdin was just piped");
    // If the command exits without reading, its status shows that.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().context("cannot wait")?;
    if !status.success() {
        bail!("{status}: {}", String::from_utf8_lossy(&stderr).trim());
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}
