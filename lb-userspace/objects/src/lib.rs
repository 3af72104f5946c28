#![forbid(unsafe_code)]
//! Kubernetes objects as node-lb knows them: Services, EndpointSlices and Nodes, and how they are
//! read from JSON and YAML.
//!
//! Kubernetes' own types stop at [`kubernetes`]; nothing that takes a [`Service`] mentions them.
//! Nothing in here does I/O.

mod model;
mod object;
mod shared_name;

mod problem;

pub mod kubernetes;

pub mod go_duration;
pub mod text;

pub use self::{
    model::*,
    object::{Kind, Object, ObjectRef},
    problem::{Problem, Refused, quoted, shortened},
    shared_name::SharedName,
};
