//! The node-lb agent, in reading order.

pub mod datapath;
pub mod model;
pub mod plan;
pub mod source;
pub mod store;
