//! A way through the cluster as JSON, with all that its text says.

use std::net::{IpAddr, SocketAddr};

use lb_objects::Protocol;
use serde::{Deserialize, Serialize};

use super::super::{Report, named};

/// The way of a connection's first packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journey {
    #[serde(with = "named")]
    pub protocol: Protocol,
    pub from: IpAddr,
    pub to: SocketAddr,
    /// Where the client is.
    pub client: Place,
    /// The node where node-lb meets the packet first.
    pub first: Step,
    /// What the answer takes for granted, because no object says it.
    pub assumed: Vec<Assumption>,
}

/// Where an address is, as objects have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub kind: PlaceKind,
    /// The node; null if no object says which.
    pub node: Option<String>,
}

/// What has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlaceKind {
    Pod,
    /// A node itself, and pods in its network.
    Node,
    /// Nothing that the cluster's objects know.
    Outside,
}

/// What node-lb does with a packet on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub node: String,
    /// Null if that cannot be told.
    pub decision: Option<Report>,
    /// Where the packet may go from here: one leg for each endpoint that may be chosen, or one to its
    /// destination, if it passes and that is elsewhere.
    pub onward: Vec<Leg>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
}

/// Where a packet goes from a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Leg {
    /// The source that the packet has from here on; null if it gets the node's address, and none is
    /// known.
    pub from: Option<IpAddr>,
    /// The destination that it has from here on.
    pub to: SocketAddr,
    /// Where that is.
    pub place: Place,
    /// How answers become the Service's again on the node that this leg leaves; null if the packet has
    /// not been translated.
    pub answer: Option<Translator>,
    /// What happens on the node of `place`; absent if the packet has not left the node, or no node is
    /// known there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Step>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
}

/// What translates answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Translator {
    /// The flow: packets are translated, so they must pass this node.
    Flow,
    /// Nothing has to: the client's socket is connected to the endpoint.
    Socket,
}

/// What goes wrong, or cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Problem {
    /// The endpoint answers past the node that has translated the packet, so the client does not take
    /// the answer for one.
    AnswerAstray,
    /// The source has to become the node's address, and none of this family is known.
    NoNodeAddress,
    /// No usable endpoint is on this node, and these nodes have some.
    EndpointsElsewhere { nodes: Vec<String> },
    /// Objects name this node, and there is no Node object of that name.
    NoNodeObject { node: String },
    /// It is a pod's address, and no object says on which node.
    NodeUnknown,
    /// The agent of this node has not answered, or too many would have to be asked.
    NoAnswer { node: String },
    /// The packet may come to more nodes than a way has, or in more ways than can be shown.
    TooManyNodes,
}

/// What is taken for granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Assumption {
    /// Agents on these nodes have the settings that were given, in this version of node-lb.
    SameSettings { nodes: Vec<String> },
    /// These nodes have the addresses of their Node objects, and no others.
    NodeAddresses,
    /// The client's packets arrive by a device of this name: its node tells pods by their devices.
    Device { name: String },
    /// Between nodes nothing else translates, such as a CNI's masquerade.
    NothingElseTranslates,
    /// No tunnel leads to the endpoints: there, the node's address on the tunnel replaces the source.
    NoTunnel,
}
