//! What the agent tells load balancers and the kubelet about this node.
//!
//! [`service`] answers whether a Service has endpoints here, [`proxy`] whether the agent keeps
//! the kernel's state up with the cluster's, [`readiness`] what it still waits for.

pub mod addresses;
pub mod clock;
pub mod initialization;
pub mod proxy;
pub mod readiness;
pub mod service;
