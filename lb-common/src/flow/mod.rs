//! Flows: one record per direction of a connection, in node-lb's own table.
//!
//! In reading order: what a record holds ([`Flow`]), how it changes hands ([`record`]), where it
//! lies ([`slots`]) and is found ([`table`]), where its packets leave ([`hop`]), how far its
//! connection has come ([`stage`]), what a TCP segment may say about that ([`tcp`]), when it makes
//! room for another ([`end`]), how a new flow gets one ([`claim`]), how many there may be
//! ([`limit`]), also of one client ([`party`]), where they wait ([`queue`]), where one counts ([`place`]), which
//! ones do ([`seats`]), also after their end ([`linger`]), at which endpoint ([`load`]) and for how long ([`deadline`]), how long endpoints take to
//! answer ([`latency`]), what becomes of the records of other versions ([`foreign`]), and how flows
//! get into a table of another size ([`resize`]). [`steps`] ties these together where there is no verifier.

pub mod claim;
pub mod deadline;
pub mod end;
mod entry;
pub mod foreign;
pub mod hop;
pub mod latency;
pub mod limit;
pub mod linger;
pub mod load;
pub mod party;
pub mod place;
pub mod queue;
pub mod record;
pub mod resize;
pub mod seats;
pub mod slots;
pub mod stage;
pub mod steps;
pub mod table;
pub mod tcp;

pub use deadline::Deadline;
pub use entry::{Flow, Rewrite, SERVICE_BITS, flow_flag, tag};
pub use hop::{Ethernet, Hop};
pub use limit::Seats;
pub use record::Record;
pub use stage::{Stage, Timeouts};
