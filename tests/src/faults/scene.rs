//! The lab in which faults are staged.

use std::{fs, net::SocketAddr};

use anyhow::{Context, Result};
use serde_json::json;

use crate::{
    Endpoint, Family, Host, Lab, Pod, Serve, Service, Topology,
    balanced::{self, Balanced},
    manifests::admission::{flow_schema, priority_level},
    traffic::RunningServer,
};

/// Where all pods listen.
pub const TARGET: u16 = 9090;
/// Where none does at first.
pub const NOBODY: u16 = 9191;
const PORT: u16 = 80;
/// The node port of Service number 0.
const NODE_PORTS: u16 = 30080;
/// So small that a lab can use them up.
const FLOWS: u32 = 2048;
const PORTS: &str = "--snat-ports=10000-10127";
const SEATS: &str = "--max-connections=60000";

/// Two nodes with two pods each, which all serve, an agent on each, and an attacker.
pub struct Scene {
    // Dropped first.
    _servers: Vec<RunningServer>,
    pub ground: Balanced,
    pub attacker: Host,
}

impl Scene {
    /// Builds it; it goes when it is dropped.
    ///
    /// # Errors
    /// If the machine cannot have a lab.
    pub fn up() -> Result<Self> {
        Self::with(FLOWS, &[])
    }

    /// The same with another size of flow tables and more arguments for agents.
    ///
    /// # Errors
    /// As [`Self::up`].
    pub fn with(flows: u32, arguments: &[&str]) -> Result<Self> {
        let lab = Lab::up(Topology::DEFAULT)?;
        let objects = lab.id().dir().join("admission.json");
        fs::write(&objects, admission().to_string())?;
        let objects = format!("--admission-objects={}", objects.display());
        let flows = format!("--flow-table-size={flows}");
        let own = ["--xdp-mode=native", "--admission=enforce"];
        let sizes = [SEATS, &objects, &flows, PORTS];
        let ground = Balanced::in_lab(lab, &[&own[..], &sizes, arguments].concat())?;
        let servers = ground.lab.pods().iter();
        let servers = servers.map(|pod| Serve::new(pod.name()).tcp(TARGET).udp(TARGET).start(pod));
        Ok(Self {
            _servers: servers.collect::<Result<_>>()?,
            attacker: ground.lab.add_host("attacker", 2)?,
            ground,
        })
    }

    /// A pod of the lab.
    pub fn pod(&self, name: &str) -> &Pod {
        self.ground.lab.pod(name)
    }

    /// Adds a Service with a ClusterIP and node ports, and waits until agents have it.
    pub fn service<'a>(
        &'a self,
        name: &str,
        number: u8,
        target: u16,
        pods: &[&Pod],
        says: impl FnOnce(Service<'a>) -> Service<'a>,
    ) -> Result<()> {
        let lab = &self.ground.lab;
        let node_port = node_port(number);
        self.ground.change_something(|| {
            let service = lab
                .service(name)
                .cluster_ip(&cluster_ip(number).ip().to_string());
            let service = service.tcp("lines", PORT, target).node_port(node_port);
            says(service.udp("datagrams", PORT, target).node_port(node_port)).apply()?;
            let slices = lab
                .endpoints(name)
                .tcp("lines", target)
                .udp("datagrams", target);
            slices
                .with_all(pods.iter().map(|pod| Endpoint::ready(pod)))
                .apply()
        })
    }

    /// What a command of a fault prints on node 1, whatever its exit status is.
    ///
    /// # Errors
    /// If it does not start.
    pub fn ask(&self, command: &str) -> Result<String> {
        let (lab, node) = (&self.ground.lab, self.ground.lab.node(1));
        let mut words = command.split_whitespace().skip(1);
        let subcommand = words.next().context("no subcommand")?;
        let mut asked = node.command(balanced::node_lb()?)?;
        asked.arg(subcommand);
        match subcommand {
            "explain" => {
                let source = format!("dir:{}", node.manifests().display());
                asked.args(["--source", &source, "--node", node.name()]);
                asked.args(["--cluster-cidr", balanced::CLUSTER_CIDR]);
            }
            _ => drop(asked.arg("--socket").arg(balanced::socket(node))),
        }
        let address = |host: &Host| host.ip(Family::V4).to_string();
        for word in words {
            let word = word.replace("CLIENT", &address(lab.client()));
            asked.arg(word.replace("NODE", &address(node)));
        }
        let output = asked
            .output()
            .with_context(|| format!("cannot run {command}"))?;
        let text = [output.stdout, output.stderr].concat();
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// The ClusterIP of Service number `number`, and its port.
pub fn cluster_ip(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 96, 1, number], PORT))
}

/// The node port of Service number `number`.
pub fn node_port(number: u8) -> u16 {
    NODE_PORTS + u16::from(number)
}

/// A level with hardly any seats, another one in which connections wait for them, and one with nearly all.
fn admission() -> serde_json::Value {
    let anyone = json!({ "kind": "Any" });
    let service = |name: &str| json!({ "namespaces": ["default"], "services": [name] });
    let mut queued = priority_level("queued", 1);
    queued["spec"]["limited"]["limitResponse"] = json!({
        "type": "Queue",
        "queuing": { "queues": 16, "handSize": 4, "queueLengthLimit": 50 },
    });
    let mut rest = flow_schema("rest", &anyone, &json!({ "namespaces": ["*"] }));
    // After the other one.
    rest["spec"]["matchingPrecedence"] = 2000.into();
    json!({
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            priority_level("small-level", 1),
            queued,
            priority_level("rest", 10_000),
            flow_schema("small-level", &anyone, &service("small-level")),
            flow_schema("queued", &anyone, &service("queued")),
            rest,
        ],
    })
}
