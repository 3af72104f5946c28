#![forbid(unsafe_code)]
//! The node-lb agent, in reading order.

pub mod source;
pub mod store;

pub mod plan;

pub mod map_writer;
pub mod memory;

pub mod conntrack_sysctls;
pub mod flows;

pub mod health;
pub mod http;
pub mod metrics;

pub mod events;

pub mod agent;
pub mod check;

pub mod cli;
pub mod config;
