//! The flow table's protocol under a model checker: packets on several CPUs, the sweeper and the
//! clock run in every order of their accesses to shared memory, with at most
//! [`checker::preemptions`] interruptions of threads.
//!
//! The code that runs is the pipeline itself and the agent's sweeper, on memory of this program.
//! [loom] switches between threads before each access that [`lb_common::model`] or
//! [`sweeping::View`] reports; other accesses to fields happen together with the reported access
//! before them. All accesses take effect in that order, so reordering by processors is not covered.
//! While a scenario runs, no record may change hands before the programs that have seen it in use
//! have ended. At the end the [`invariants`] must hold. [`mutations`] break the protocol, and the
//! checker must notice.
//!
//! [loom]: https://docs.rs/loom

mod checker;
mod invariants;
mod mutations;
mod packets;
mod scenarios;
mod seats;
mod sweeping;
mod tables;
mod world;
