//! `node-lb admission record`: real connections, and what is recorded of them.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_admission::{schema::Ingress, simulate::recording::Recorded};
use lb_objects::Protocol;
use lb_tests::{Endpoint, Family, Held, PodNetwork, Request, Topology, balanced};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::ground::{Frontend, Ground, PORT, Vips};

/// Requests of each client.
const REQUESTS: usize = 5;
/// How long one connection is held open at least; another one until the end.
const HELD: Duration = Duration::from_secs(3);
/// By how much a recorded time may be wrong on a busy machine, where looks come late.
const TOLERANCE: Duration = Duration::from_millis(1500);

/// `node-lb admission record` on node 1, until it is interrupted.
struct Recording(Child);

impl Recording {
    fn start(ground: &Ground) -> Result<Self> {
        let node = ground.lab().node(1);
        let mut command = node.command(balanced::node_lb()?)?;
        command.args(["admission", "record", "--for=60s", "--bpf-root"]);
        command
            .arg(&node.pin_root)
            .arg("--socket")
            .arg(balanced::socket(node));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let told = child.stderr.as_mut().context("it is piped")?;
        let mut line = String::new();
        BufReader::new(told).read_line(&mut line)?;
        ensure!(line.starts_with("recording"), "it says {line:?}");
        Ok(Self(child))
    }

    fn end(self) -> Result<Vec<Recorded>> {
        kill(Pid::from_raw(self.0.id() as i32), Signal::SIGINT)?;
        let output = self.0.wait_with_output()?;
        ensure!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout)?;
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        ensure!(
            first.starts_with("# node-lb admission record: "),
            "{first:?}"
        );
        lines
            .map(|line| serde_json::from_str(line).with_context(|| line.to_owned()))
            .collect()
    }
}

/// Has connections come from everywhere, and looks for each in the recording.
fn everything_is_recorded(topology: Topology, arguments: &[&str]) -> Result<()> {
    let ground = Ground::with(topology, arguments)?;
    let (lab, vips) = (ground.lab(), Vips(1));
    let endpoint = [Endpoint::ready(lab.pod("pod-1-1"))];
    ground.publish(vips, |service| service, endpoint)?;
    ground.settle()?;
    let (client, pod, node) = (lab.client(), lab.pod("pod-1-2"), lab.node(2));
    let before = Held::open(client, vips.at(Frontend::NodePort, Family::V4, lab.node(1)))?;

    let recording = Recording::start(&ground)?;
    let mut held = Vec::new();
    let mut held_for = Vec::new();
    for family in Family::BOTH {
        let outside = vips.at(Frontend::NodePort, family, lab.node(1));
        let inside = vips.at(Frontend::ClusterIp, family, lab.node(1));
        let (one, since) = (Held::open(client, outside)?, Instant::now());
        held.push(Held::open(client, outside)?);
        for _ in 0..REQUESTS {
            Request::tcp(outside).send(client)?;
            Request::tcp(outside).send(node)?;
            Request::tcp(inside).send(pod)?;
            Request::udp(inside).send(pod)?;
        }
        thread::sleep(HELD);
        drop(one);
        held_for.push(since.elapsed());
    }
    thread::sleep(Duration::from_secs(1));
    let mut recorded = recording.end()?;
    drop((before, held));
    // By this Service, the lab has found out that agents are ready.
    recorded.retain(|one| one.service != "mark");

    for (family, held_for) in Family::BOTH.into_iter().zip(held_for) {
        let of = |host: &lb_tests::lab::Host, protocol| {
            let source = host.ip(family);
            let is_one = move |one: &&Recorded| one.source == source && one.protocol == protocol;
            recorded.iter().filter(is_one).collect::<Vec<_>>()
        };
        let outside = of(client, Protocol::Tcp);
        let was_there = usize::from(family == Family::V4);
        assert_eq!(
            outside.len(),
            REQUESTS + 2 + was_there,
            "{family:?}: {recorded:#?}"
        );
        let nodes = of(node.as_ref(), Protocol::Tcp);
        assert_eq!(nodes.len(), REQUESTS, "{family:?}: {recorded:#?}");
        let pods = of(pod.as_ref(), Protocol::Tcp);
        assert_eq!(pods.len(), REQUESTS, "{family:?}: {recorded:#?}");
        let datagrams = of(pod.as_ref(), Protocol::Udp);
        assert_eq!(datagrams.len(), REQUESTS, "{family:?}: {recorded:#?}");

        let ingress = |all: &[&Recorded], ingress| all.iter().all(|one| one.ingress == ingress);
        assert!(ingress(&outside, Ingress::External), "{outside:#?}");
        assert!(
            ingress(&nodes, Ingress::External),
            "another node: {nodes:#?}"
        );
        assert!(ingress(&pods, Ingress::Pod), "{pods:#?}");
        assert!(ingress(&datagrams, Ingress::Pod), "{datagrams:#?}");

        let is_right = |one: &&&Recorded| {
            let recorded = Duration::from_nanos(one.hold_ns);
            recorded.abs_diff(held_for) < TOLERANCE
        };
        let right = outside.iter().filter(is_right).count();
        assert!(right >= 1, "held for {held_for:?}: {outside:#?}");
        let first = recorded.iter().map(|one| one.t_ns).min();
        assert_eq!(first, Some(0), "one was there before");
    }
    assert!(recorded.is_sorted_by_key(|one| one.t_ns));
    for one in &recorded {
        let service = (&*one.namespace, &*one.service, one.port);
        assert_eq!(service, ("default", "service-1", PORT), "{one:?}");
    }
    Ok(())
}

#[test]
fn each_connection_is_recorded_once() -> Result<()> {
    everything_is_recorded(Topology::default(), &["--xdp-mode=native"])
}

#[test]
fn pods_are_told_by_the_bridge_that_they_are_on() -> Result<()> {
    let topology = Topology {
        pod_network: PodNetwork::Bridge,
        ..Topology::default()
    };
    let by_bridge = [
        "--detect-local-mode=BridgeInterface",
        "--pod-bridge-interface=cni0",
    ];
    everything_is_recorded(topology, &by_bridge)
}

#[test]
fn pods_are_told_by_their_devices() -> Result<()> {
    let by_name = [
        "--detect-local-mode=InterfaceNamePrefix",
        "--pod-interface-name-prefix=veth",
    ];
    everything_is_recorded(Topology::default(), &by_name)
}
