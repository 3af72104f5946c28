//! Admission's objects, their limits and their classification: against APF's behaviour vectors and
//! against their own invariants.

mod classification;
mod configuration;
mod crds;
mod limits;
mod manifests;
mod rules;
mod suggested;
mod support;
mod validation;
