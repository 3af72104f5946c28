//! The real kube-proxy, run on a node as its DaemonSet would.

use std::net::SocketAddr;

use anyhow::Result;

use super::server::ControlPlane;
use crate::{AgentSpec, Node, Readiness, balanced::CLUSTER_CIDR, lab::daemon};

/// What kube-proxy writes its rules with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyMode {
    Iptables,
    Nftables,
}

/// The ports on which a service proxy, kube-proxy or node-lb, answers probes and scrapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyPorts {
    pub healthz: u16,
    pub metrics: u16,
}

impl ProxyMode {
    /// As for `--proxy-mode`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }
}

impl ProxyPorts {
    /// Those that both proxies have unless told otherwise.
    pub const USUAL: Self = Self {
        healthz: 10256,
        metrics: 10249,
    };

    /// Those of `docs/migration.md`, for the proxy that is started beside the other.
    pub const BESIDE: Self = Self {
        healthz: 10266,
        metrics: 10259,
    };

    /// The flags that say so, which both proxies have.
    pub fn arguments(self) -> [String; 2] {
        [
            format!("--healthz-bind-address=0.0.0.0:{}", self.healthz),
            format!("--metrics-bind-address=127.0.0.1:{}", self.metrics),
        ]
    }
}

/// How to run kube-proxy on a node. It is ready when it has written its rules.
///
/// # Errors
/// If it has not been built.
pub fn spec(
    control_plane: &ControlPlane,
    node: &Node,
    mode: ProxyMode,
    ports: ProxyPorts,
) -> Result<AgentSpec> {
    let kubeconfig = control_plane.admin_kubeconfig();
    let own = [
        format!("--proxy-mode={}", mode.name()),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--hostname-override={}", node.name()),
        format!("--cluster-cidr={CLUSTER_CIDR}"),
        // The limit is the machine's, not the node's.
        "--conntrack-max-per-core=0".to_owned(),
        "--conntrack-min=0".to_owned(),
    ];
    let ready = Readiness::Http {
        address: SocketAddr::from(([127, 0, 0, 1], ports.healthz)),
        path: "/healthz".to_owned(),
    };
    let arguments = own.into_iter().chain(ports.arguments());
    let spec = AgentSpec::new(daemon::program("kube-proxy")?, arguments, ready);
    Ok(spec.log("kube-proxy.log"))
}

/// Takes away the rules that a kube-proxy which has ended has left on a node.
///
/// # Errors
/// If kube-proxy cannot.
pub fn clean_up(node: &Node) -> Result<()> {
    let program = daemon::program("kube-proxy")?;
    let line = format!("{} --cleanup", program.display());
    node.run(&line).map(drop)
}
