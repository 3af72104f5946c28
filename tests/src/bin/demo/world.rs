//! The lab of the demo, with the Service `default/web`. Its pods are created and deleted by files
//! or by a real control plane.

use anyhow::Result;
use lb_tests::Balanced;

use super::screen::Screen;

/// The Service's addresses and ports, the same wherever it comes from.
pub const CLUSTER_IPS: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
/// See [`CLUSTER_IPS`].
pub const LOAD_BALANCER_IPS: [&str; 2] = ["172.30.78.10", "fd00:172:30:78::10"];
/// See [`CLUSTER_IPS`].
pub const NODE_PORT: u16 = 30080;
/// See [`CLUSTER_IPS`].
pub const HEALTH_CHECK_NODE_PORT: u16 = 32080;

/// A lab with agents, and the Service's pods: three at first, two of them on node-1.
pub trait World {
    fn ground(&self) -> &Balanced;

    fn ground_mut(&mut self) -> &mut Balanced;

    /// The pods that are not terminating.
    fn pods(&self) -> Result<Vec<Replica>>;

    /// Replaces each pod by a new one, and waits until the old ones are gone.
    fn roll(&mut self, screen: &Screen) -> Result<()>;

    /// Terminates all pods of node-1. They serve on until [`World::replace`].
    fn terminate(&mut self, screen: &Screen) -> Result<()>;

    /// Makes new pods on node-1 and, once they are ready, lets the terminating ones end.
    fn replace(&mut self, screen: &Screen) -> Result<()>;

    /// Arguments with which node-lb reads the objects that the agents follow.
    fn source(&self) -> &[String];

    /// These arguments in a form for readers.
    fn source_shown(&self) -> &'static str;

    /// Removes all of it, or leaves it up and says how to look around.
    fn end(self: Box<Self>, keep: bool) -> Result<()>;
}

/// A pod of the Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Replica {
    pub name: String,
    pub node: String,
}
