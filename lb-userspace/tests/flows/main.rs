//! The flow tables' ageing and clean-up, on plain memory that threads use as programs do.

mod ageing;
mod beside_programs;
mod stale;
mod table;
mod tombs;
mod worker;
