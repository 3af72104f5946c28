//! The flow tables seen from user space: ageing, clean-up, and what there is to see of them.
//!
//! Programs open flows, note what they see, and end those that are in the way of new ones. All else
//! is done here, through shared memory and without a system call per flow: a [`FlowSweeper`] walks
//! over the tables every second or so. What the steps are and why they are safe beside running
//! programs says [`sweep`].

mod ageing;
mod diag;
mod limits;
mod pass;
pub mod records;
mod report;
pub mod sockets;
pub mod stale;
pub mod stats;
pub mod sweep;
mod worker;

pub use ageing::{timeouts, under_pressure};
pub use limits::{Change, Limit, Limits, Met};
pub use records::{Connection, Records};
pub use report::FlowReport;
pub use sockets::UdpSockets;
pub use stale::Stale;
pub use stats::Stats;
pub use worker::{Counters, FlowSweeper, FlowTables, Kernel, ServiceCounters};
