//! Tests of ageing and clean-up of the flow tables, in plain memory that threads use as programs
//! do.

mod ageing;
mod arrivals;
mod beside_programs;
mod deadlines;
mod parties;
mod seats;
mod stale;
mod table;
mod tombs;
mod worker;
