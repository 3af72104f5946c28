//! The node-lb agent, in reading order.

pub mod health;
pub mod http;
pub mod metrics;
pub mod model;
