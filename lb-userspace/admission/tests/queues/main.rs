//! The queues, seats and borrowing of connection admission.

mod allocation;
mod borrowing;
mod controller;
mod covered;
mod deadlines;
mod demand;
mod estimate;
mod fairness;
mod isolation;
mod memory;
mod properties;
mod queueset;
mod retry_after;
mod scenarios;
mod seat_seconds;
mod shuffle;
mod support;
mod traces;
mod vectors;
