//! The container image, run as its DaemonSet says. Needs root, and the image's files in
//! `target/image`: `cargo xtask image --root target/image`.

mod container;

use std::{
    net::SocketAddr,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lb_tests::{Endpoint, Lab, Node, Request, Serve, Topology, balanced, patient};

use self::container::Container;

const CLUSTER_IP: &str = "10.96.0.10";
/// How long the agent may take to get ready.
const DEADLINE: Duration = Duration::from_secs(60);

/// Three capabilities, a read-only root and its mounts are enough for everything that it does.
#[test]
fn the_image_serves_with_what_the_daemonset_gives_it() -> Result<()> {
    let lab = Lab::up(Topology {
        nodes: 1,
        pods_per_node: 2,
        ..Topology::default()
    })?;
    let (node, pod) = (lab.node(1), lab.pod("pod-1-1"));
    let _server = Serve::new("web").http(8080).start(pod)?;
    let service = lab.service("web").cluster_ip(CLUSTER_IP);
    service.tcp("http", 80, 8080).apply()?;
    let slices = lab.endpoints("web").tcp("http", 8080);
    slices.with(Endpoint::ready(pod)).apply()?;

    let container = Container::on(node)?;
    let settings = settings(node);
    let arguments = container.arguments();
    // The same arguments for another command.
    let mut check = arguments.to_vec();
    check[0] = "check".to_owned();
    let check = container
        .command(&[&check[..], &settings].concat())?
        .output()?;
    let said = String::from_utf8_lossy(&check.stdout);
    ensure!(check.status.success(), "{said}\n{check:?}");

    let arguments = [arguments, &settings].concat();
    let mut agent = container
        .command(&arguments)?
        .stderr(Stdio::inherit())
        .spawn()?;
    let start = Instant::now();
    while !container.passes_its_probes()? {
        ensure!(agent.try_wait()?.is_none(), "the agent has ended");
        ensure!(
            start.elapsed() < patient(DEADLINE),
            "the agent is not ready"
        );
        thread::sleep(Duration::from_millis(20));
    }
    let target = SocketAddr::new(CLUSTER_IP.parse()?, 80);
    Request::http(target).send(lab.pod("pod-1-2"))?;
    Request::http(target).send(node)?;
    // The socket is where the node's shell finds it.
    let program = balanced::node_lb()?;
    let socket = container.run_directory().join("agent.sock");
    let (program, socket) = (program.display(), socket.display());
    let status = node.run(&format!("{program} status --socket {socket}"))?;
    ensure!(status.starts_with("Nothing needs attention"), "{status}");
    ensure!(status.contains("1 service ports programmed"), "{status}");

    // Through the mount for it: as in any container, its own /proc/sys is read-only.
    let close_wait = node.run("cat /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait")?;
    ensure!(close_wait.trim() == "3600", "CLOSE_WAIT: {close_wait} s");

    // What the agent has pinned is in the node's own directory.
    ensure!(
        node.pin_root.read_dir()?.next().is_some(),
        "nothing is pinned"
    );
    agent.kill()?;
    agent.wait()?;
    // Commands in the container find it; the directory itself is the container's mount.
    let cleanup = container.command(&["cleanup".to_owned()])?.output()?;
    ensure!(cleanup.status.success(), "{cleanup:?}");
    ensure!(node.pin_root.read_dir()?.next().is_none(), "pins are left");
    lab.down()
}

/// Settings of a node that a lab needs and a cluster does not.
fn settings(node: &Node) -> Vec<String> {
    vec![
        format!("--source=dir:{}", container::MANIFESTS),
        format!("--cluster-cidr={}", balanced::CLUSTER_CIDR),
        format!("--cgroup-path={}", node.cgroup_root.display()),
    ]
}
