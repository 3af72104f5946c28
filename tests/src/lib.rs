//! The lab (network namespaces, servers, clients) and helpers for the tests beside it.
//!
//! ```no_run
//! use lb_tests::{Endpoint, Family, Lab, Request, Serve, Topology};
//!
//! # fn main() -> anyhow::Result<()> {
//! let lab = Lab::up(Topology::default())?;
//! let pod = lab.pod("pod-1-1");
//! let server = Serve::new("web").http(8080).start(pod)?;
//! lab.service("web").cluster_ip("10.96.0.10").tcp("http", 80, 8080).apply()?;
//! lab.endpoints("web").tcp("http", 8080).with(Endpoint::ready(pod)).apply()?;
//!
//! let reply = Request::http(pod.at(Family::V4, 8080)).send(lab.client())?;
//! assert_eq!(reply.server, "web");
//! # drop(server);
//! # Ok(())
//! # }
//! ```
//!
//! The modules, in reading order:
//!
//! | | |
//! |---|---|
//! | [`lab`], [`namespace`] | a cluster's network in a box; a network namespace of a test's own |
//! | [`traffic`], [`http_get`], [`probes`] | servers and clients on its hosts |
//! | [`manifests`], [`deployment`] | objects for its agents; pods that are replaced as by a Deployment |
//! | [`agent`], [`another_build`], [`balanced`] | the program under test, another build of it, a lab with it on all nodes |
//! | [`control_plane`] | a real Kubernetes control plane in a lab |
//! | [`prometheus`] | a Prometheus that scrapes a lab's agents |
//! | [`browser`] | a browser that shows their status page |
//! | [`packet_socket`], [`attack`] | frames of any content; what an attacker sends |
//! | [`faults`] | what goes wrong for operators, staged |
//! | [`programs`], [`pin_root`] | the eBPF programs without an agent, and where they are pinned |
//! | [`map_contents`] | what the maps say about Services, read without the map writer |
//! | [`patience`] | time limits on slow machines |

pub mod lab;
pub mod namespace;

pub mod http_get;
mod http_json;
pub mod probes;
pub mod traffic;

pub mod deployment;
pub mod manifests;

pub mod agent;
pub mod another_build;
pub mod balanced;

pub mod control_plane;

pub mod prometheus;

pub mod browser;

pub mod attack;
pub mod packet_socket;

pub mod faults;

pub mod pin_root;
pub mod programs;

pub mod map_contents;

pub mod patience;

pub use agent::{Agent, AgentSpec, Readiness};
pub use balanced::{AgentSource, Balanced};
pub use browser::Browser;
pub use control_plane::{Cluster, ControlPlane};
pub use deployment::{Condition, Deployment};
pub use http_get::HttpAnswer;
pub use lab::{Family, Host, Lab, Limit, Limited, Node, Pod, PodNetwork, Topology, Tunnel};
pub use manifests::{Endpoint, EndpointSlices, Manifests, Service};
pub use map_contents::MapContents;
pub use namespace::Namespace;
pub use packet_socket::PacketSocket;
pub use patience::{LOADED, PATIENCE, SILENCE, eventually, patient};
pub use pin_root::PinRoot;
pub use prometheus::Prometheus;
pub use traffic::{Failure, FailureKind, Grace, Held, Load, LoadReport, Reply, Request, Serve};
