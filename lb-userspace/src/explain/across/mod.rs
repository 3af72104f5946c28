//! The whole way of a connection's first packet through the cluster: from its client to the node where
//! node-lb meets it, to each endpoint that may be chosen, and the way of the answer.
//!
//! There is one decision for each node that the packet comes to, by the same pipeline as for one node
//! ([`super::Question`]). [`Cluster`] has the objects, and [`walk`] goes from one node to the next.

mod cluster;
mod journey;
#[cfg(test)]
mod tests;
mod walk;

pub use self::{
    cluster::Cluster,
    journey::{Assumption, Journey, Leg, Place, PlaceKind, Problem, Step, Translator},
    walk::{Asked, walk},
};
