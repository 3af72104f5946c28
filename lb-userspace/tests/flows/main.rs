//! The flow tables' ageing and clean-up, on plain memory that threads use as programs do.

#[path = "../common/mod.rs"]
mod common;

mod ageing;
mod beside_programs;
mod stale;
mod table;
mod tombs;
mod worker;
