#![forbid(unsafe_code)]
//! Connection admission: priority levels, seats and fair queues for new connections, modelled on
//! [API Priority and
//! Fairness](https://kubernetes.io/docs/concepts/cluster-administration/flow-control/) (APF,
//! KEP-1040), whose words are used throughout.
//!
//! Nothing in this crate reads a clock or does I/O: times come in as numbers, decisions are
//! returned as values. A *seat* is one tracked connection.
//!
//! The modules, in reading order:
//!
//! | | |
//! |---|---|
//! | [`level`], [`limits`] | a priority level, and how many seats each gets |
//! | [`schema`], [`deadlines`] | a flow schema, and the deadlines that it sets |
//! | [`objects`], [`configuration`], [`suggested`] | both as people write them, what is in force, a suggestion |
//! | [`classify`], [`flow_hash`] | which schema takes a connection, and which flow it belongs to |
//! | [`shuffle`] | which queues a flow is dealt |
//! | [`queueset`], [`seat_seconds`] | the queues and seats of one level, and how work is measured |
//! | [`demand`], [`allocation`], [`borrowing`] | what levels want, and how seats move between them |
//! | [`retry_after`] | how long refused clients are to stay away |
//! | [`controller`] | all levels of a node together |
//! | [`parking`] | room for the packets of those that wait |
//! | [`simulate`] | all of it in virtual time |
//! | [`proposal`] | levels for the connections that a node has had |

pub mod level;
pub mod limits;

pub mod deadlines;
pub mod schema;

pub mod configuration;
pub mod objects;
pub mod suggested;

pub mod classify;
pub mod flow_hash;

pub mod shuffle;

pub mod queueset;
pub mod seat_seconds;

pub mod allocation;
pub mod borrowing;
pub mod demand;

pub mod retry_after;

pub mod controller;
pub mod parking;

pub mod simulate;

pub mod proposal;
