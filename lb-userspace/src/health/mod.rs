//! What the agent tells load balancers and the kubelet about this node.
//!
//! [`service`] answers whether a Service has endpoints on this node, [`proxy`] whether the agent
//! keeps the kernel up to date with the cluster, [`readiness`] what the agent still waits for.

pub mod addresses;
pub mod clock;
pub mod initialization;
pub mod proxy;
pub mod readiness;
pub mod service;
