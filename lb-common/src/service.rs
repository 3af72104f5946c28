//! The decision about a connection's first packet: which Service, which set of endpoints, which
//! source address. Traffic policies, source ranges, short-circuit and source NAT as kube-proxy has
//! them.

use crate::{
    abi::{
        Endpoint, FrontendKey, FrontendKind, Plan, SERVICE_RANGES, cluster_ip_flag, config_flag,
        device_flag, endpoint_flag, plan_flag, service_range_flag,
    },
    addr::Address,
    flow::{Flow, tcp},
    opaque::rolled,
    parse::{self, Tuple},
    select::Policy,
    tables::Services,
    verdict::Reason,
    work::Addressed,
};

/// Where a connection comes from.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A local pod, as the detector sees it.
    Pod = 0,
    /// The node itself.
    Node = 1,
    Outside = 2,
}

/// How a connection is to be served.
#[derive(Clone, Copy)]
pub struct Route<'a> {
    pub plan: &'a Plan,
    pub kind: FrontendKind,
    /// The policy that selects the set of endpoints.
    pub policy: Policy,
    /// Whether its source address must be replaced whatever the endpoint is.
    pub masquerade: bool,
}

/// What happens to a connection to a Service.
#[derive(Clone, Copy)]
pub enum Decision<'a> {
    Forward(Route<'a>),
    /// Refused: the client is told.
    Reject(u32, Reason),
    /// Dropped silently.
    Drop(u32, Reason),
}

/// Decides about the first packet of a connection that arrived on a device; `None` if it is not to
/// a Service.
#[inline(always)]
pub fn decide<'a, A: Address, S: Services<A>>(
    services: &'a S,
    tuple: &Tuple<A>,
    ifindex: u32,
) -> Option<Decision<'a>> {
    decide_at(services, tuple, ifindex, addressed(services, tuple))
}

/// [`decide`] for a socket of the node's own. It reaches node ports at loopback addresses, too.
#[inline(always)]
pub fn decide_for_socket<'a, A: Address, S: Services<A>>(
    services: &'a S,
    tuple: &Tuple<A>,
) -> Option<Decision<'a>> {
    decide_at(services, tuple, 0, asked_for(services, tuple))
}

/// [`decide_for`], if there is a frontend.
#[inline(always)]
pub(crate) fn decide_at<'a, A: Address, S: Services<A>>(
    services: &'a S,
    tuple: &Tuple<A>,
    ifindex: u32,
    frontend: Addressed,
) -> Option<Decision<'a>> {
    let is_some = frontend.is_some();
    is_some.then(|| decide_for(services, tuple, ifindex, frontend))
}

/// [`decide`] for a packet that is addressed to a frontend.
#[inline(always)]
pub fn decide_for<'a, A: Address, S: Services<A>>(
    services: &'a S,
    tuple: &Tuple<A>,
    ifindex: u32,
    frontend: Addressed,
) -> Decision<'a> {
    let service = frontend.service();
    let Some(plan) = services.plan(service) else {
        return Decision::Drop(service, Reason::NotProgrammed);
    };
    let kind = frontend.kind();
    if kind == FrontendKind::LoadBalancerIp
        && plan.source_set != 0
        && !services.source_allowed(plan.source_set, tuple.source.to_mapped())
    {
        return Decision::Drop(service, Reason::SourceRange);
    }
    if !plan.has_endpoints() {
        return Decision::Reject(service, Reason::NoEndpoints);
    }
    let (policy, masquerade) = treatment(services, tuple, ifindex, plan, kind);
    if plan.set(policy).is_empty() {
        return Decision::Drop(service, Reason::NoLocalEndpoints);
    }
    Decision::Forward(Route {
        plan,
        kind,
        policy,
        masquerade,
    })
}

/// Whether a packet of no flow is left to another service proxy on this node, during a handover.
#[inline(always)]
pub fn is_left_to_another<A: Address, S: Services<A>>(
    services: &S,
    tuple: &Tuple<A>,
    tcp_flags: u8,
) -> bool {
    let flags = services.config().flags;
    flags & config_flag::HANDOVER_OUT != 0
        || flags & config_flag::HANDOVER_IN != 0 && !tcp::begins(tuple.protocol, tcp_flags)
}

/// The frontend that a packet is addressed to. Out of line, since its key would lie on the stack to
/// the end.
#[inline(never)]
pub fn addressed<A: Address, S: Services<A>>(services: &S, tuple: &Tuple<A>) -> Addressed {
    Addressed::to(services.frontend(&key(tuple, false)))
}

/// The frontend that a socket asks for.
#[inline(always)]
pub(crate) fn asked_for<A: Address, S: Services<A>>(services: &S, tuple: &Tuple<A>) -> Addressed {
    Addressed::to(services.frontend(&key(tuple, true)))
}

/// Whether it may depend on the client's address what becomes of a connection to a frontend, and not only
/// whether that is replaced.
#[inline(always)]
pub(crate) fn tells_clients_apart<A: Address, S: Services<A>>(
    services: &S,
    frontend: Addressed,
) -> bool {
    let by_plan = services.plan(frontend.service()).is_some_and(|plan| {
        let has_ranges = plan.source_set != 0 && frontend.kind() == FrontendKind::LoadBalancerIp;
        has_ranges || plan.affinity_seconds != 0
    });
    by_plan || services.config().flags & config_flag::ADMISSION != 0
}

/// The key of the frontend that a packet is addressed to, or that a socket of the node's own asks for.
#[inline(always)]
pub fn key<A: Address>(tuple: &Tuple<A>, is_socket: bool) -> FrontendKey<A> {
    FrontendKey {
        address: tuple.destination,
        port: tuple.destination_port,
        protocol: tuple.protocol,
        sockets: u8::from(is_socket && tuple.destination.is_loopback()),
    }
}

/// Why a packet of no flow and to no frontend must not go on: [`Reason::UnknownPort`] if it is to a
/// ClusterIP, [`Reason::NoSuchService`] if it is to another address that only Services have. As in
/// kube-proxy's nftables mode, only what begins a connection counts. For the kernel's connection
/// tracking that can be a segment from the middle of one, too: not here, where most packets are such
/// segments of connections to no Service.
///
/// Others that are to neither cost a comparison with each range of such addresses, of which there is
/// hardly ever more than one.
#[inline(always)]
pub fn unknown<A: Address, S: Services<A>>(
    services: &S,
    tuple: &Tuple<A>,
    tcp_flags: u8,
) -> Option<Reason> {
    if services.config().flags & config_flag::REFUSE_UNKNOWN == 0
        || !tcp::begins(tuple.protocol, tcp_flags)
    {
        return None;
    }
    let reason = match services.unknown_index(tuple) {
        UNKNOWN_PORT => Reason::UnknownPort,
        NO_SUCH_SERVICE => Reason::NoSuchService,
        _ => return None,
    };
    (!is_left_to_another(services, tuple, tcp_flags)).then_some(reason)
}

const UNKNOWN_PORT: u64 = 1;
const NO_SUCH_SERVICE: u64 = 2;

/// What the destination of a packet to no frontend is: the address of a Service
/// (`UNKNOWN_PORT`), one that only Services have (`NO_SUCH_SERVICE`), or another one.
#[inline(always)]
pub fn unknown_index<A: Address, S: Services<A>>(services: &S, tuple: &Tuple<A>) -> u64 {
    for index in rolled(SERVICE_RANGES as usize) {
        let index = A::FAMILY as u32 * SERVICE_RANGES + index as u32;
        let Some(range) = services.service_range(index) else {
            break;
        };
        // SAFETY: a word of a map's element. The agent takes it away before it changes the others.
        let flags = unsafe { (&raw const range.flags).read_volatile() };
        if flags == 0 {
            break;
        }
        let network = A::from_mapped(range.network);
        if !tuple.destination.within(network, range.prefix) {
            continue;
        }
        let address = tuple.destination.to_mapped();
        return match services.cluster_ip(address) {
            // It is as much the node's: a DNS cache on the node may have it.
            _ if services.is_local(address) => 0,
            Some(found) => {
                let passes =
                    tuple.protocol == parse::SCTP && found.flags & cluster_ip_flag::SCTP != 0;
                if passes { 0 } else { UNKNOWN_PORT }
            }
            None if flags & service_range_flag::SERVICE_CIDR != 0 => NO_SUCH_SERVICE,
            None => 0,
        };
    }
    0
}

/// Where a connection comes from. A node address that lies in the pods' range counts as a pod.
#[inline(always)]
pub fn origin<A: Address, S: Services<A>>(services: &S, tuple: &Tuple<A>, ifindex: u32) -> Origin {
    if is_from_pod(services, tuple, ifindex) {
        Origin::Pod
    } else if services.is_local(tuple.source.to_mapped()) {
        Origin::Node
    } else {
        Origin::Outside
    }
}

#[inline(always)]
fn is_from_pod<A: Address, S: Services<A>>(services: &S, tuple: &Tuple<A>, ifindex: u32) -> bool {
    let config = services.config();
    if config.flags & config_flag::DETECT_BY_CIDR != 0 {
        let (network, prefix) = config.pods::<A>();
        prefix <= 128 && tuple.source.within(network, prefix)
    } else {
        config.flags & config_flag::DETECT_BY_DEVICE != 0
            && services.device(ifindex).flags & device_flag::PODS != 0
    }
}

impl Route<'_> {
    /// Whether the client's address must be replaced on the way to an endpoint: always where a pod
    /// reaches itself, never where the endpoint is the host, since masquerading only concerns what
    /// the node sends on.
    #[inline(always)]
    pub fn source_nat<A: Address>(&self, tuple: &Tuple<A>, endpoint: &Endpoint) -> bool {
        if endpoint.flags & endpoint_flag::HOST != 0 {
            return false;
        }
        self.masquerade || tuple.source == A::from_mapped(endpoint.address)
    }
}

/// Whether an endpoint that a flow goes to is still one of its service's, in whatever state.
#[inline(always)]
pub fn still_has<A: Address, S: Services<A>>(
    services: &S,
    plan: &Plan,
    endpoint: u32,
    flow: &Flow<A>,
) -> bool {
    let Some(index) = plan.all().first_of(services.indexes_of(endpoint)) else {
        return false;
    };
    services.endpoint(index).is_some_and(|found| {
        found.id == endpoint
            && found.port == flow.rewrite.destination_port
            && A::from_mapped(found.address) == flow.rewrite.destination
    })
}

/// The policy for a connection, and whether its source address must be replaced. Under
/// externalTrafficPolicy Local, pods and the node itself are short-circuited to the whole cluster.
/// For most connections the origin does not matter, and the look-up for it is saved.
#[inline(always)]
pub fn treatment<A: Address, S: Services<A>>(
    services: &S,
    tuple: &Tuple<A>,
    ifindex: u32,
    plan: &Plan,
    kind: FrontendKind,
) -> (Policy, bool) {
    let config = services.config();
    let local_if = |is_local| match is_local {
        true => Policy::Local,
        false => Policy::Cluster,
    };
    match kind {
        FrontendKind::ClusterIp => {
            let masquerade = config.flags & config_flag::MASQUERADE_ALL != 0
                || config.has_detector::<A>() && !is_from_pod(services, tuple, ifindex);
            (local_if(plan.has(plan_flag::INTERNAL_LOCAL)), masquerade)
        }
        _ if plan.has(plan_flag::EXTERNAL_LOCAL) => {
            let origin = origin(services, tuple, ifindex);
            (local_if(origin == Origin::Outside), origin == Origin::Node)
        }
        _ => (Policy::Cluster, true),
    }
}
