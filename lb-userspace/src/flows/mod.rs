//! The flow tables as user space sees them: ageing, clean-up, and reports.
//!
//! Programs open flows, record what they see, and end flows that are in the way of new ones.
//! Everything else is done here, through shared memory and without a system call per flow: a
//! [`FlowSweeper`] walks over the tables every second or so. [`sweep`] describes the steps, and why
//! they are safe while programs run.

mod ageing;
pub mod arrivals;
mod deadlines;
mod diag;
mod drift;
pub mod holders;
mod limits;
mod loads;
mod parties;
mod pass;
mod pressure;
mod queues;
pub mod records;
mod report;
mod reset;
pub mod seats;
pub mod sockets;
pub mod stale;
pub mod stats;
pub mod sweep;
mod worker;

pub use ageing::{timeouts, under_pressure};
pub use arrivals::Arrivals;
pub use limits::{Change, Limit, Limits, Met};
pub use loads::Loads;
pub use parties::Parties;
pub use queues::Queues;
pub use records::{Connection, Records};
pub(crate) use records::{socket_addr, which};
pub use report::FlowReport;
pub use reset::Reset;
pub use seats::SeatTable;
pub use sockets::UdpSockets;
pub use stale::Stale;
pub use stats::Stats;
pub use worker::{Counters, FlowSweeper, FlowTables, Kernel, SeatLister, ServiceCounters, Sockets};
