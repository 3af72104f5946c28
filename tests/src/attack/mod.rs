//! What an attacker sends: floods and forged segments, as frames from a host's device.
//!
//! Everything stays in a lab. Its router throws away what is sent to the addresses that floods come
//! from ([`SPOOFED`](crate::lab::address::SPOOFED)), so that answers to them reach nobody.

mod flood;
mod forged;
mod wire;

pub use self::flood::{Flood, FloodKind, FloodReport, RunningFlood};
pub use self::forged::Forged;
pub use self::wire::Wire;
