//! What there is to look at, and which view leads to which.

use std::net::{IpAddr, SocketAddr};

use super::{
    flows::{Ask, By, Count},
    frame::{Endpoint, Frame},
    rows,
    table::{Sort, Table},
};
use crate::agent::local_api::traffic::PortTraffic;

/// A view. Some lead into others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// All service ports.
    Services,
    /// The endpoints of a service port.
    Endpoints(PortName),
    /// The clients of an endpoint of a service port.
    Clients(PortName, SocketAddr),
    /// Who has the most flows.
    Sources,
    /// What is limited, and how much of it is used.
    Budgets,
    /// Why packets are refused or dropped.
    Reasons,
}

/// A service port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortName {
    /// `namespace/name`.
    pub service: String,
    /// `namespace/name:port`.
    pub service_port: String,
    pub protocol: String,
}

/// What a row is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Port(PortName),
    Endpoint(SocketAddr),
    Source(IpAddr),
    Named(String),
}

impl From<&PortTraffic> for PortName {
    fn from(port: &PortTraffic) -> Self {
        Self {
            service: port.service.clone(),
            service_port: port.service_port.clone(),
            protocol: port.protocol.clone(),
        }
    }
}

impl PortName {
    fn is(&self, port: &PortTraffic) -> bool {
        (&*self.service_port, &*self.protocol) == (&*port.service_port, &*port.protocol)
    }
}

/// All that views are made of.
#[derive(Clone, Debug, Default)]
pub struct Known {
    pub frame: Frame,
    /// The endpoints that are looked into, and of which Service they are.
    pub endpoints: Option<(String, Vec<Endpoint>)>,
    /// The flows that were counted last.
    pub count: Option<Count>,
}

impl Known {
    /// Has service ports say what their flows carry, if these were counted by service.
    pub fn join(&mut self) {
        let by_service = |count: &&Count| count.ask == Some(Ask::services());
        if let Some(count) = self.count.as_ref().filter(by_service) {
            self.frame.add_bytes(count);
        }
    }
}

impl View {
    /// Its name, and what it is of.
    pub fn title(&self) -> String {
        match self {
            Self::Services => "Service ports".to_owned(),
            Self::Endpoints(port) => {
                format!("Endpoints of {} {}", port.service_port, port.protocol)
            }
            Self::Clients(port, endpoint) => format!(
                "Clients of {endpoint}, {} {}",
                port.service_port, port.protocol
            ),
            Self::Sources => "Sources with the most flows".to_owned(),
            Self::Budgets => "Budgets".to_owned(),
            Self::Reasons => "Packets refused or dropped, by reason".to_owned(),
        }
    }

    /// How it is sorted at first.
    pub fn sort(&self) -> Sort {
        let (column, is_descending) = match self {
            Self::Services => (4, true),
            Self::Endpoints(_) => (0, false),
            Self::Clients(..) | Self::Sources | Self::Reasons => (1, true),
            Self::Budgets => (3, true),
        };
        Sort {
            column,
            is_descending,
        }
    }

    /// The flows that have to be counted for it.
    pub fn asks(&self, frame: &Frame) -> Option<Ask> {
        let of = |port: &PortName| {
            let mut ports = frame.service_ports.iter();
            let port = ports.find(|known| port.is(&known.traffic));
            Some(port.map_or_else(Vec::new, |port| port.traffic.ids.clone()))
        };
        match self {
            Self::Reasons => None,
            Self::Services => Some(Ask::services()),
            Self::Endpoints(port) => Some(Ask {
                services: of(port),
                endpoint: None,
                by: By::Endpoint,
            }),
            Self::Clients(port, endpoint) => Some(Ask {
                services: of(port),
                endpoint: Some(*endpoint),
                by: By::Source,
            }),
            Self::Sources => Some(Ask {
                services: None,
                endpoint: None,
                by: By::Source,
            }),
            Self::Budgets => Some(Ask {
                services: None,
                endpoint: None,
                by: By::Endpoint,
            }),
        }
    }

    /// Whether it has more than the flows that are counted for it, and is worth showing without them.
    pub fn does_without_flows(&self) -> bool {
        *self == Self::Services
    }

    /// The Service whose endpoints have to be known for it.
    pub fn service(&self) -> Option<&str> {
        match self {
            Self::Endpoints(port) => Some(&port.service),
            _ => None,
        }
    }

    /// The view that a row leads into.
    pub fn below(&self, subject: &Subject) -> Option<Self> {
        match (self, subject) {
            (Self::Services, Subject::Port(port)) => Some(Self::Endpoints(port.clone())),
            (Self::Endpoints(port), Subject::Endpoint(endpoint)) => {
                Some(Self::Clients(port.clone(), *endpoint))
            }
            _ => None,
        }
    }

    /// Its rows, in no order.
    pub fn table(&self, known: &Known) -> Table {
        // What was counted for another view is of no use here.
        let ask = self.asks(&known.frame);
        let count = known.count.as_ref().filter(|count| count.ask == ask);
        match self {
            Self::Services => rows::services(&known.frame),
            Self::Endpoints(port) => rows::endpoints(port, known, count),
            Self::Clients(..) => rows::clients(&known.frame, count),
            Self::Sources => rows::sources(&known.frame, count),
            Self::Budgets => rows::budgets(&known.frame, count),
            Self::Reasons => rows::reasons(&known.frame),
        }
    }
}
