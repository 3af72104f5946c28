//! What an attacker sends: floods and forged segments, as frames from a host's device, and datagrams of
//! many sockets.
//!
//! Everything stays in a lab. Its router drops what is sent to the sources of floods
//! ([`SPOOFED`](crate::lab::address::SPOOFED)), so answers to them reach no host.

mod flood;
mod forged;
mod sockets;
mod wire;

pub use self::flood::{Flood, FloodKind, FloodReport, RunningFlood};
pub use self::forged::Forged;
pub use self::sockets::Sockets;
pub use self::wire::Wire;
