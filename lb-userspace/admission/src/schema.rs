//! A flow schema as admission uses it: valid, with every default filled in.

use std::{collections::BTreeMap, time::Duration};

use ipnet::IpNet;
use lb_objects::Protocol;

use super::{
    deadlines::Deadlines,
    level::{CATCH_ALL, EXEMPT, Level},
    limits::Limits,
};

/// The precedence that only the schema `exempt` may have.
pub const EXEMPT_PRECEDENCE: u32 = 1;
/// The precedence of the limits of Namespaces: after the schemas that people write.
pub const NAMESPACE_PRECEDENCE: u32 = 9000;
/// The lowest precedence there is, numerically the highest.
pub const LAST_PRECEDENCE: u32 = 10_000;

/// Takes some connections, tells their flows apart, and names their priority level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    pub name: String,
    /// 1 to 10000; lower ones are asked first.
    pub precedence: u32,
    /// Name of the priority level, which may not exist.
    pub level: String,
    /// `None` makes all connections of the schema one flow.
    pub distinguisher: Option<DistinguisherMethod>,
    /// A connection must match one of them. Without rules nothing matches.
    pub rules: Vec<Rule>,
    /// The most connections of one of its flows, beside what its level allows.
    pub max_connections_per_flow: Option<u32>,
    /// Seats of one connection, 1 to 10.
    pub width: u32,
    /// How long its seats stay taken after a connection has ended.
    pub linger: Duration,
    pub deadlines: Deadlines,
    /// Its connections stay open without use for long. They have neither idle deadlines nor a
    /// lifetime.
    pub long_running: bool,
    pub answers: RejectAnswers,
}

/// How the flows of a schema are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DistinguisherMethod {
    /// The source address; outside the cluster, the /64 network of an IPv6 address.
    SourceIp,
    /// The network of the source address.
    SourcePrefix(PrefixLengths),
    SourceNamespace,
    SourceServiceAccount,
    SourceNode,
    DestinationService,
}

impl DistinguisherMethod {
    /// Whether it tells pods apart by what only is known of a pod that is known.
    pub fn needs_identity(&self) -> bool {
        match self {
            Self::SourceNamespace | Self::SourceServiceAccount | Self::SourceNode => true,
            Self::SourceIp | Self::SourcePrefix(_) | Self::DestinationService => false,
        }
    }
}

/// How much of an address [`DistinguisherMethod::SourcePrefix`] looks at, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixLengths {
    /// 24 to 32.
    pub ipv4: u8,
    /// 56 to 64.
    pub ipv6: u8,
}

/// Which connections a schema takes: from any of `sources` through any of `ingress` to any of
/// `destinations`, but for the exceptions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub sources: Vec<Source>,
    pub except_sources: Vec<Source>,
    pub ingress: Listed<Ingress>,
    pub destinations: Vec<Destination>,
    pub except_destinations: Vec<Destination>,
}

/// Who connects. All but the first two require a known identity of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Any,
    Network {
        network: IpNet,
        /// Parts of `network` that do not belong to the source.
        except: Vec<IpNet>,
    },
    Namespace(NameOrAny),
    ServiceAccount {
        namespace: String,
        name: NameOrAny,
    },
    Workload {
        namespace: NameOrAny,
        /// The pod has all of these, and possibly others.
        labels: BTreeMap<String, String>,
    },
}

/// What is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// `None`: any Service.
    pub service: Option<Services>,
    /// The Service's own ports, not its node ports or target ports.
    pub ports: Listed<PortSpan>,
    pub protocols: Listed<Protocol>,
    /// Addresses that the Service is reached at.
    pub addresses: Listed<IpNet>,
}

/// Services by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Services {
    pub namespaces: Listed<String>,
    pub names: Listed<String>,
}

/// Everything, or the entries of a list that is not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed<T> {
    Any,
    Only(Vec<T>),
}

/// One name, or any name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameOrAny {
    Any,
    Only(String),
}

/// An inclusive range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSpan {
    pub first: u16,
    pub last: u16,
}

/// Where a connection enters the node's data plane.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub enum Ingress {
    /// From outside the node, other nodes included.
    External,
    /// From a pod of this node.
    Pod,
    /// From the node itself or a pod in its network namespace.
    Node,
}

/// What a client is told when its connection is not admitted, by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectAnswers {
    /// The level has no queues, and no seat is free.
    pub concurrency_limit: RejectAnswer,
    pub queue_full: RejectAnswer,
    /// It waited for as long as it may.
    pub time_out: RejectAnswer,
}

/// How a client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectAnswer {
    /// TCP reset; for other protocols ICMP port unreachable.
    Reset,
    /// ICMP "administratively prohibited"; for UDP port unreachable.
    Icmp,
    /// Not at all, so that the client's own back-off does the work.
    Drop,
}

impl Schema {
    /// The schema `exempt`, which no object can change: the way from the cluster to its API server.
    ///
    /// It is narrow on purpose, because nothing limits what it takes. Probes by the kubelet, and by
    /// load balancers to health check node ports, are no connections to a Service and are not
    /// classified.
    pub fn exempt() -> Self {
        Self {
            rules: vec![Rule {
                ingress: Listed::Only(vec![Ingress::Pod, Ingress::Node]),
                ..Rule::new(Destination {
                    service: Some(Services {
                        namespaces: Listed::Only(vec!["default".to_owned()]),
                        names: Listed::Only(vec!["kubernetes".to_owned()]),
                    }),
                    ..Destination::any()
                })
            }],
            ..Self::new(EXEMPT, EXEMPT_PRECEDENCE, EXEMPT)
        }
    }

    /// The schema `catch-all`, which no object can change.
    pub fn catch_all() -> Self {
        Self {
            distinguisher: Some(DistinguisherMethod::SourceIp),
            rules: vec![Rule::new(Destination::any())],
            ..Self::new(CATCH_ALL, LAST_PRECEDENCE, CATCH_ALL)
        }
    }

    /// A schema without rules. All other fields are as in an object that leaves them out.
    pub fn new(name: &str, precedence: u32, level: &str) -> Self {
        Self {
            name: name.to_owned(),
            precedence,
            level: level.to_owned(),
            distinguisher: None,
            rules: Vec::new(),
            max_connections_per_flow: None,
            width: 1,
            linger: super::deadlines::LINGER.default,
            deadlines: Deadlines::default(),
            long_running: false,
            answers: RejectAnswers::default(),
        }
    }

    /// Seats of one of its connections at a level with these limits, which may allow fewer than the
    /// schema asks for.
    pub fn seats(&self, limits: &Limits) -> u32 {
        limits
            .max_seats
            .map_or(self.width, |max| self.width.min(max))
    }

    /// The most connections of one of its flows at this level; `None` means no limit.
    pub fn most_per_flow(&self, level: &Level) -> Option<u32> {
        let of_level = level.limited();
        let of_level = of_level.and_then(|limited| limited.connections.max_connections_per_flow);
        let limits = of_level.into_iter().chain(self.max_connections_per_flow);
        limits.min()
    }

    /// Whether it matters at this level which of its flows a connection belongs to.
    pub fn tells_flows_apart(&self, level: &Level) -> bool {
        let has_queues = level.queuing().is_some_and(|queuing| queuing.queues > 1);
        has_queues || self.most_per_flow(level).is_some()
    }

    /// The sort key of schemas, by which they are asked: precedence, then name byte by byte.
    pub fn order(&self) -> (u32, &str) {
        (self.precedence, &self.name)
    }
}

impl Source {
    /// Whether only a pod that is known can be of this source.
    pub fn needs_identity(&self) -> bool {
        match self {
            Self::Any | Self::Network { .. } => false,
            Self::Namespace(_) | Self::ServiceAccount { .. } | Self::Workload { .. } => true,
        }
    }
}

impl Rule {
    /// Everyone to one destination.
    pub fn new(destination: Destination) -> Self {
        Self {
            sources: vec![Source::Any],
            except_sources: Vec::new(),
            ingress: Listed::Any,
            destinations: vec![destination],
            except_destinations: Vec::new(),
        }
    }
}

impl Destination {
    /// Every Service, wherever it is reached.
    pub fn any() -> Self {
        Self {
            service: None,
            ports: Listed::Any,
            protocols: Listed::Any,
            addresses: Listed::Any,
        }
    }
}

impl<T> Listed<T> {
    /// Whether `fits` holds for an entry of the list, or the list is everything.
    pub fn any(&self, fits: impl FnMut(&T) -> bool) -> bool {
        match self {
            Self::Any => true,
            Self::Only(items) => items.iter().any(fits),
        }
    }
}

impl NameOrAny {
    /// Whether a name is this one, or any name will do.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Only(only) => only == name,
        }
    }
}

impl PortSpan {
    /// Whether a port lies in the range.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl Default for PrefixLengths {
    fn default() -> Self {
        Self { ipv4: 24, ipv6: 56 }
    }
}

impl Default for RejectAnswers {
    fn default() -> Self {
        Self {
            concurrency_limit: RejectAnswer::Reset,
            queue_full: RejectAnswer::Drop,
            // The client has waited already.
            time_out: RejectAnswer::Reset,
        }
    }
}
