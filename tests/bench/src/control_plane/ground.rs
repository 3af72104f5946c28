//! The lab for the proxies: a node with pods, and a control plane.

use anyhow::Result;
use lb_tests::{
    ControlPlane, Lab, Node, Pod, Serve, Topology,
    control_plane::{Client, ControlPlaneSpec, Kubelets},
    traffic::RunningServer,
};

use crate::cluster::services::TARGET_PORT;

/// One of two groups of pods. All endpoints of a Service are in one group; a change moves them to
/// the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    A,
    B,
}

impl Group {
    const ALL: [Self; 2] = [Self::A, Self::B];

    /// The name that the servers of its pods give.
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// A lab with one node and a control plane. Its pods are the two groups and a client.
pub struct Ground {
    // The lab is dropped last, because everything else uses it.
    pub control_plane: ControlPlane,
    _servers: Vec<RunningServer>,
    /// Pods in each group.
    group_size: u8,
    lab: Lab,
}

impl Ground {
    /// Builds the lab with so many pods in each group, starts servers and the control plane, and
    /// registers the node.
    ///
    /// # Errors
    ///
    /// Without root, or if the control plane does not get ready.
    pub fn build(group_size: u8) -> Result<Self> {
        let lab = Lab::up(Topology {
            nodes: 1,
            pods_per_node: Group::ALL.len() as u8 * group_size + 1,
            ..Topology::default()
        })?;
        let mut servers = Vec::new();
        for group in Group::ALL {
            for pod in pods(&lab, group, group_size) {
                let server = Serve::new(group.name()).tcp(TARGET_PORT);
                servers.push(server.start(pod)?);
            }
        }
        let control_plane = ControlPlane::start(&lab, ControlPlaneSpec::default())?;
        Kubelets::new(control_plane.client().clone()).register_nodes(&lab)?;
        Ok(Self {
            control_plane,
            _servers: servers,
            group_size,
            lab,
        })
    }

    /// An administrator's access to the API server.
    pub fn api(&self) -> &Client {
        self.control_plane.client()
    }

    /// The node that the proxies run on.
    pub fn node(&self) -> &Node {
        self.lab.node(1)
    }

    /// The pods of a group.
    pub fn pods(&self, group: Group) -> &[Pod] {
        pods(&self.lab, group, self.group_size)
    }

    /// The pod that connects to Services.
    pub fn client(&self) -> &Pod {
        &self.lab.pods()[Group::ALL.len() * usize::from(self.group_size)]
    }

    /// Removes everything.
    ///
    /// # Errors
    ///
    /// If something of it remains.
    pub fn down(self) -> Result<()> {
        drop(self.control_plane);
        self.lab.down()
    }
}

fn pods(lab: &Lab, group: Group, size: u8) -> &[Pod] {
    let size = usize::from(size);
    &lab.pods()[group as usize * size..][..size]
}
