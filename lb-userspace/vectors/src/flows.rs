//! The vectors' packet scenarios: Services on one shared node, and what happens to packets to them.

use std::net::IpAddr;

use ipnet::IpNet;
use lb_objects::{EndpointSlice, Node, Protocol, Service};
use node_lb::plan::{DetectLocal, LocalDetector, LocalNode, NodePortAddresses, PlanOptions};
use serde::{Deserialize, Deserializer};

use super::{ExpectedHealth, ExpectedVerdict, ServiceRow, protocol, slices};

/// Scenarios of several Services and the packets sent through them, on one shared node.
#[derive(Deserialize)]
pub struct Flows {
    pub fixture: Fixture,
    pub scenarios: Vec<Scenario>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fixture {
    node_name: String,
    #[serde(rename = "nodeIP")]
    node_ip: IpAddr,
    #[serde(rename = "altNodeIP")]
    alt_node_ip: IpAddr,
    #[serde(rename = "nodeIPv6")]
    node_ipv6: IpAddr,
    #[serde(rename = "altNodeIPv6")]
    alt_node_ipv6: IpAddr,
    #[serde(rename = "podLocalCIDR")]
    pod_local_cidr: IpNet,
    #[serde(rename = "podLocalCIDRv6")]
    pod_local_cidr_v6: IpNet,
}

impl Fixture {
    pub fn node(&self) -> Node {
        Node {
            name: self.node_name.clone(),
            addresses: self.local_addresses(),
            ..Node::default()
        }
    }

    /// Every address of the node, the node IP of a family before its other addresses.
    pub fn local_addresses(&self) -> Vec<IpAddr> {
        vec![
            self.node_ip,
            self.alt_node_ip,
            self.node_ipv6,
            self.alt_node_ipv6,
        ]
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scenario {
    pub id: String,
    config: ScenarioConfig,
    services: Vec<ServiceRow>,
    pub packets: Vec<Packet>,
    pub health_check: Option<ExpectedHealth>,
}

impl Scenario {
    pub fn options(&self) -> PlanOptions {
        let networks = self.config.node_port_cidrs.clone();
        PlanOptions {
            node_port_addresses: networks
                .map_or(NodePortAddresses::Primary, NodePortAddresses::Networks),
            ..PlanOptions::default()
        }
    }

    pub fn masquerade_all(&self) -> bool {
        self.config.masquerade_all
    }

    pub fn detect_local(&self, fixture: &Fixture) -> DetectLocal {
        match &self.config.local_detector {
            LocalDetectorRow::PodCidr => {
                DetectLocal::ClusterCidr(vec![fixture.pod_local_cidr, fixture.pod_local_cidr_v6])
            }
            LocalDetectorRow::None => DetectLocal::None,
        }
    }

    pub fn detector(&self, fixture: &Fixture) -> LocalDetector {
        LocalDetector::new(&self.detect_local(fixture), &fixture.node())
    }

    pub fn local_node(&self, fixture: &Fixture) -> LocalNode {
        LocalNode::new(&fixture.node(), &fixture.local_addresses(), &self.options())
    }

    /// Every Service with its slices.
    pub fn services(&self) -> Vec<(Service, Vec<EndpointSlice>)> {
        let services = self.services.iter();
        services
            .map(|row| {
                let service = row.model();
                let slices = slices(&service.name, &row.endpoints);
                (service, slices)
            })
            .collect()
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct ScenarioConfig {
    #[serde(rename = "nodePortCIDRs")]
    node_port_cidrs: Option<Vec<IpNet>>,
    masquerade_all: bool,
    local_detector: LocalDetectorRow,
}

/// Absent means the fixture's pod networks, null means no detector.
#[derive(Default)]
enum LocalDetectorRow {
    #[default]
    PodCidr,
    None,
}

impl<'de> Deserialize<'de> for LocalDetectorRow {
    fn deserialize<D: Deserializer<'de>>(row: D) -> Result<Self, D::Error> {
        <()>::deserialize(row).map(|()| Self::None)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Packet {
    pub name: String,
    pub protocol: String,
    #[serde(rename = "srcIP")]
    pub source: IpAddr,
    #[serde(rename = "dstIP")]
    pub destination: IpAddr,
    #[serde(rename = "dstPort")]
    pub port: u16,
    pub expect: ExpectedVerdict,
}

impl Packet {
    pub fn protocol(&self) -> Protocol {
        protocol(&self.protocol)
    }
}
