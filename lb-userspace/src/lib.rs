//! The node-lb agent, in reading order.

pub mod model;
pub mod source;
pub mod store;

pub mod plan;

pub mod datapath;

pub mod cli;
pub mod config;
