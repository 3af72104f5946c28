//! Connections that are translated once, at the socket, instead of packet by packet: the node's own, and
//! those of pods if that is asked for.

use crate::{
    abi::{Endpoint, Plan, config_flag},
    addr::Address,
    parse::{TCP, Tuple, tcp_flag},
    select,
    service::{self, Decision, Route},
    tables::Services,
    verdict::Reason,
};

/// What happens to a socket's destination.
#[derive(Clone, Copy)]
pub enum Outcome<A> {
    /// It stays. (What is to be dropped stays too, and is dropped where it leaves the node.)
    Keep(Reason),
    /// The call fails: connection refused.
    Refuse(Reason),
    /// It is replaced by an endpoint of a service.
    Replace {
        address: A,
        port: u16,
        service: u32,
        /// Whether earlier datagrams of the socket went there as well.
        is_known: bool,
    },
}

/// What a socket asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Connect,
    /// Of an unconnected socket.
    SendMsg,
}

/// The socket that asks.
pub trait Caller<A: Address> {
    /// Its cookie.
    fn cookie(&self) -> u64;
    /// Whether it is the node's own, and not a pod's.
    fn is_own(&self) -> bool;
    /// Whether it holds the seats of a connection to an endpoint of a service, both by their ids.
    fn holds(&self, service: u32, endpoint: u32) -> bool;
    /// Has it hold the [seats](crate::pipeline::seat_socket) of a connection to an endpoint of the service
    /// that the tuple leads to, instead of others that it holds. Returns why not.
    fn take_seats(&self, tuple: &Tuple<A>, endpoint: u32) -> Option<Reason>;
}

/// Decides where a socket's `connect` or `sendmsg` to a destination goes. The source of the tuple
/// is the node's address, without a port. A socket that connects holds no seats yet.
///
/// A pod's address is not known before there is a packet. So a pod's socket is left alone if its address
/// matters: its packets are translated where they leave the pod.
#[inline(always)]
pub fn destination<A: Address, S: Services<A>>(
    services: &S,
    tuple: &Tuple<A>,
    call: Call,
    caller: &impl Caller<A>,
) -> Outcome<A> {
    let frontend = service::asked_for(services, tuple);
    let is_pods = frontend.is_some() && !caller.is_own();
    if is_pods && service::tells_clients_apart(services, frontend) {
        return Outcome::Keep(Reason::LaterHook);
    }
    let Some(decision) = service::decide_at(services, tuple, 0, frontend) else {
        // Datagrams are refused where they leave: a UDP socket may be connected for no other purpose
        // than to learn which source address a packet there would have (RFC 6724).
        let is_refused = tuple.protocol == TCP
            && service::unknown(services, tuple, tcp_flag::SYN) == Some(Reason::UnknownPort);
        return match is_refused {
            true => Outcome::Refuse(Reason::UnknownPort),
            false => Outcome::Keep(Reason::NotService),
        };
    };
    let (service, reason) = match decision {
        // What a socket asks for is new.
        _ if service::is_left_to_another(services, tuple, tcp_flag::SYN) => {
            return Outcome::Keep(Reason::NotService);
        }
        Decision::Reject(service, reason) | Decision::Drop(service, reason) => (service, reason),
        Decision::Forward(route) => {
            let service = route.plan.service;
            let picked = pick(services, route, tuple, call, caller);
            let refused = picked.and_then(|(endpoint, _)| {
                let takes_none = !is_counted(services, route.plan)
                    || call == Call::SendMsg && caller.holds(service, endpoint.id);
                match takes_none {
                    true => None,
                    false => caller.take_seats(tuple, endpoint.id),
                }
            });
            match (picked, refused) {
                (_, Some(reason)) => (service, reason),
                (Some((endpoint, is_known)), None) => {
                    if !is_known {
                        services.count_connection(service, endpoint.id);
                    }
                    return Outcome::Replace {
                        address: A::from_mapped(endpoint.address),
                        port: endpoint.port,
                        service,
                        is_known,
                    };
                }
                (None, None) => (service, Reason::NotProgrammed),
            }
        }
    };
    services.count_refusal(service, reason);
    match reason {
        Reason::NoEndpoints => Outcome::Refuse(reason),
        reason if reason.is_limit() => Outcome::Refuse(reason),
        _ => Outcome::Keep(reason),
    }
}

/// Whether some limit may concern connections by a plan.
#[inline(always)]
fn is_counted<A: Address, S: Services<A>>(services: &S, plan: &Plan) -> bool {
    const OF_ALL: u32 = config_flag::ADMISSION | config_flag::CONNECTION_LIMIT;
    plan.seats != 0 || services.config().flags & OF_ALL != 0
}

/// The endpoint of a socket, and whether it is known.
#[inline(always)]
fn pick<'a, A: Address, S: Services<A>>(
    services: &'a S,
    route: Route<'a>,
    tuple: &Tuple<A>,
    call: Call,
    caller: &impl Caller<A>,
) -> Option<(&'a Endpoint, bool)> {
    let Route { plan, policy, .. } = route;
    // Sockets have no ports yet, and without any all of a node's would find one row of a lookup table.
    let tuple = Tuple {
        source_port: caller.cookie() as u16,
        ..*tuple
    };
    let (index, is_known) = match call {
        Call::SendMsg if plan.affinity_seconds == 0 => {
            let holds = |endpoint| caller.holds(plan.service, endpoint);
            select::pick_for_socket(services, plan, policy, &tuple, caller.cookie(), holds)?
        }
        _ => {
            let number = services.random();
            let index = select::pick(services, plan, policy, &tuple, number)?;
            let index = select::within_bound(services, plan, policy, index);
            (select::with_room(services, plan, policy, index), false)
        }
    };
    Some((services.endpoint(index)?, is_known))
}
