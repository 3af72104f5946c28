//! A service port as it is in the maps.

use std::net::IpAddr;

use lb_common::abi::{FrontendKind, endpoint_flag, plan_flag};

/// IP protocol numbers.
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

/// Rows of Maglev lookup tables, a prime.
pub const MAGLEV_ROWS: u32 = 13;

/// Classes of endpoints, by their place in a plan's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    LocalReady,
    LocalHinted,
    RemoteHinted,
    RemoteReady,
    LocalTerminating,
    RemoteTerminating,
}

impl Class {
    /// All classes, in their order.
    pub const ALL: [Self; 6] = [
        Self::LocalReady,
        Self::LocalHinted,
        Self::RemoteHinted,
        Self::RemoteReady,
        Self::LocalTerminating,
        Self::RemoteTerminating,
    ];

    /// Whether topology hints name this node, or its zone.
    pub fn is_hinted(self) -> bool {
        matches!(self, Self::LocalHinted | Self::RemoteHinted)
    }

    /// Whether such endpoints serve only if no ready one does.
    pub fn is_terminating(self) -> bool {
        matches!(self, Self::LocalTerminating | Self::RemoteTerminating)
    }

    /// Whether such endpoints are on this node.
    pub fn is_local(self) -> bool {
        matches!(
            self,
            Self::LocalReady | Self::LocalHinted | Self::LocalTerminating
        )
    }
}

/// An endpoint as it is in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointSpec {
    pub class: Class,
    pub address: IpAddr,
    pub port: u16,
    pub flags: u16,
}

/// A service port of one family.
#[derive(Clone, Debug)]
pub struct ServiceSpec {
    pub protocol: u8,
    pub frontends: Vec<(FrontendKind, IpAddr, u16)>,
    pub endpoints: Vec<EndpointSpec>,
    /// Flags of the plan.
    pub flags: u32,
    pub affinity_seconds: u32,
    /// Whether a lookup table chooses endpoints.
    pub maglev: bool,
    /// Networks that LoadBalancer addresses are open to; none means all.
    pub source_ranges: Vec<(IpAddr, u8)>,
}

impl ServiceSpec {
    /// A service without frontends, endpoints and special settings.
    pub fn new(protocol: u8) -> Self {
        Self {
            protocol,
            frontends: Vec::new(),
            endpoints: Vec::new(),
            flags: 0,
            affinity_seconds: 0,
            maglev: false,
            source_ranges: Vec::new(),
        }
    }

    /// Adds a ClusterIP.
    pub fn cluster_ip(self, address: IpAddr, port: u16) -> Self {
        self.frontend(FrontendKind::ClusterIp, address, port)
    }

    /// Adds a port of a node's address.
    pub fn node_port(self, address: IpAddr, port: u16) -> Self {
        self.frontend(FrontendKind::NodePort, address, port)
    }

    /// Adds a load balancer's address.
    pub fn load_balancer(self, address: IpAddr, port: u16) -> Self {
        self.frontend(FrontendKind::LoadBalancerIp, address, port)
    }

    /// Adds an address of any kind.
    pub fn frontend(mut self, kind: FrontendKind, address: IpAddr, port: u16) -> Self {
        self.frontends.push((kind, address, port));
        self
    }

    /// Adds a ready endpoint in the pods' network of another node.
    pub fn remote(self, address: IpAddr, port: u16) -> Self {
        self.endpoint(Class::RemoteReady, address, port)
    }

    /// Adds a ready endpoint on this node.
    pub fn local(self, address: IpAddr, port: u16) -> Self {
        self.endpoint(Class::LocalReady, address, port)
    }

    /// Adds a pod in the cluster's pod network.
    pub fn endpoint(mut self, class: Class, address: IpAddr, port: u16) -> Self {
        let local = match class.is_local() {
            true => endpoint_flag::LOCAL,
            false => 0,
        };
        self.endpoints.push(EndpointSpec {
            class,
            address,
            port,
            flags: local | endpoint_flag::IN_CLUSTER,
        });
        self
    }

    /// Adds a host-network pod of this node.
    pub fn host(mut self, address: IpAddr, port: u16) -> Self {
        self.endpoints.push(EndpointSpec {
            class: Class::LocalReady,
            address,
            port,
            flags: endpoint_flag::LOCAL | endpoint_flag::HOST,
        });
        self
    }

    /// Replaces the flags of the plan.
    pub fn flags(self, flags: u32) -> Self {
        Self { flags, ..self }
    }

    /// externalTrafficPolicy: Local.
    pub fn external_local(self) -> Self {
        self.flags(plan_flag::EXTERNAL_LOCAL)
    }

    /// Opens its load balancer addresses to this network, and to others that are added in this way.
    pub fn source_range(mut self, network: IpAddr, prefix: u8) -> Self {
        self.source_ranges.push((network, prefix));
        self
    }
}
