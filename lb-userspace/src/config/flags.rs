//! Every setting as a command line flag; the configuration file has the same names.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::{ArgAction, Args};
use ipnet::IpNet;
use lb_objects::ObjectName;

use super::{
    limits::ResourceLimit,
    values::{
        DetectLocalMode, FailingEndpoints, FeatureGate, Handover, NetfilterMode, NodePortAddress,
        PortRange, SocketLb, XdpMode, api_server_url, duration, healthz_address, maglev_table_size,
        metrics_address, object_name, positive_duration,
    },
};
use crate::source::SourceSpec;

/// Where the agent listens for local commands unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/node-lb/agent.sock";

/// The settings as given; [`Config`](super::Config) is what they amount to.
///
/// Flags that kube-proxy also has carry its names and meanings.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Settings")]
pub struct Flags {
    /// YAML file of settings named like these flags; a flag on the command line wins
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Where Services, EndpointSlices and Nodes come from: the cluster's API server or a directory
    /// of manifests [default: kubernetes]
    #[arg(long, value_name = "kubernetes|dir:PATH")]
    pub source: Option<SourceSpec>,

    /// How to reach the API server and who to be there [default: the pod's service account]
    #[arg(long, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,

    /// Address of the API server, instead of the kubeconfig's or the pod's
    #[arg(long, value_name = "URL", value_parser = api_server_url)]
    pub master: Option<hyper::Uri>,

    /// Name of this node [default: the host name]
    #[arg(long, alias = "hostname-override", value_name = "NAME")]
    pub node: Option<String>,

    /// Address of this node, besides those of its Node object; may be repeated
    #[arg(long = "node-address", value_name = "IP", value_delimiter = ',')]
    pub node_addresses: Vec<IpAddr>,

    /// Where node ports are accepted: `primary` (the node IP) or networks. A family without a
    /// network in the list accepts on all its addresses
    #[arg(
        long,
        value_name = "primary|CIDR,..",
        value_delimiter = ',',
        default_value = "primary"
    )]
    pub nodeport_addresses: Vec<NodePortAddress>,

    /// How local pods are told from everyone else
    #[arg(
        long,
        value_name = "MODE",
        value_enum,
        ignore_case = true,
        default_value = "ClusterCIDR"
    )]
    pub detect_local_mode: DetectLocalMode,

    /// Networks of the cluster's pods, at most one per family
    #[arg(long, value_name = "CIDR,..", value_delimiter = ',')]
    pub cluster_cidr: Vec<IpNet>,

    /// Bridge that pods are attached to, for BridgeInterface
    #[arg(long, value_name = "NAME")]
    pub pod_bridge_interface: Option<String>,

    /// Start of the names of pod interfaces, for InterfaceNamePrefix
    #[arg(long, value_name = "PREFIX")]
    pub pod_interface_name_prefix: Option<String>,

    /// Source-NAT all traffic to cluster IPs
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true"
    )]
    pub masquerade_all: bool,

    /// Networks that externalIPs of Services have to be in; others are not served [default: all are,
    /// as by kube-proxy]
    #[arg(long, value_name = "CIDR,..", value_delimiter = ',')]
    pub external_ip_cidrs: Vec<IpNet>,

    /// Services that the rest of the cluster depends on: they go first where a map is short of room
    /// or two claim an address. default/kubernetes and the cluster's DNS always are
    #[arg(long, value_name = "NAMESPACE/NAME,..", value_delimiter = ',', value_parser = object_name)]
    pub essential_services: Vec<ObjectName>,

    /// Most that one Service may have: service-ports, addresses (times ports), endpoints (times
    /// ports), maglev-tables; 0 means no limit [default: an eighth of what the map holds]
    #[arg(long, value_name = "RESOURCE=NUMBER,..", value_delimiter = ',')]
    pub service_limits: Vec<ResourceLimit>,

    /// The same for all Services of a namespace [default: half of what the map holds]
    #[arg(long, value_name = "RESOURCE=NUMBER,..", value_delimiter = ',')]
    pub namespace_limits: Vec<ResourceLimit>,

    /// Feature gates: AllowServiceExternalIPs and PreferSameTrafficDistribution as in kube-proxy,
    /// and PerRequestDeadline for --request-timeout; all on
    #[arg(long, value_name = "NAME=BOOL,..", value_delimiter = ',')]
    pub feature_gates: Vec<FeatureGate>,

    /// Where /healthz and /livez are served
    #[arg(
        long,
        value_name = "IP[:PORT]",
        value_parser = healthz_address,
        default_value = "0.0.0.0:10256"
    )]
    pub healthz_bind_address: SocketAddr,

    /// Where /metrics is served
    #[arg(
        long,
        value_name = "IP[:PORT]",
        value_parser = metrics_address,
        default_value = "127.0.0.1:10249"
    )]
    pub metrics_bind_address: SocketAddr,

    /// Where `node-lb status` finds the agent; only root may ask
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,

    /// How long a request to the agent's HTTP servers may take, watches and the like excepted; a
    /// request may ask for less by ?timeout=
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = "10s")]
    pub request_timeout: Duration,

    /// How many reading requests the agent's HTTP servers serve at a time; 0 means no limit
    #[arg(long, value_name = "REQUESTS", default_value = "100")]
    pub max_requests_inflight: usize,

    /// How many other requests the agent's HTTP servers serve at a time; 0 means no limit
    #[arg(long, value_name = "REQUESTS", default_value = "50")]
    pub max_mutating_requests_inflight: usize,

    /// How long /readyz waits, after the start, for every resource to be synchronised; later that
    /// no longer counts
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1m")]
    pub cache_initialization_timeout: Duration,

    /// How long an established TCP flow may be idle, here and in the kernel's conntrack; 0 means
    /// the default here and leaves the kernel's
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "24h")]
    pub conntrack_tcp_timeout_established: Duration,

    /// How long a TCP flow with one side closed may be idle, here and in the kernel's conntrack; 0
    /// means the default here and leaves the kernel's
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1h")]
    pub conntrack_tcp_timeout_close_wait: Duration,

    /// How long an unanswered UDP flow is kept; unless default or 0, in the kernel's conntrack, too
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub conntrack_udp_timeout: Duration,

    /// How long an answered UDP flow may be idle; unless default or 0, in the kernel's conntrack,
    /// too
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "120s")]
    pub conntrack_udp_timeout_stream: Duration,

    /// Room in the kernel's conntrack table, connections for each core; 0 leaves it as it is
    #[arg(long, value_name = "CONNECTIONS", default_value = "32768")]
    pub conntrack_max_per_core: u32,

    /// Least room in the kernel's conntrack table, however few the cores
    #[arg(long, value_name = "CONNECTIONS", default_value = "131072")]
    pub conntrack_min: u32,

    /// Have the kernel's conntrack take packets outside the TCP window, too
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true"
    )]
    pub conntrack_tcp_be_liberal: bool,

    /// External device to serve; may be repeated [default: those with a default route]
    #[arg(long = "device", value_name = "NAME", value_delimiter = ',')]
    pub devices: Vec<String>,

    /// Names of pod-side devices, with `*` for any text; may be repeated
    #[arg(
        long = "pod-device-pattern",
        value_name = "PATTERN",
        value_delimiter = ',',
        default_values = ["veth*", "cali*", "lxc*", "eni*", "azv*", "gke*"]
    )]
    pub pod_device_patterns: Vec<String>,

    /// How XDP is attached to external devices
    #[arg(long, value_name = "MODE", value_enum, default_value = "auto")]
    pub xdp_mode: XdpMode,

    /// Whose connections are translated at the socket
    #[arg(long, value_name = "WHO", value_enum, default_value = "host")]
    pub socket_lb: SocketLb,

    /// The cgroup whose processes' sockets are translated; by default the root of the cgroup v2
    /// hierarchy, wherever it is mounted
    #[arg(long, value_name = "PATH")]
    pub cgroup_path: Option<PathBuf>,

    /// Where maps and links are pinned
    #[arg(long, value_name = "PATH", default_value = lb_datapath::pins::DEFAULT_ROOT)]
    pub bpf_root: PathBuf,

    /// Source ports for source NAT; by default the largest range from 1024 on that has neither
    /// ports of the node's own connections (net.ipv4.ip_local_port_range) nor NodePorts
    #[arg(long, value_name = "FIRST-LAST")]
    pub snat_ports: Option<PortRange>,

    /// The API server's setting of the same name: the range that NodePorts come from
    #[arg(long, value_name = "FIRST-LAST", default_value = "30000-32767")]
    pub service_node_port_range: PortRange,

    /// Whether forwarded traffic passes the host's netfilter rules
    #[arg(long, value_name = "MODE", value_enum, default_value = "bypass")]
    pub netfilter: NetfilterMode,

    /// Whether another service proxy has connections on this node that are to end in peace (`in`),
    /// or is to take the new ones (`out`)
    #[arg(long, value_name = "DIRECTION", value_enum, default_value = "off")]
    pub handover: Handover,

    /// Whether new connections go to an endpoint that has just refused some, or not answered, while
    /// the Service has another
    #[arg(long, value_name = "CHOICE", value_enum, default_value = "avoid")]
    pub failing_endpoints: FailingEndpoints,

    /// How many flows there is room for
    #[arg(
        long,
        value_name = "FLOWS",
        value_parser = clap::value_parser!(u32).range(1024..=1 << 26),
        default_value = "262144"
    )]
    pub flow_table_size: u32,

    /// Entries in a Service's Maglev table, a prime number well above its endpoints
    #[arg(
        long,
        value_name = "ENTRIES",
        value_parser = maglev_table_size,
        default_value = "16381"
    )]
    pub maglev_table_size: u32,
}
