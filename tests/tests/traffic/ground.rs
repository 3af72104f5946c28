//! The lab of these tests: agents and servers, and Services with every kind of frontend.

use std::{
    cell::Cell,
    net::{IpAddr, SocketAddr},
    ops::Deref,
    time::Duration,
};

use anyhow::Result;
use lb_tests::{
    Agent, Balanced, Endpoint, EndpointSlices, Family, Lab, Manifests, Node, PATIENCE, PodNetwork,
    Request, Serve, Service, Topology, eventually,
    lab::{Addresses, Host, address::PODS},
    patient,
    traffic::RunningServer,
};
use node_lb::agent::status::Status;
use serde_json::json;

/// The port that Services have.
pub const PORT: u16 = 80;
/// The port of servers that speak lines, over TCP and UDP.
pub const LINES: u16 = 9090;
/// The port of HTTP servers.
pub const HTTP: u16 = 8080;

/// A lab with an agent on each node, and a server on each pod with the pod's name.
pub struct Ground {
    // Dropped first.
    servers: Vec<RunningServer>,
    balanced: Balanced,
    marks: Cell<u16>,
}

impl Ground {
    /// The default lab, with XDP in the driver.
    pub fn new() -> Result<Self> {
        Self::with(Topology::default(), &["--xdp-mode=native"])
    }

    /// A lab of this shape, with these arguments for the agents.
    pub fn with(topology: Topology, arguments: &[&str]) -> Result<Self> {
        Self::prepared(topology, arguments, |_| Ok(()))
    }

    /// Like [`Ground::with`]. `prepare` writes what the agents find when they start.
    pub fn prepared(
        topology: Topology,
        arguments: &[&str],
        prepare: impl FnOnce(&Lab) -> Result<()>,
    ) -> Result<Self> {
        let lab = Lab::up(topology)?;
        if topology.firewall {
            open_firewalls(&lab)?;
        }
        let servers = lab
            .pods()
            .iter()
            .map(|pod| {
                Serve::new(pod.name())
                    .http(HTTP)
                    .tcp(LINES)
                    .udp(LINES)
                    .start(pod)
            })
            .collect::<Result<_>>()?;
        prepare(&lab)?;
        Ok(Self {
            servers,
            balanced: Balanced::in_lab(lab, arguments)?,
            marks: Cell::new(0),
        })
    }

    /// The lab.
    pub fn lab(&self) -> &Lab {
        &self.balanced.lab
    }

    /// The lab with its agents.
    pub fn balanced(&self) -> &Balanced {
        &self.balanced
    }

    /// Says that the test changes what agents have written or attached.
    pub fn expect_differences(&mut self) {
        let agents = self.balanced.agents.iter_mut();
        agents.for_each(Agent::expect_differences);
    }

    /// What the agent on node number `index` says of itself.
    pub fn status(&self, index: u8) -> Result<Status> {
        self.balanced.status(index.into())
    }

    /// Kills the agents and starts others in their place.
    pub fn restart_agents(&mut self) -> Result<()> {
        self.balanced.kill_agents()?;
        self.balanced.start_agents()
    }

    /// Stops the agents. What they put into the kernel stays.
    pub fn without_agents(self) -> Result<WithoutAgents> {
        let Balanced { agents, lab, .. } = self.balanced;
        for agent in agents {
            agent.stop(PATIENCE)?;
        }
        Ok(WithoutAgents {
            _servers: self.servers,
            lab,
        })
    }

    /// A Service for TCP and UDP lines with every frontend, and its endpoints.
    pub fn publish(
        &self,
        vips: Vips,
        adapt: impl FnOnce(Service<'_>) -> Service<'_>,
        endpoints: impl IntoIterator<Item = Endpoint>,
    ) -> Result<()> {
        adapt(vips.service(self.lab().manifests())).apply()?;
        self.endpoints(vips, endpoints)
    }

    /// Replaces a published Service's endpoints.
    pub fn endpoints(
        &self,
        vips: Vips,
        endpoints: impl IntoIterator<Item = Endpoint>,
    ) -> Result<()> {
        Self::slices(self.lab(), vips).with_all(endpoints).apply()
    }

    /// The slices of a Service, without endpoints yet.
    pub fn slices(lab: &Lab, vips: Vips) -> EndpointSlices<'_> {
        lab.endpoints(&vips.name())
            .tcp("lines", LINES)
            .udp("datagrams", LINES)
            .tcp("http", HTTP)
    }

    /// Waits until all agents have programmed what has been written so far.
    pub fn settle(&self) -> Result<()> {
        // Agents read files in the order of their changes, so when this Service works, the others
        // do too.
        let mark = self.marks.replace(self.marks.get() + 1);
        let port = 1000 + mark;
        let lab = self.lab();
        let service = lab.service("mark").cluster_ip("10.96.255.1");
        service.tcp("lines", port, LINES).apply()?;
        let slices = lab.endpoints("mark").tcp("lines", LINES);
        slices.with(Endpoint::ready(&lab.pods()[0])).apply()?;
        for node in lab.nodes() {
            let pod = lab.pods().iter().rev().find(|pod| pod.node == node.name());
            let request = Request::tcp(SocketAddr::new([10, 96, 255, 1].into(), port));
            let request = request.deadline(patient(Duration::from_millis(500)));
            eventually(|| {
                let reply = request.send(pod.expect("nodes have pods"));
                reply.map_err(|failure| format!("{node} does not program: {failure}"))
            });
        }
        Ok(())
    }
}

/// What is left of a [`Ground`] after its agents have ended.
pub struct WithoutAgents {
    // Dropped first.
    _servers: Vec<RunningServer>,
    lab: Lab,
}

impl Deref for WithoutAgents {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}

/// The addresses of a Service with every kind of frontend: number `N`, up to 99.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vips(pub u8);

impl Vips {
    /// The Service's name.
    pub fn name(self) -> String {
        format!("service-{}", self.0)
    }

    /// The Service: lines over TCP and UDP on [`PORT`], HTTP on the port after it.
    pub fn service(self, manifests: &Manifests) -> Service<'_> {
        let text = |frontend, family| self.ip(frontend, family).to_string();
        let [v4, v6] = Family::BOTH;
        manifests
            .service(&self.name())
            .cluster_ip(&text(Frontend::ClusterIp, v4))
            .cluster_ip(&text(Frontend::ClusterIp, v6))
            .load_balancer_ip(&text(Frontend::LoadBalancerIp, v4))
            .load_balancer_ip(&text(Frontend::LoadBalancerIp, v6))
            .set(
                "externalIPs",
                json!([
                    text(Frontend::ExternalIp, v4),
                    text(Frontend::ExternalIp, v6)
                ]),
            )
            .tcp("lines", PORT, LINES)
            .node_port(self.node_port())
            .udp("datagrams", PORT, LINES)
            .node_port(self.node_port())
            .tcp("http", PORT + 1, HTTP)
    }

    /// The Service's address by this frontend; for node ports, on `node`.
    pub fn at(self, frontend: Frontend, family: Family, node: &Node) -> SocketAddr {
        match frontend {
            Frontend::NodePort => node.at(family, self.node_port()),
            _ => SocketAddr::new(self.ip(frontend, family), PORT),
        }
    }

    /// The Service's ClusterIP with a port.
    pub fn cluster(self, family: Family, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip(Frontend::ClusterIp, family), port)
    }

    /// The node port, of the same number over TCP and UDP.
    pub fn node_port(self) -> u16 {
        30000 + u16::from(self.0)
    }

    fn ip(self, frontend: Frontend, family: Family) -> IpAddr {
        let n = self.0;
        let (v4, v6) = match frontend {
            Frontend::ClusterIp => (format!("10.96.0.{n}"), format!("fd00:10:96::{n}")),
            Frontend::LoadBalancerIp => (format!("172.30.78.{n}"), format!("fd00:172:30:78::{n}")),
            Frontend::ExternalIp => (
                format!("172.30.78.{}", 100 + n),
                format!("fd00:172:30:78::1:{n}"),
            ),
            Frontend::NodePort => unreachable!("node ports have the nodes' addresses"),
        };
        let text = match family {
            Family::V4 => v4,
            Family::V6 => v6,
        };
        text.parse().expect("spelled above")
    }
}

/// The kinds of addresses by which a Service is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frontend {
    ClusterIp,
    NodePort,
    LoadBalancerIp,
    ExternalIp,
}

impl Frontend {
    /// All kinds.
    pub const ALL: [Self; 4] = [
        Self::ClusterIp,
        Self::NodePort,
        Self::LoadBalancerIp,
        Self::ExternalIp,
    ];
}

/// A topology in which nodes have every foreign rule that node-lb may meet.
pub fn harsh(pod_network: PodNetwork) -> Topology {
    Topology {
        pod_network,
        strict_rp_filter: true,
        firewall: true,
        masquerade: true,
        ..Topology::default()
    }
}

/// Lets the nodes' firewalls pass other nodes' traffic to the pods, and pods' traffic out of the
/// cluster, as a CNI does.
fn open_firewalls(lab: &Lab) -> Result<()> {
    for node in lab.nodes() {
        let (own, all) = (node.pod_networks, PODS);
        let mut rules = format!(
            "add rule inet firewall forward index 1 ip saddr {} ip daddr != {} accept
            add rule inet firewall forward index 1 ip6 saddr {} ip6 daddr != {} accept\n",
            own.v4, all.v4, own.v6, all.v6,
        );
        for peer in lab.nodes().iter().filter(|peer| peer.index != node.index) {
            let pods = peer.pod_networks;
            let Addresses { v4, v6 } = peer.addresses();
            rules += &format!(
                "add rule inet firewall forward index 1 ip saddr {{ {v4}, {} }} ip daddr {} accept
                add rule inet firewall forward index 1 ip6 saddr {{ {v6}, {} }} ip6 daddr {} accept\n",
                pods.v4, own.v4, pods.v6, own.v6,
            );
        }
        node.feed("nft -f -", &rules)?;
    }
    Ok(())
}

/// The names of the servers that answer some requests, in order and without repetition.
pub fn servers(host: impl AsRef<Host>, request: Request, times: usize) -> Vec<String> {
    let host = host.as_ref();
    let mut names: Vec<_> = (0..times)
        .map(|_| {
            request
                .send(host)
                .unwrap_or_else(|e| panic!("{host}: {e}"))
                .server
        })
        .collect();
    names.sort();
    names.dedup();
    names
}
