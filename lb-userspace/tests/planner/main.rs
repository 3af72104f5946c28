//! The planner against kube-proxy's behaviour vectors and against its own invariants.

#[path = "../common/mod.rs"]
mod common;

mod categorize;
mod flows;
mod handling;
mod properties;
