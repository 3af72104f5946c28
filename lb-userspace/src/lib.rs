//! The node-lb agent, in reading order.

pub mod datapath;
pub mod model;
