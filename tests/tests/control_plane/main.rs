//! node-lb against a real etcd, kube-apiserver and kube-controller-manager. Needs root, and what
//! `cargo xtask setup` builds.

mod admission;
mod chaos;
mod connection;
mod deploy;
mod differential;
mod documented;
mod faults;
mod lists;
mod monitoring;
mod nodes;
mod outages;
mod own_address;
mod rollout;
mod services;
mod support;
mod upgrade;
