#![forbid(unsafe_code)]
//! Kubernetes objects in node-lb's form: Services, EndpointSlices and Nodes, and how they are read
//! from JSON and YAML. Those of connection admission are handed on as they are written.
//!
//! Kubernetes' own types occur only in [`kubernetes`]: code that takes a [`Service`] does not see
//! them. Nothing in this crate does I/O.

mod model;
mod object;
mod shared_name;
mod weights;

mod problem;

pub mod kubernetes;

pub mod go_duration;
pub mod text;

pub use self::{
    model::*,
    object::{AsWritten, Kind, Object, ObjectRef, Standing},
    problem::{Problem, Refused, quoted, shortened},
    shared_name::SharedName,
    weights::{DEFAULT_WEIGHT, MAX_WEIGHT, Weights},
};
