//! What the agent tells load balancers and the kubelet about this node.
//!
//! [`service`] answers whether a Service has endpoints here, [`proxy`] whether the agent keeps
//! the kernel's state up with the cluster's.

pub mod addresses;
pub mod clock;
pub mod proxy;
pub mod service;
