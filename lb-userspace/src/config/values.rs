//! The types of single settings, and how their text is read.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    str::FromStr,
    time::Duration,
};

use clap::ValueEnum;
use ipnet::IpNet;
use lb_objects::ObjectName;

/// Port of the agent's own health endpoint.
const HEALTHZ_PORT: u16 = 10256;
/// Port of the metrics endpoint.
const METRICS_PORT: u16 = 10249;
/// Port of the status page: no component of Kubernetes listens there.
const STATUS_PAGE_PORT: u16 = 10246;
/// The largest Maglev table. For a Service with more endpoints than a hundredth of this, use
/// random.
const MAX_MAGLEV_TABLE: u32 = 131_071;

/// One entry of `--nodeport-addresses`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePortAddress {
    /// The node IP of each family.
    Primary,
    Network(IpNet),
}

impl FromStr for NodePortAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "primary" {
            return Ok(Self::Primary);
        }
        let network = text
            .parse()
            .map_err(|_| "write `primary` or networks like 192.0.2.0/24")?;
        Ok(Self::Network(network))
    }
}

/// What is done about the flow schemas and priority levels of connection admission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AdmissionMode {
    /// Nothing
    #[default]
    Off,
    /// Connections are counted by them, and all are let in
    Audit,
    /// Levels have limits, beyond which connections are refused
    Enforce,
}

impl AdmissionMode {
    /// As the setting has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Audit => "audit",
            Self::Enforce => "enforce",
        }
    }
}

/// How many service ports have metrics of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceSeries {
    #[default]
    All,
    /// None, and no sum of them either: nothing is read.
    Off,
    /// So many, and the sum of the others.
    Limit(NonZeroU32),
}

impl FromStr for ServiceSeries {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "all" => Ok(Self::All),
            "off" => Ok(Self::Off),
            number => match number.parse() {
                Ok(limit) => Ok(Self::Limit(limit)),
                Err(_) => Err("write `all`, `off` or a number of service ports from 1 on"),
            },
        }
    }
}

impl fmt::Display for ServiceSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Off => f.write_str("off"),
            Self::Limit(limit) => limit.fmt(f),
        }
    }
}

/// Reads the address of an API server.
///
/// # Errors
/// If it is not an absolute URL of a web server.
pub fn api_server_url(text: &str) -> Result<hyper::Uri, String> {
    let url = text.parse::<hyper::Uri>().ok();
    url.filter(|url| matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some())
        .ok_or_else(|| "write a URL like https://192.0.2.1:6443".to_owned())
}

/// Reads `NAMESPACE/NAME`.
///
/// # Errors
/// If it is not two names.
pub fn object_name(text: &str) -> Result<ObjectName, String> {
    ObjectName::parse(text)
        .ok_or_else(|| "write NAMESPACE/NAME, like openshift-dns/dns-default".to_owned())
}

/// An inclusive range of ports, `FIRST-LAST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl PortRange {
    /// The number of ports.
    pub fn count(self) -> u32 {
        u32::from(self.last) - u32::from(self.first) + 1
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bounds = text
            .split_once('-')
            .and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
        match bounds {
            Some((first, last)) if 0 < first && first <= last => Ok(Self { first, last }),
            _ => Err("write FIRST-LAST, two ports from 1 to 65535, the lower one first".into()),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// A feature gate, `NAME=true|false`: one of those of kube-proxy that node-lb knows, or one of its
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureGate {
    pub gate: Gate,
    pub enabled: bool,
}

/// The feature gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// externalIPs become frontends.
    AllowServiceExternalIps,
    /// Requests to the agent's HTTP servers have deadlines (KEP-4460).
    PerRequestDeadline,
    /// Node hints of endpoints are honoured.
    PreferSameTrafficDistribution,
}

impl FromStr for FeatureGate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, enabled) = text
            .split_once('=')
            .ok_or("write NAME=true or NAME=false")?;
        let gate = match name {
            "AllowServiceExternalIPs" => Gate::AllowServiceExternalIps,
            "PerRequestDeadline" => Gate::PerRequestDeadline,
            "PreferSameTrafficDistribution" => Gate::PreferSameTrafficDistribution,
            _ => {
                return Err(format!(
                    "no such gate {name:?}; known are AllowServiceExternalIPs, \
                     PerRequestDeadline and PreferSameTrafficDistribution"
                ));
            }
        };
        let enabled = enabled
            .parse()
            .map_err(|_| format!("{name} is either true or false"))?;
        Ok(Self { gate, enabled })
    }
}

/// `--detect-local-mode`: how to tell local pods from other sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DetectLocalMode {
    #[value(
        name = "auto",
        help = "As ClusterCIDR; in a family that --cluster-cidr has no network of, as NodeCIDR"
    )]
    Auto,
    #[value(name = "ClusterCIDR", help = "The source is in --cluster-cidr")]
    ClusterCidr,
    #[value(name = "NodeCIDR", help = "The source is in this node's podCIDRs")]
    NodeCidr,
    #[value(
        name = "BridgeInterface",
        help = "The packet arrives on --pod-bridge-interface"
    )]
    BridgeInterface,
    #[value(
        name = "InterfaceNamePrefix",
        help = "The packet arrives on an interface with --pod-interface-name-prefix"
    )]
    InterfaceNamePrefix,
    #[value(name = "none", help = "No source is a local pod")]
    None,
}

/// How XDP programs are attached to external devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum XdpMode {
    /// For each device native XDP, else generic XDP, else TC
    Auto,
    /// XDP in the driver, or no XDP
    Native,
    /// XDP in the network stack
    Generic,
    /// TC in place of XDP
    Off,
}

/// Whose sockets are translated at connect time instead of packet by packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SocketLb {
    /// Processes and pods in the host's network namespace
    Host,
    /// All processes on the node, including pods
    All,
    /// No process
    Off,
}

/// What forwarded service traffic has to do with the host's netfilter rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NetfilterMode {
    /// Both directions of a flow bypass these rules
    Bypass,
    /// Both directions of a flow pass these rules
    Traverse,
}

/// How traffic to Services is shared with another service proxy on this node, such as kube-proxy,
/// while one takes over from the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Handover {
    /// node-lb handles all traffic
    Off,
    /// node-lb opens new connections; the other proxy's TCP connections go on
    In,
    /// The other proxy opens new connections; node-lb's connections go on
    Out,
}

/// What becomes of endpoints that refuse connections or do not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FailingEndpoints {
    /// New connections go to other endpoints for some seconds
    Avoid,
    /// These endpoints are chosen like any other
    Use,
}

/// What becomes of new connections to ports that a ClusterIP does not have, and to addresses in a
/// ServiceCIDR that no Service has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UnknownServicePorts {
    /// The ports refuse them; those to such addresses are dropped
    Reject,
    /// They are left to the node's routes, as by kube-proxy's iptables mode
    Ignore,
}

/// What becomes of SCTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sctp {
    /// It is translated, as TCP and UDP are
    On,
    /// It passes untouched, whatever its Services say
    Off,
}

/// A duration as Go writes it: `24h`, `1h30m`, `500ms`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write 24h, 1h30m or 500ms"))
}

/// A number of connections; 0 means no limit.
pub(super) fn connections(text: &str) -> Result<u32, String> {
    const MOST: u32 = i32::MAX as u32;
    match text.parse::<i64>() {
        Ok(number) if number < 0 => Err("must not be negative; 0 means no limit".to_owned()),
        Ok(number) => match u32::try_from(number) {
            Ok(number) if number <= MOST => Ok(number),
            _ => Err(format!("must be at most {MOST}")),
        },
        Err(_) => Err(format!("must be a whole number from 0 to {MOST}")),
    }
}

/// As [`duration`], but not zero.
pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|duration| match duration.is_zero() {
        true => Err("must be more than zero".to_owned()),
        false => Ok(duration),
    })
}

pub(super) fn healthz_address(text: &str) -> Result<SocketAddr, String> {
    bind_address(text, HEALTHZ_PORT)
}

pub(super) fn metrics_address(text: &str) -> Result<SocketAddr, String> {
    bind_address(text, METRICS_PORT)
}

pub(super) fn status_page_address(text: &str) -> Result<SocketAddr, String> {
    bind_address(text, STATUS_PAGE_PORT)
}

pub(super) fn maglev_table_size(text: &str) -> Result<u32, String> {
    let size = text.parse().map_err(|_| "not a number".to_owned())?;
    match size {
        2..=MAX_MAGLEV_TABLE if is_prime(size) => Ok(size),
        _ => Err(format!("must be a prime number up to {MAX_MAGLEV_TABLE}")),
    }
}

/// `IP:PORT`, or an IP alone with the default port.
fn bind_address(text: &str, default_port: u16) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, default_port));
    }
    text.parse()
        .map_err(|_| format!("write IP or IP:PORT, like 127.0.0.1:{default_port}"))
}

fn is_prime(number: u32) -> bool {
    number >= 2
        && (2..)
            .take_while(|divisor| divisor * divisor <= number)
            .all(|divisor| !number.is_multiple_of(divisor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_in_go() {
        for (text, seconds) in [("24h", 86_400), ("1h30m", 5_400), ("1.5h", 5_400), ("0", 0)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "24", "-1h", "h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bind_addresses_may_leave_the_port_out() {
        for (text, expected) in [
            ("127.0.0.1", "127.0.0.1:10249"),
            ("::1", "[::1]:10249"),
            ("127.0.0.1:9", "127.0.0.1:9"),
            ("[::]:9", "[::]:9"),
        ] {
            assert_eq!(metrics_address(text).unwrap().to_string(), expected);
        }
        for text in ["", "localhost:9", ":10249", "127.0.0.1:70000"] {
            assert!(metrics_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn port_ranges() {
        let range: PortRange = "10000-29999".parse().unwrap();
        assert_eq!((range.first, range.last), (10_000, 29_999));
        for text in ["", "1", "2-1", "0-5", "1-70000", "a-b", "1-2-3"] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
    }

    #[test]
    fn maglev_tables_have_prime_sizes() {
        assert_eq!(maglev_table_size("16381"), Ok(16_381));
        for text in ["0", "1", "16384", "131101", "-3", "x"] {
            assert!(maglev_table_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn feature_gates() {
        let gate: FeatureGate = "AllowServiceExternalIPs=false".parse().unwrap();
        assert_eq!(
            (gate.gate, gate.enabled),
            (Gate::AllowServiceExternalIps, false)
        );
        for text in [
            "AllowServiceExternalIPs",
            "AllowServiceExternalIPs=maybe",
            "Other=true",
        ] {
            assert!(text.parse::<FeatureGate>().is_err(), "{text}");
        }
    }
}
