//! A lab with agents that follow a real control plane.

use std::{
    fmt::Debug,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::{
    client::Client,
    front::Front,
    kubelets::Kubelets,
    server::{ControlPlane, ControlPlaneSpec},
};
use crate::{AgentSource, Balanced, Lab, Pod, Topology, patience::patient};

/// The properties of a [`Cluster`].
#[derive(Clone, Debug)]
pub struct ClusterSpec {
    pub topology: Topology,
    pub control_plane: ControlPlaneSpec,
    /// More arguments for the agents.
    pub arguments: Vec<String>,
}

impl Default for ClusterSpec {
    /// Two nodes with a pod each for clients.
    fn default() -> Self {
        Self {
            topology: Topology {
                pods_per_node: 1,
                ..Topology::default()
            },
            control_plane: ControlPlaneSpec::default(),
            arguments: Vec::new(),
        }
    }
}

/// A lab with an agent on each node, which follow a real API server through a [`Front`].
pub struct Cluster {
    // The lab is dropped last, so that logs can be shown until then.
    pub kubelets: Kubelets,
    pub front: Front,
    pub control_plane: ControlPlane,
    pub ground: Balanced,
}

/// How long the cluster may take for anything. Its controllers give up waiting after five minutes.
const DEADLINE: Duration = Duration::from_secs(400);

impl Cluster {
    /// Builds a lab, and starts a control plane and agents in it.
    ///
    /// # Errors
    /// If any of that does not get ready in time.
    pub fn up(spec: ClusterSpec) -> Result<Self> {
        let mut cluster = Self::without_agents(spec)?;
        cluster.ground.start_agents()?;
        Ok(cluster)
    }

    /// The same with agents still to be started: [`Balanced::start_agents`].
    ///
    /// # Errors
    /// If the control plane does not get ready in time.
    pub fn without_agents(spec: ClusterSpec) -> Result<Self> {
        let lab = Lab::up(spec.topology)?;
        let control_plane = ControlPlane::start(&lab, spec.control_plane)?;
        let front = Front::start(&control_plane)?;
        let kubelets = Kubelets::new(control_plane.client().clone());
        kubelets.register_nodes(&lab)?;
        let kubeconfig = control_plane.agent_kubeconfig(front.address())?;
        let source = AgentSource::ApiServer { kubeconfig };
        let arguments: Vec<_> = spec.arguments.iter().map(String::as_str).collect();
        let ground = Balanced::without_agents(lab, source, &arguments);
        Ok(Self {
            kubelets,
            front,
            control_plane,
            ground,
        })
    }

    /// An administrator's access to the API server.
    pub fn client(&self) -> &Client {
        self.control_plane.client()
    }

    /// The lab.
    pub fn lab(&self) -> &Lab {
        &self.ground.lab
    }

    /// The lab's side of a pod that runs.
    pub fn pod(&self, name: &str) -> Option<&Pod> {
        self.kubelets.pod(name)
    }

    /// Lets pods live until `probe` is content; it says what it still waits for.
    ///
    /// # Errors
    /// If that takes too long, with `probe`'s last error, or if pods cannot live.
    pub fn until<T>(&mut self, mut probe: impl FnMut(&Self) -> Result<T>) -> Result<T> {
        let start = Instant::now();
        loop {
            self.kubelets.step(&self.ground.lab)?;
            let error = match probe(self) {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            ensure!(
                start.elapsed() < patient(DEADLINE),
                "not so after {DEADLINE:?}: {error:#}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Lets pods live for a time.
    ///
    /// # Errors
    /// If they cannot.
    pub fn live_for(&mut self, time: Duration) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < time {
            self.kubelets.step(&self.ground.lab)?;
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}
