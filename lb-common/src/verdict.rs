//! What happens to a packet, and why; the reason's number is its counter's index.

/// Declares [`Reason`] with its names for people and metrics.
macro_rules! reasons {
    ($($(#[$attribute:meta])* $variant:ident = $name:literal,)*) => {
        /// Why a packet was passed, forwarded, answered or dropped.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($(#[$attribute])* $variant,)*
        }

        impl Reason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant),*];

            /// The reason's name in metrics and output.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Reason::$variant => $name,)*
                }
            }
        }
    };
}

reasons! {
    #[default]
    /// Neither IPv4 nor IPv6, or tagged for a VLAN that has its own device, on which it is looked
    /// at.
    NotIp = "not-ip",
    /// A protocol without translation: the kernel's business.
    OtherProtocol = "other-protocol",
    /// Headers that make no sense or are cut short: the kernel's business.
    Malformed = "malformed",
    /// To no Service and of no flow; during a handover, also what is another service proxy's.
    NotService = "not-service",
    /// A TCP reset of no flow: it opens nothing.
    StrayReset = "stray-reset",
    /// A TCP segment of no flow, while its Service has more half-open flows than one that is not
    /// attacked: it opens none.
    StraySegment = "stray-segment",
    /// A later fragment of a packet, where the first fragment belonged to no flow. It is dropped where it
    /// leaves the node for an address that only Services have.
    UnknownFragment = "unknown-fragment",
    /// An answer that must cross the host's stack before it is translated.
    ReplyToStack = "reply-to-stack",
    /// Left to a later hook, which can reach the next hop, or have the packet fragmented; of a pod's
    /// socket, which knows the pod's address.
    LaterHook = "later-hook",
    /// The checksum is not complete yet: left to a hook that can tell.
    PartialChecksum = "partial-checksum",
    /// First packet of a connection, on its way to the endpoint.
    Opened = "opened",
    /// A later packet to the endpoint.
    ToEndpoint = "to-endpoint",
    /// A packet to the client.
    ToClient = "to-client",
    /// A later fragment that followed its first.
    FollowedFragment = "followed-fragment",
    /// An ICMP error about a translated packet, translated as well.
    IcmpError = "icmp-error",
    /// No usable endpoint in the cluster: port unreachable.
    NoEndpoints = "no-endpoints",
    /// No endpoint on this node under a Local policy: dropped, so that load balancers move on.
    NoLocalEndpoints = "no-local-endpoints",
    /// The client is in none of loadBalancerSourceRanges.
    SourceRange = "source-range",
    /// The service's entry is incomplete; the agent is changing it.
    NotProgrammed = "not-programmed",
    /// No room for another flow.
    FlowTableFull = "flow-table-full",
    /// All ports tried for source NAT are in use towards the endpoint.
    SnatPortsExhausted = "snat-ports-exhausted",
    /// Two CPUs tried to open the same flow.
    InsertRace = "insert-race",
    /// The node has no address of the family for source NAT.
    NoNodeAddress = "no-node-address",
    /// No route to the rewritten destination.
    NoRoute = "no-route",
    /// The time to live ran out: answered so.
    TimeExceeded = "time-exceeded",
    /// Too big for the next link and not to be fragmented: answered so.
    TooBig = "too-big",
    /// An answer would have been due but too many were given this second.
    AnswerRateLimited = "answer-rate-limited",
    /// The packet could not be rewritten where it was.
    NotWritable = "not-writable",
    /// A socket's destination was replaced by an endpoint.
    SocketTranslated = "socket-translated",
    /// An endpoint refused a connection, and the client is not told, because another endpoint may
    /// take it.
    EndpointRefused = "endpoint-refused",
    /// The endpoint has left the service and does not answer any more: the client's connection is
    /// reset.
    EndpointGone = "endpoint-gone",
    /// To a Service, of no flow, in a frame to a link-layer broadcast or multicast address: the
    /// kernel's business, which forwards none.
    LinkMulticast = "link-multicast",
    /// A packet to a Service from an address that no host sends from, such as loopback or
    /// multicast, from the node's own, or, by a pod's device, from where `rp_filter` wants none:
    /// the kernel's business, which drops it.
    MartianSource = "martian-source",
    /// To a Service, of no flow, in a frame to another host's link-layer address, as a switch sends
    /// to all its ports while it does not know that host's: the kernel's business, which drops it.
    OtherHost = "other-host",
    /// As many connections are open as the limit of the node or of the Service allows: the client
    /// is refused.
    ConcurrencyLimit = "concurrency-limit",
    /// The client's party has as many connections of its flow schema as its priority level allows
    /// (`maxConnectionsPerFlow`): the client is refused.
    FlowLimit = "flow-limit",
    /// The connection has run into a deadline of its flow schema: whoever still sends is reset.
    DeadlineExceeded = "deadline-exceeded",
    /// All seats of the connection's priority level are taken, or others wait for one: the agent keeps
    /// the SYN until the connection has its turn.
    Parked = "parked",
    /// All seats of the connection's priority level are taken, and so many others wait for one that it
    /// must not: the client is refused.
    QueueFull = "queue-full",
    /// The connection has waited for a seat as long as it may: the client is refused.
    TimeOut = "time-out",
    /// To a ClusterIP, but to no port of a Service there: port unreachable, whatever the protocol.
    UnknownPort = "unknown-port",
    /// To an address in a ServiceCIDR that no Service has: dropped where it leaves the node.
    NoSuchService = "no-such-service",
    /// Each endpoint has as many connections as the Service lets it have: the client is refused.
    EndpointLimit = "endpoint-limit",
}

impl Reason {
    /// Whether it says that a limit of connections is reached.
    #[inline(always)]
    pub fn is_limit(self) -> bool {
        matches!(
            self,
            Self::ConcurrencyLimit
                | Self::FlowLimit
                | Self::EndpointLimit
                | Self::Parked
                | Self::QueueFull
                | Self::TimeOut
        )
    }

    /// Whether it says that a packet to a Service, or to where one could be, was refused or dropped.
    pub fn is_refusal(self) -> bool {
        match self {
            Self::Parked => false,
            Self::NoEndpoints
            | Self::NoLocalEndpoints
            | Self::SourceRange
            | Self::NotProgrammed
            | Self::FlowTableFull
            | Self::SnatPortsExhausted
            | Self::InsertRace
            | Self::NoNodeAddress
            | Self::NoRoute
            | Self::AnswerRateLimited
            | Self::UnknownPort
            | Self::NoSuchService => true,
            _ => self.is_limit(),
        }
    }
}

/// Number of reasons.
pub const REASONS: usize = Reason::ALL.len();

/// Where in the kernel a packet or socket was looked at; with [`Reason`] the index of a counter.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    Xdp,
    TcIngress,
    TcEgress,
    Socket,
}

impl Hook {
    /// All hooks, in the order of their numbers.
    pub const ALL: &'static [Hook] = &[Hook::Xdp, Hook::TcIngress, Hook::TcEgress, Hook::Socket];

    /// The hook's name in metrics and output.
    pub const fn name(self) -> &'static str {
        match self {
            Hook::Xdp => "xdp",
            Hook::TcIngress => "tc-ingress",
            Hook::TcEgress => "tc-egress",
            Hook::Socket => "socket",
        }
    }

    /// Index of the counter for `reason` at this hook.
    #[inline(always)]
    pub const fn counter(self, reason: Reason) -> u32 {
        self as u32 * REASON_ROOM as u32 + reason as u32
    }
}

/// Counters per hook: with room for reasons to come, so that another version can adopt them.
const REASON_ROOM: usize = 64;
const _: () = assert!(REASONS <= REASON_ROOM);

/// Number of counters.
pub const COUNTERS: usize = Hook::ALL.len() * REASON_ROOM;

/// What happens to a frame, and why. (This is no enum with fields: the verifier forbids copying
/// what a variant leaves undefined.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub action: Action,
    pub reason: Reason,
    /// The device to leave by, for [`Action::Redirect`] and [`Action::Resolve`]; else 0.
    pub ifindex: u32,
}

/// What the hook has to do with the frame; all rewriting has been done.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Let it go on its way.
    Pass,
    /// Send it out of a device; its Ethernet header is complete.
    Redirect,
    /// Send it out of a device as soon as the kernel has resolved the neighbour.
    Resolve,
    /// Send it back where it came from: an answer was built in its place.
    Answer,
    Drop,
}

impl Verdict {
    /// Lets the frame go on its way.
    #[inline(always)]
    pub const fn pass(reason: Reason) -> Self {
        Self {
            action: Action::Pass,
            reason,
            ifindex: 0,
        }
    }

    /// Drops it.
    #[inline(always)]
    pub const fn drop(reason: Reason) -> Self {
        Self {
            action: Action::Drop,
            reason,
            ifindex: 0,
        }
    }

    /// Sends the answer back that it has become.
    #[inline(always)]
    pub const fn answer(reason: Reason) -> Self {
        Self {
            action: Action::Answer,
            reason,
            ifindex: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_reason_at_each_hook_has_a_counter() {
        let counters = Hook::ALL
            .iter()
            .flat_map(|hook| Reason::ALL.iter().map(|reason| hook.counter(*reason)));
        let indexes: BTreeSet<_> = counters.collect();
        assert_eq!(indexes.len(), Hook::ALL.len() * REASONS);
        assert!(indexes.iter().all(|index| (*index as usize) < COUNTERS));
    }
}
