//! Problems of a node as its operator sees them: the log, metrics, `node-lb status`, and how the
//! program ends. Needs root.

mod alerts;
mod capacity;
mod check;
mod devices;
mod faults;
mod labs;
mod node;
mod node_local;
mod page;
mod pods;
mod ports;
mod preflight;
mod source;
mod support;
