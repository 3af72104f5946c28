//! The node-lb agent, in reading order.

pub mod cli;
pub mod config;
pub mod model;
pub mod plan;
pub mod source;
pub mod store;
