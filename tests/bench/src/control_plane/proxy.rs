//! The proxies that are compared. Each is a process on the node, started as by its DaemonSet.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Result, ensure};
use lb_tests::{
    Agent, AgentSource, AgentSpec, Readiness,
    balanced::{self, CLUSTER_CIDR},
};
use xtask::ebpf::Places;

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
            Self::KubeProxy => kube_proxy(ground),
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
        let clean_up = match self {
            Self::NodeLb => format!(
                "{} cleanup --bpf-root {}",
                balanced::node_lb()?.display(),
                node.pin_root.display()
            ),
            Self::KubeProxy => format!("{} --cleanup", kube_proxy_program()?.display()),
        };
        node.run(&clean_up).map(drop)
    }
}

fn node_lb(ground: &Ground) -> Result<AgentSpec> {
    let control_plane = &ground.control_plane;
    let kubeconfig = control_plane.agent_kubeconfig(control_plane.address())?;
    let source = AgentSource::ApiServer { kubeconfig };
    balanced::spec_of(ground.node(), &source, &[])
}

fn kube_proxy(ground: &Ground) -> Result<AgentSpec> {
    let kubeconfig = ground.control_plane.admin_kubeconfig();
    let arguments = [
        "--proxy-mode=nftables".to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--hostname-override={}", ground.node().name()),
        format!("--cluster-cidr={CLUSTER_CIDR}"),
        // The limit belongs to the machine, not to the node.
        "--conntrack-max-per-core=0".to_owned(),
        "--conntrack-min=0".to_owned(),
    ];
    let ready = Readiness::Http {
        address: SocketAddr::from(([127, 0, 0, 1], 10256)),
        path: "/healthz".to_owned(),
    };
    Ok(AgentSpec::new(kube_proxy_program()?, arguments, ready))
}

fn kube_proxy_program() -> Result<PathBuf> {
    let program = Places::from_env().cluster_programs().join("kube-proxy");
    ensure!(
        program.is_file(),
        "{} is not there: `cargo xtask setup` builds it",
        program.display()
    );
    Ok(program)
}
