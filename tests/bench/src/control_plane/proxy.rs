//! The proxies that are compared. Each is a process on the node, started as by its DaemonSet.

use std::time::Duration;

use anyhow::Result;
use lb_tests::{
    Agent, AgentSource, AgentSpec, balanced,
    control_plane::{ProxyMode, ProxyPorts, kube_proxy},
};

use super::ground::Ground;

/// How long a proxy may take to end.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// A proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proxy {
    NodeLb,
    /// In nftables mode.
    KubeProxy,
}

impl Proxy {
    /// Both.
    pub const ALL: [Self; 2] = [Self::NodeLb, Self::KubeProxy];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::NodeLb => "node-lb",
            Self::KubeProxy => "kube-proxy",
        }
    }

    /// How to start it.
    ///
    /// # Errors
    ///
    /// If its program is missing, or it gets no access to the API server.
    pub fn spec(self, ground: &Ground) -> Result<AgentSpec> {
        match self {
            Self::NodeLb => node_lb(ground),
            Self::KubeProxy => kube_proxy::spec(
                &ground.control_plane,
                ground.node(),
                ProxyMode::Nftables,
                ProxyPorts::USUAL,
            ),
        }
    }

    /// Stops it, and removes from the kernel what it leaves behind.
    ///
    /// # Errors
    ///
    /// If it does not end, or something remains.
    pub fn remove(self, agent: Agent, ground: &Ground) -> Result<()> {
        agent.stop(STOP_DEADLINE)?;
        let node = ground.node();
        match self {
            Self::NodeLb => balanced::clean_up(node),
            Self::KubeProxy => kube_proxy::clean_up(node),
        }
    }
}

fn node_lb(ground: &Ground) -> Result<AgentSpec> {
    let control_plane = &ground.control_plane;
    let kubeconfig = control_plane.agent_kubeconfig(control_plane.address())?;
    let source = AgentSource::ApiServer { kubeconfig };
    balanced::spec_of(ground.node(), &source, &[])
}
