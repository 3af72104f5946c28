#![forbid(unsafe_code)]
//! The node-lb agent and its command line. The modules, in reading order:
//!
//! | | |
//! |---|---|
//! | [`source`] | objects as they come: from the API server or from files |
//! | [`store`] | the cluster as this node sees it, and which Services have changed |
//! | [`plan`] | the desired state of a Service on this node, a pure function |
//! | [`map_writer`] | from plans to maps: only the differences are written |
//! | [`memory`] | the same into tables in memory, for [`explain`] and tests |
//! | [`admission`] | the objects of connection admission, and the limits of priority levels |
//! | [`flows`] | ageing and clean-up of the flow tables |
//! | [`latency`] | how soon endpoints answer, in people's units |
//! | [`waiting`] | connections that wait for a seat |
//! | [`trace`] | what is asked about live packets, and what is told of each |
//! | [`conntrack_sysctls`] | settings of the kernel's own connection tracking |
//! | [`health`], [`http`], [`metrics`] | what load balancers, the kubelet and Prometheus ask |
//! | [`events`] | Events on Services |
//! | [`config`] | flags and the configuration file |
//! | [`docs`] | the sections of the documentation that messages name |
//! | [`check`] | whether this node can run node-lb, and what would get in its way |
//! | [`explain`] | what happens to a connection, asked on tables in memory |
//! | [`proof`] | the programs themselves are asked what they would do with packets |
//! | [`agent`] | puts all of it together |
//! | [`cli`] | the commands |
//!
//! Kubernetes objects are crate `lb-objects`, the edge to the kernel is `lb-datapath`, decisions of
//! admission are `lb-admission`.

mod by_name;
pub mod source;
pub mod store;

pub mod plan;

pub mod map_writer;
pub mod memory;

pub mod admission;
pub mod conntrack_sysctls;
pub mod flows;
pub mod latency;
pub mod trace;
pub mod waiting;

pub mod health;
pub mod http;
pub mod metrics;

pub mod events;

pub mod docs;

pub mod check;
pub mod config;

pub mod explain;
pub mod proof;

pub mod agent;
pub mod cli;
