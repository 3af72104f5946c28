//! What clients of a Service see, wherever they are and whatever the Service is: real sockets in a
//! lab with node-lb on its nodes. Expectations follow kube-proxy.

mod access;
mod admission;
mod affinity;
mod associations;
mod balance;
mod foreign_rules;
mod ground;
mod hairpin;
mod latency;
mod matrix;
mod operation;
mod recording;
mod segments;
mod singly;
mod sizes;
mod slow_start;
mod socket_limits;
mod sockets;
mod unknown;
mod ways;
mod weights;
