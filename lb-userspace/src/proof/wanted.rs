//! What is to become of a packet: the pipeline's decision on tables with fresh plans.

use std::net::{IpAddr, SocketAddr};

use lb_common::{
    abi::config_flag,
    addr::{Ip4, Ip6},
    parse::tcp_flag,
    pipeline,
    select::Range,
    service::{self, Decision},
    verdict::Reason,
};
use lb_datapath::memory::Family;
use lb_objects::Protocol;

use crate::memory::{ProgrammedTables, tuple};

/// What is to become of the first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// It is left to the kernel as it is.
    Passed,
    Refused(Reason),
    /// It goes to one of these endpoints.
    ToOneOf(Vec<Choice>),
}

/// An endpoint, and how a connection is sent there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub endpoint: SocketAddr,
    /// Whether the client's address is replaced.
    pub source_nat: bool,
    /// Whether packets go past the host's stack.
    pub bypasses: bool,
}

impl Wanted {
    /// Endpoints that may be chosen.
    pub fn endpoints(&self) -> usize {
        match self {
            Self::ToOneOf(choices) => choices.len(),
            Self::Passed | Self::Refused(_) => 0,
        }
    }
}

/// The first packet of a connection from `source` that arrives by a device of the tables. `None` if it is addressed
/// to no Service, or that cannot be told. Limits of connections are not looked at.
pub fn wanted(
    tables: &ProgrammedTables,
    ifindex: u32,
    source: SocketAddr,
    to: SocketAddr,
    protocol: Protocol,
) -> Option<Wanted> {
    match to.ip() {
        IpAddr::V4(_) => in_family::<Ip4>(tables, ifindex, source, to, protocol),
        IpAddr::V6(_) => in_family::<Ip6>(tables, ifindex, source, to, protocol),
    }
}

fn in_family<A: Family>(
    tables: &ProgrammedTables,
    ifindex: u32,
    source: SocketAddr,
    to: SocketAddr,
    protocol: Protocol,
) -> Option<Wanted> {
    let hook = tables.tc();
    let tuple = tuple::<A>(source, to, protocol);
    let flags = tables.config.flags;
    let decision = service::decide(&hook, &tuple, ifindex)?;
    let is_left = service::is_left_to_another(&hook, &tuple, tcp_flag::SYN)
        || protocol == Protocol::Sctp && flags & config_flag::SCTP == 0;
    Some(match decision {
        _ if is_left => Wanted::Passed,
        Decision::Reject(_, reason) | Decision::Drop(_, reason) => Wanted::Refused(reason),
        Decision::Forward(route) => {
            let Range { first, count } = route.plan.set(route.policy);
            let endpoints = (first..first + count).filter_map(|index| tables.endpoint(index));
            let choice = |endpoint: &lb_common::abi::Endpoint| {
                let source_nat = route.source_nat(&tuple, endpoint);
                Choice {
                    endpoint: SocketAddr::new(endpoint.address.into(), endpoint.port),
                    source_nat,
                    bypasses: pipeline::bypasses(flags, endpoint, source_nat),
                }
            };
            let choices: Vec<_> = endpoints.map(choice).collect();
            match choices.iter().filter(|choice| choice.source_nat).count() {
                needing if needing == 0 || tables.config.node::<A>().sum() != 0 => {
                    Wanted::ToOneOf(choices)
                }
                all if all == choices.len() => Wanted::Refused(Reason::NoNodeAddress),
                // It depends on which one is drawn.
                _ => return None,
            }
        }
    })
}
