//! The planner against kube-proxy's behaviour vectors and against its own invariants.

mod categorize;
mod flows;
mod handling;
mod properties;
