//! Packets for tests: built from what they mean, compared so that a difference names its field.

mod build;
mod checksum;
mod diff;

pub use build::{Body, Mac, Packet, tcp};
pub use checksum::{internet_checksum, pseudo_header_sum};
pub use diff::difference;
