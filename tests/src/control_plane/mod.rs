//! A real Kubernetes control plane in a lab: etcd, kube-apiserver and kube-controller-manager on a
//! host of the node network, so that Services get addresses, Deployments roll, and EndpointSlices
//! are what the real controllers write.
//!
//! There is no kubelet and no scheduler. Nodes are objects that [`Cluster`] writes, and
//! [`Kubelets`] does their work for Pods, with the lab's network namespaces and servers in place of
//! containers. [`Front`] is a server in front of the API server that counts requests and breaks
//! answers.

mod client;
mod cluster;
mod etcd;
mod front;
mod keys;
pub mod kube_proxy;
mod kubelets;
mod objects;
mod rights;
mod rule;
mod runtime;
mod server;
mod tamper;

pub use self::client::{Client, NAMESPACE, Objects};
pub use self::cluster::{Cluster, ClusterSpec};
pub use self::front::Front;
pub use self::keys::Keys;
pub use self::kube_proxy::{ProxyMode, ProxyPorts};
pub use self::kubelets::Kubelets;
pub use self::objects::{deployment, service};
pub use self::rights::grant_pods;
pub use self::rule::{Asked, Fault, Request, Rule};
pub use self::runtime::HostRuntime;
pub use self::server::{AGENT_ACCOUNT, CLUSTER_IP, ControlPlane, ControlPlaneSpec};
