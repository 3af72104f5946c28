//! Tracing: what is noted of a packet on its way, and which packets are logged.
//!
//! Only programs that trace note anything ([`Tables::TRACES`](crate::tables::Tables::TRACES)); in
//! all others the compiler leaves this out. At the end of its way, a packet's [`Trail`] is compared
//! with the [`Filter`], and the steps of those that match are logged.

mod filter;
mod trail;

pub use self::{
    filter::{FILTER_SERVICES, Filter, Trace, family_number},
    trail::{Connection, Headers, Known, Place, Trail},
};
