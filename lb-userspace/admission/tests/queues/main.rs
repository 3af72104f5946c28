//! The queues, seats and borrowing of connection admission.

mod allocation;
mod borrowing;
mod controller;
mod covered;
mod deadlines;
mod demand;
mod estimate;
mod fair_alloc;
mod fairness;
mod findings;

mod isolation;
mod limits_inside;
mod memory;
mod observed;
mod parking;
mod properties;
mod queueset;
mod retry_after;
mod scenarios;
mod seat_seconds;
mod shuffle;
mod support;
mod traces;
mod vectors;
