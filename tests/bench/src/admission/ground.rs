//! The lab: clients, a node with a balancer, and a pod with a limited capacity.
//!
//! ```text
//! quiet client ──── router ──┬── node-1 ──── pod-1-1
//!                            ├── noisy-1     serves 100 connections
//!                            ├── …           at a time
//!                            └── noisy-4
//! ```

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use lb_tests::{
    Agent, AgentSource, Balanced, Endpoint, Family, Host, Lab, Node, Pod, Serve, Topology,
    traffic::{Capacity, RunningServer},
};
use node_lb::config::XdpMode;

use super::{CAPACITY, SetUp, measure::MOST_NOISY};
use crate::cluster::{agent::xdp_flag, services::TARGET_PORT};

/// The port of the node that clients connect to, with every set-up.
pub const PORT: u16 = 30_080;
/// The name of the Service.
pub const SERVICE: &str = "shared";

/// The endpoint's backlog: as much as Linux allows by default, which servers in Go use.
const BACKLOG: u32 = 4096;
/// The number of the first noisy host on the node network.
const FIRST_NOISY: u8 = 2;

/// A lab with one of the set-ups.
pub struct Ground {
    // Dropped first.
    haproxy: Option<Agent>,
    server: RunningServer,
    balanced: Balanced,
    noisy: Vec<Host>,
}

impl Ground {
    /// Builds the lab, starts the endpoint, and sets up what is between. `xdp_mode` is for node-lb.
    ///
    /// # Errors
    ///
    /// Without root, or if something does not start.
    pub fn build(set_up: SetUp, xdp_mode: XdpMode) -> Result<Self> {
        let lab = Lab::up(Topology {
            nodes: 1,
            pods_per_node: 1,
            ..Topology::default()
        })?;
        let numbers = FIRST_NOISY..FIRST_NOISY + MOST_NOISY;
        let noisy = numbers.zip(1..);
        let noisy = noisy.map(|(number, name)| lab.add_host(&format!("noisy-{name}"), number));
        let noisy = noisy.collect::<Result<Vec<_>>>()?;
        // HAProxy opens connections from the node, and its documentation asks for the same.
        for host in noisy.iter().chain([lab.node(1).as_ref()]) {
            host.allow_many_connections()?;
        }
        let server = serve(pod(&lab))?;
        write_manifests(&lab)?;
        let mut balanced = Balanced::without_agents(lab, AgentSource::Manifests, &[]);
        let haproxy = set_up.start(&mut balanced, &xdp_flag(xdp_mode)?)?;
        Ok(Self {
            haproxy,
            server,
            balanced,
            noisy,
        })
    }

    /// Where the quiet client runs.
    pub fn quiet(&self) -> &Host {
        self.balanced.lab.client()
    }

    /// Where noisy clients run, each at an address of its own.
    pub fn noisy(&self) -> &[Host] {
        &self.noisy
    }

    /// The node with the balancer.
    pub fn node(&self) -> &Node {
        self.balanced.lab.node(1)
    }

    /// What clients connect to.
    pub fn target(&self) -> SocketAddr {
        self.node().at(Family::V4, PORT)
    }

    /// Removes the lab.
    ///
    /// # Errors
    ///
    /// If something of it remains.
    pub fn down(self) -> Result<()> {
        let Balanced { agents, lab, .. } = self.balanced;
        drop((self.haproxy, self.server, agents));
        lab.down()
    }
}

/// The pod that serves.
fn pod(lab: &Lab) -> &Pod {
    lab.pod("pod-1-1")
}

/// The addresses of the node and of the endpoint.
pub fn addresses(lab: &Lab) -> [IpAddr; 2] {
    [lab.node(1).ip(Family::V4), pod(lab).ip(Family::V4)]
}

fn serve(pod: &Pod) -> Result<RunningServer> {
    pod.set_sysctl("net/core/somaxconn", &BACKLOG.to_string())?;
    let capacity = Capacity {
        served: CAPACITY as usize,
        backlog: BACKLOG,
    };
    let server = Serve::new(pod.name()).tcp(TARGET_PORT);
    server.capacity(capacity).start(pod)
}

/// What node-lb reads. The endpoint sees the clients' own addresses (`externalTrafficPolicy: Local`).
fn write_manifests(lab: &Lab) -> Result<()> {
    let service = lab.service(SERVICE).cluster_ip("10.96.0.10");
    let service = service.tcp("tcp", 80, TARGET_PORT).node_port(PORT);
    service.external_local().apply()?;
    let endpoints = lab.endpoints(SERVICE).tcp("tcp", TARGET_PORT);
    endpoints.with(Endpoint::ready(pod(lab))).apply()
}
