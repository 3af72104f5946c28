//! A lab whose nodes run node-lb.

use std::{env, net::SocketAddr, path::PathBuf};

use anyhow::{Context, Result};

use crate::{Agent, AgentSpec, Lab, Node, Readiness, Topology};

/// The networks of all pods of a lab.
const CLUSTER_CIDR: &str = "10.244.0.0/16,fd00:10:244::/48";

/// A lab with an agent on each node.
#[derive(Debug)]
pub struct Balanced {
    // Dropped first: agents before the ground they stand on.
    pub agents: Vec<Agent>,
    pub lab: Lab,
}

impl Balanced {
    /// Builds a lab and starts agents with XDP in the driver.
    pub fn up(topology: Topology) -> Result<Self> {
        Self::with(topology, &["--xdp-mode=native"])
    }

    /// Builds a lab and starts agents with more arguments.
    pub fn with(topology: Topology, arguments: &[&str]) -> Result<Self> {
        let lab = Lab::up(topology)?;
        let agents = lab
            .nodes()
            .iter()
            .map(|node| Agent::start(node, spec(node, arguments)?))
            .collect::<Result<_>>()?;
        Ok(Self { agents, lab })
    }
}

/// How to run node-lb on a node of a lab.
pub fn spec(node: &Node, arguments: &[&str]) -> Result<AgentSpec> {
    let source = format!("dir:{}", node.manifests().display());
    let cgroup = node.cgroup_root.display().to_string();
    let pins = node.pin_root.display().to_string();
    let own = [
        "agent",
        "--source",
        &source,
        "--node",
        node.name(),
        "--cgroup-path",
        &cgroup,
        "--bpf-root",
        &pins,
        "--cluster-cidr",
        CLUSTER_CIDR,
    ];
    let ready = Readiness::Http {
        address: SocketAddr::from(([127, 0, 0, 1], 10256)),
        path: "/healthz".to_owned(),
    };
    let arguments = own.iter().chain(arguments).map(ToString::to_string);
    Ok(AgentSpec::new(node_lb()?, arguments, ready))
}

/// Where `node-lb` is: `$NODE_LB`, else beside the running program or one directory above it.
pub fn node_lb() -> Result<PathBuf> {
    if let Some(path) = env::var_os("NODE_LB") {
        return Ok(path.into());
    }
    let program = env::current_exe().context("cannot tell which program this is")?;
    let found = program
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("node-lb"));
    found
        .into_iter()
        .find(|path| path.is_file())
        .with_context(|| {
            format!(
                "node-lb is not beside {}: build it or set NODE_LB",
                program.display()
            )
        })
}
