//! The node's own connections: translated once, at the socket, instead of packet by packet.

use crate::{
    addr::Address,
    parse::{TCP, Tuple, tcp_flag},
    select,
    service::{self, Decision},
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
    Replace { address: A, port: u16, service: u32 },
}

/// Decides where a socket's `connect` or `sendmsg` to a destination goes. The source of the tuple
/// is the address the socket is bound to, or the node's.
#[inline(always)]
pub fn destination<A: Address, S: Services<A>>(services: &S, tuple: &Tuple<A>) -> Outcome<A> {
    let Some(decision) = service::decide(services, tuple, 0) else {
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
            let number = services.random();
            let index = select::pick(services, route.plan, route.policy, tuple, number);
            match index.and_then(|index| services.endpoint(index)) {
                Some(endpoint) => {
                    services.count_connection(service, endpoint.id);
                    return Outcome::Replace {
                        address: A::from_mapped(endpoint.address),
                        port: endpoint.port,
                        service,
                    };
                }
                None => (service, Reason::NotProgrammed),
            }
        }
    };
    services.count_refusal(service, reason);
    match reason {
        Reason::NoEndpoints => Outcome::Refuse(reason),
        _ => Outcome::Keep(reason),
    }
}
