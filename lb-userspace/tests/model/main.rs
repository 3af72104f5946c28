//! The flow table's protocol under a model checker: packets on several CPUs, the sweeper and the
//! clock, in every order of their accesses to what they share in which threads are not interrupted
//! more often than [`checker::preemptions`] says.
//!
//! What runs is the pipeline itself and the agent's sweeper, on memory of this program. [loom]
//! switches between them before each access that [`lb_common::model`] or [`sweeping::View`] tells
//! of; other accesses to fields come with the access before them. All take effect in that order, so
//! nothing is said here of what processors reorder. While a scenario runs, no record may change
//! hands before the programs have ended that have seen it in use; in the end [`invariants`] must
//! hold. [`mutations`] breaks the protocol, and must be noticed.
//!
//! [loom]: https://docs.rs/loom

mod checker;
mod invariants;
mod mutations;
mod packets;
mod scenarios;
mod sweeping;
mod tables;
mod world;
