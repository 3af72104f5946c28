//! Writes the node's settings for the programs: `CONFIG`.

use std::net::IpAddr;

use lb_common::abi::{self, config_flag};
use lb_objects::IpFamily;

use crate::{
    config::{
        self, AdmissionMode, FailingEndpoints, Handover, NetfilterMode, PortRange, Sctp, SocketLb,
        UnknownServicePorts,
    },
    plan::{LocalDetector, LocalNode},
};

/// The most ICMP answers per second and CPU.
const REJECT_RATE: u32 = 1000;
/// A prefix length that no network has. It means that there is no network.
const NO_NETWORK: u32 = 255;

/// Settings that decide about packets, besides plans.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    pub node: &'a LocalNode,
    pub detector: &'a LocalDetector,
    /// [`config_flag`]s without those of the detector.
    pub flags: u32,
    /// Source ports for source NAT.
    pub ports: PortRange,
}

/// The node's addresses in a record that [`Settings::write`] has written.
pub fn node_addresses(record: &abi::Config) -> Vec<IpAddr> {
    let addresses = [record.node4.into(), record.node6.into()];
    let known = addresses.into_iter();
    known.filter(|ip: &IpAddr| !ip.is_unspecified()).collect()
}

impl<'a> Settings<'a> {
    /// The settings of a configuration.
    pub fn new(config: &config::Config, node: &'a LocalNode, detector: &'a LocalDetector) -> Self {
        Self {
            node,
            detector,
            flags: flags(config),
            ports: config.datapath.snat_ports,
        }
    }

    /// Writes them into a record. Its other fields depend on the machine: clock, secret, sizes.
    pub fn write(&self, record: &mut abi::Config) {
        let Self {
            node,
            detector,
            flags,
            ports,
        } = *self;
        let (pods4, pods6) = (pods(detector, IpFamily::V4), pods(detector, IpFamily::V6));
        record.flags = flags | detector_flag(detector);
        record.node4 = match node.ip(IpFamily::V4) {
            Some(IpAddr::V4(ip)) => ip.into(),
            _ => Default::default(),
        };
        record.node6 = match node.ip(IpFamily::V6) {
            Some(IpAddr::V6(ip)) => ip.into(),
            _ => Default::default(),
        };
        (record.pods4, record.pods4_prefix) = match pods4 {
            Some((IpAddr::V4(network), prefix)) => (network.into(), prefix),
            _ => (Default::default(), NO_NETWORK),
        };
        (record.pods6, record.pods6_prefix) = match pods6 {
            Some((IpAddr::V6(network), prefix)) => (network.into(), prefix),
            _ => (Default::default(), NO_NETWORK),
        };
        record.snat_first = ports.first.into();
        record.snat_count = ports.count();
        record.reject_rate = REJECT_RATE;
    }
}

/// The [`config_flag`]s of a configuration.
fn flags(config: &config::Config) -> u32 {
    let datapath = &config.datapath;
    let flags = [
        (config_flag::MASQUERADE_ALL, config.masquerade_all),
        (
            config_flag::BYPASS,
            datapath.netfilter == NetfilterMode::Bypass,
        ),
        (
            config_flag::SOCKETS_OF_PODS,
            datapath.socket_lb == SocketLb::All,
        ),
        (config_flag::HANDOVER_IN, datapath.handover == Handover::In),
        (
            config_flag::HANDOVER_OUT,
            datapath.handover == Handover::Out,
        ),
        (
            config_flag::AVOID_FAILING,
            datapath.failing_endpoints == FailingEndpoints::Avoid,
        ),
        (
            config_flag::REFUSE_UNKNOWN,
            datapath.unknown_service_ports == UnknownServicePorts::Reject,
        ),
        (config_flag::SCTP, datapath.sctp == Sctp::On),
        (
            config_flag::CONNECTION_LIMIT,
            config.max_connections != 0 && config.admission.mode == AdmissionMode::Off,
        ),
    ];
    let set = flags.into_iter().filter(|(_, set)| *set);
    set.fold(0, |flags, (flag, _)| flags | flag)
}

fn detector_flag(detector: &LocalDetector) -> u32 {
    match detector {
        LocalDetector::Networks(_) => config_flag::DETECT_BY_CIDR,
        LocalDetector::Interface(_) | LocalDetector::InterfacePrefix(_) => {
            config_flag::DETECT_BY_DEVICE
        }
        LocalDetector::None => 0,
    }
}

/// The network by which the detector recognises local pods of this family.
fn pods(detector: &LocalDetector, family: IpFamily) -> Option<(IpAddr, u32)> {
    let LocalDetector::Networks(networks) = detector else {
        return None;
    };
    let mut networks = networks.iter();
    let network = networks.find(|network| IpFamily::of_net(**network) == family)?;
    Some((network.network(), network.prefix_len().into()))
}
