//! Addresses that Services do not get: those at which this node reaches the API server, and those
//! at which the agent itself listens.
//!
//! Whoever may create Services can name any address as an externalIP, or have it as a load balancer
//! IP. With one of these, a tenant would get the probes of the node's health, or cut the agent off
//! from the API server.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use lb_common::parse;

use super::{Address, Stake};
use crate::{config::Config, plan::FrontendKind};

/// What an address is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    ApiServer,
    Healthz,
    Metrics,
    StatusPage,
    HealthCheckNodePort,
}

impl Purpose {
    /// What is there.
    pub fn name(self) -> &'static str {
        match self {
            Self::ApiServer => "where this node reaches the API server",
            Self::Healthz => "where the agent serves /healthz",
            Self::Metrics => "where the agent serves /metrics",
            Self::StatusPage => "where the agent serves its status page",
            Self::HealthCheckNodePort => "where the agent serves a healthCheckNodePort",
        }
    }
}

/// The addresses of a node, over TCP, that no Service gets unless as its ClusterIP. An essential
/// Service may have those of the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// The node's own addresses, and ports of which each is reserved on all of them.
    own: BTreeSet<IpAddr>,
    ports: BTreeMap<u16, Purpose>,
    sockets: BTreeMap<SocketAddr, Purpose>,
}

impl Reserved {
    /// Nothing, on a node with these addresses.
    pub fn on(own: BTreeSet<IpAddr>) -> Self {
        Self {
            own,
            ..Self::default()
        }
    }

    /// What the agent itself needs: where it listens, on a node with these addresses, and where the
    /// API server is.
    pub fn for_agent(
        config: &Config,
        own: BTreeSet<IpAddr>,
        api_servers: impl IntoIterator<Item = SocketAddr>,
    ) -> Self {
        let mut reserved = Self::on(own);
        reserved.add(config.healthz_bind_address, Purpose::Healthz);
        reserved.add(config.metrics_bind_address, Purpose::Metrics);
        if let Some(address) = config.status_page_bind_address {
            reserved.add(address, Purpose::StatusPage);
        }
        for address in api_servers {
            reserved.add(address, Purpose::ApiServer);
        }
        reserved
    }

    /// The ports on which healthCheckNodePorts are served, on all of the node's addresses.
    pub fn add_health_checks(&mut self, ports: impl IntoIterator<Item = u16>) {
        let ports = ports.into_iter();
        self.ports
            .extend(ports.map(|port| (port, Purpose::HealthCheckNodePort)));
    }

    /// Reserves an address; an unspecified one stands for all of the node's own.
    pub fn add(&mut self, address: SocketAddr, purpose: Purpose) {
        match address.ip().is_unspecified() {
            true => self.ports.insert(address.port(), purpose),
            false => self.sockets.insert(address, purpose),
        };
    }

    /// What an address is kept for, and from this claim.
    pub(super) fn keeps(&self, (address, protocol): &Address, stake: &Stake) -> Option<Purpose> {
        if *protocol != parse::TCP || stake.kind == FrontendKind::ClusterIp {
            return None;
        }
        let purpose = self.purpose(address)?;
        let is_exempt = purpose == Purpose::ApiServer && stake.claimant.rank.is_essential();
        (!is_exempt).then_some(purpose)
    }

    /// What an address is kept for, from most claims.
    pub(super) fn purpose(&self, address: &SocketAddr) -> Option<Purpose> {
        let of_port = self.ports.get(&address.port());
        let of_port = of_port.filter(|_| self.own.contains(&address.ip()));
        self.sockets.get(address).or(of_port).copied()
    }

    /// Addresses that may be reserved for something else in `other`. The work is proportional to
    /// the difference.
    pub(super) fn differing(&self, other: &Self) -> BTreeSet<SocketAddr> {
        let mut differing = BTreeSet::new();
        for (one, another) in [(self, other), (other, self)] {
            let sockets = one.sockets.iter();
            let sockets = sockets.filter(|(at, kept)| another.sockets.get(at) != Some(kept));
            differing.extend(sockets.map(|(address, _)| *address));

            let ports = one.ports.iter();
            let ports = ports.filter(|(port, kept)| another.ports.get(port) != Some(kept));
            for (port, _) in ports {
                differing.extend(one.own.iter().map(|ip| SocketAddr::new(*ip, *port)));
            }
            for ip in one.own.difference(&another.own) {
                differing.extend(one.ports.keys().map(|port| SocketAddr::new(*ip, *port)));
            }
        }
        differing
    }
}
