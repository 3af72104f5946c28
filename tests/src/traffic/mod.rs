//! Small real servers and clients that run on the hosts of a lab.

mod connection;
mod datagrams;
mod failure;
mod held;
mod job;
mod load;
mod loads;
mod request;
mod server;
mod tcp;
mod wire;

pub use self::failure::{Failure, FailureKind};
pub use self::held::Held;
pub use self::job::{Job, Running, allow_many_files, run_as_child};
pub use self::load::{Connect, Latencies, Load, LoadReport, RunningLoad};
pub use self::loads::{LoadReports, Loads};
pub use self::request::{Protocol, Reply, Request};
pub use self::server::{Capacity, Grace, RunningServer, Serve, Served};
pub use self::tcp::Numbers;
pub use self::wire::Answer;
