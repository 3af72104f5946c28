#![forbid(unsafe_code)]
//! Connection admission: priority levels, seats and fair queues for new connections, after
//! [API Priority and Fairness](https://kubernetes.io/docs/concepts/cluster-administration/flow-control/)
//! (APF, KEP-1040), whose words are used throughout.
//!
//! Nothing in here reads a clock or does I/O: time comes in as a number, decisions come out as
//! values. A *seat* is one tracked connection.

pub mod level;
pub mod limits;

pub mod deadlines;
pub mod schema;

pub mod configuration;
pub mod objects;
pub mod suggested;

pub mod classify;

pub mod flow_hash;
pub mod shuffle;

pub mod allocation;
pub mod borrowing;
pub mod demand;
pub mod retry_after;
pub mod seat_seconds;

pub mod queueset;

pub mod controller;

pub mod simulate;
