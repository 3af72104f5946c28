//! Every setting as a command line flag; the configuration file has the same names.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::{ArgAction, Args};
use ipnet::IpNet;
use lb_common::flow::SERVICE_BITS;
use lb_objects::ObjectName;

use super::{
    limits::ResourceLimit,
    map_sizes::MapSizes,
    source::SourceSpec,
    values::{
        AdmissionMode, DetectLocalMode, FailingEndpoints, FeatureGate, Handover, NetfilterMode,
        NodePortAddress, PortRange, Sctp, ServiceSeries, SocketLb, UnknownServicePorts, XdpMode,
        api_server_url, connections, duration, healthz_address, maglev_table_size, metrics_address,
        object_name, positive_duration, status_page_address,
    },
};

/// Where the agent listens for local commands unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/node-lb/agent.sock";

/// The variable that says where maps and links are pinned, unless a flag or the file does: in a
/// container, whatever command runs there finds them.
pub const BPF_ROOT: &str = "NODE_LB_BPF_ROOT";

/// The variable that says where the agent answers its pod's probes, for the same reason.
pub const PROBE_SOCKET: &str = "NODE_LB_PROBE_SOCKET";

/// The settings as given; [`Config`](super::Config) is what they amount to.
///
/// Flags that kube-proxy also has carry its names and meanings.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Settings")]
pub struct Flags {
    /// YAML file with settings, named like these flags; a flag on the command line wins over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Source of Services, EndpointSlices and Nodes: the cluster's API server, or a directory of
    /// manifests [default: kubernetes]
    #[arg(long, value_name = "kubernetes|dir:PATH")]
    pub source: Option<SourceSpec>,

    /// File with the API server's address and credentials [default: the pod's service account]
    #[arg(long, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,

    /// Address of the API server, in place of the one in the kubeconfig or the pod
    #[arg(long, value_name = "URL", value_parser = api_server_url)]
    pub master: Option<hyper::Uri>,

    /// Name of this node's Node object [default: the host name]
    #[arg(long, alias = "hostname-override", value_name = "NAME")]
    pub node: Option<String>,

    /// Address of this node, in addition to those in its Node object; may be repeated
    #[arg(long = "node-address", value_name = "IP", value_delimiter = ',')]
    pub node_addresses: Vec<IpAddr>,

    /// Addresses that accept node ports: `primary` (the node IP) or networks. If the list has no
    /// network of a family, all addresses of that family accept them, but for link-local and loopback
    /// ones, which only networks of their kind name
    #[arg(
        long,
        value_name = "primary|CIDR,..",
        value_delimiter = ',',
        default_value = "primary"
    )]
    pub nodeport_addresses: Vec<NodePortAddress>,

    /// How to tell local pods from other sources
    #[arg(
        long,
        value_name = "MODE",
        value_enum,
        ignore_case = true,
        default_value = "auto"
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

    /// Networks that externalIPs of Services have to be in; others are not served [default: all
    /// are, as by kube-proxy]
    #[arg(long, value_name = "CIDR,..", value_delimiter = ',')]
    pub external_ip_cidrs: Vec<IpNet>,

    /// Services that the rest of the cluster depends on: they go first where a map is short of room
    /// or two claim an address. default/kubernetes and the cluster's DNS always are
    #[arg(long, value_name = "NAMESPACE/NAME,..", value_delimiter = ',', value_parser = object_name)]
    pub essential_services: Vec<ObjectName>,

    /// How many connections to Services this node lets in at a time; beyond them new ones are refused.
    /// Connections of the node's own processes are not counted; 0: no limit
    #[arg(
        long,
        value_name = "CONNECTIONS",
        value_parser = connections,
        allow_negative_numbers = true,
        default_value = "0"
    )]
    pub max_connections: u32,

    /// Whether FlowSchemas take connections to Services, and PriorityLevels limit them. The levels
    /// share the seats that --max-connections says
    #[arg(long, value_name = "MODE", value_enum, default_value = "off")]
    pub admission: AdmissionMode,

    /// File or directory with PriorityLevels and FlowSchemas, which is followed [default: those of
    /// the API server, or the mandatory ones only]
    #[arg(long, value_name = "PATH")]
    pub admission_objects: Option<PathBuf>,

    /// Most that one Service may have: service-ports, addresses (times ports), endpoints (times
    /// ports), maglev-tables, source-ranges (in each family), connection-limits; 0 means no limit
    /// [default: an eighth of what the map holds]
    #[arg(long, value_name = "RESOURCE=NUMBER,..", value_delimiter = ',')]
    pub service_limits: Vec<ResourceLimit>,

    /// The same for all Services of a namespace [default: half of what the map holds]
    #[arg(long, value_name = "RESOURCE=NUMBER,..", value_delimiter = ',')]
    pub namespace_limits: Vec<ResourceLimit>,

    /// Feature gates: AllowServiceExternalIPs and PreferSameTrafficDistribution as in kube-proxy,
    /// and PerRequestDeadline for --request-timeout; all on
    #[arg(long, value_name = "NAME=BOOL,..", value_delimiter = ',')]
    pub feature_gates: Vec<FeatureGate>,

    /// Address that serves /healthz, /livez and /readyz
    #[arg(
        long,
        value_name = "IP[:PORT]",
        value_parser = healthz_address,
        default_value = "0.0.0.0:10256"
    )]
    pub healthz_bind_address: SocketAddr,

    /// Address that serves /metrics
    #[arg(
        long,
        value_name = "IP[:PORT]",
        value_parser = metrics_address,
        default_value = "127.0.0.1:10249"
    )]
    pub metrics_bind_address: SocketAddr,

    /// Address that serves the status page, to whoever can reach it: it shows Services, addresses of
    /// clients and endpoints, and can change nothing. The --socket serves it as well [default: none]
    #[arg(
        long,
        value_name = "IP[:PORT]",
        value_parser = status_page_address
    )]
    pub status_page_bind_address: Option<SocketAddr>,

    /// Service ports that have metrics of their own: all, none, or this number of the busiest ones,
    /// with a sum of the others
    #[arg(long, value_name = "all|off|NUMBER", default_value_t)]
    pub service_metrics: ServiceSeries,

    /// How often the agent compares the maps, the attached programs and some plans with what they should
    /// be, and puts right what differs; less often where that would take more than 0.7 % of its time. 0: never
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5s")]
    pub verification_interval: Duration,

    /// How long the agent rests each time that its programs have shown, with test packets to every
    /// address of every Service, that they do what the Services ask for; 0: there are no test packets
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1m")]
    pub test_packet_interval: Duration,

    /// Socket on which the agent answers `node-lb status`; only root may use it
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,

    /// If another agent runs on this node, take its place as soon as this one knows the cluster.
    /// The other one stands by then
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true"
    )]
    pub take_over: bool,

    /// Socket on which this very agent answers `node-lb probe`, which its pod's probes run; only
    /// root may use it [default: none]
    #[arg(long, value_name = "PATH", env = PROBE_SOCKET)]
    pub probe_socket: Option<PathBuf>,

    /// How long a request to the agent's HTTP servers may take, except for streams such as
    /// watches; a request may ask for less with ?timeout=
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = "10s")]
    pub request_timeout: Duration,

    /// How many reading requests the agent's HTTP servers serve at a time; 0: no limit
    #[arg(long, value_name = "REQUESTS", default_value = "100")]
    pub max_requests_inflight: usize,

    /// How many other requests the agent's HTTP servers serve at a time; 0: no limit
    #[arg(long, value_name = "REQUESTS", default_value = "50")]
    pub max_mutating_requests_inflight: usize,

    /// How long /readyz waits, after the start, until every resource is synchronised; after that
    /// time it no longer checks this
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1m")]
    pub cache_initialization_timeout: Duration,

    /// How long an established TCP flow may be idle, in node-lb and in the kernel's conntrack; 0:
    /// node-lb uses the default, and the kernel's value stays
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "24h")]
    pub conntrack_tcp_timeout_established: Duration,

    /// How long a TCP flow with one side closed may be idle, in node-lb and in the kernel's
    /// conntrack; 0: node-lb uses the default, and the kernel's value stays
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1h")]
    pub conntrack_tcp_timeout_close_wait: Duration,

    /// How long an unanswered UDP flow is kept. The kernel's conntrack gets this value too, unless
    /// it is 0 or the default
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    pub conntrack_udp_timeout: Duration,

    /// How long an answered UDP flow may be idle. The kernel's conntrack gets this value too,
    /// unless it is 0 or the default
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "120s")]
    pub conntrack_udp_timeout_stream: Duration,

    /// Room in the kernel's conntrack table, in connections per core; 0: it stays as it is
    #[arg(long, value_name = "CONNECTIONS", default_value = "32768")]
    pub conntrack_max_per_core: u32,

    /// Smallest room in the kernel's conntrack table, on a node with few cores
    #[arg(long, value_name = "CONNECTIONS", default_value = "131072")]
    pub conntrack_min: u32,

    /// Let the kernel's conntrack also accept packets outside the TCP window
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

    /// External device to serve; may be repeated [default: those with a default route or this
    /// node's address]
    #[arg(long = "device", value_name = "NAME", value_delimiter = ',')]
    pub devices: Vec<String>,

    /// Names of the devices that lead to pods, with `*` for any text; may be repeated
    #[arg(
        long = "pod-device-pattern",
        value_name = "PATTERN",
        value_delimiter = ',',
        default_values = ["veth*", "cali*", "lxc*", "eni*", "azv*", "gke*"]
    )]
    pub pod_device_patterns: Vec<String>,

    /// Names of devices that get no programs, with `*` for any text; may be repeated
    #[arg(long = "ignored-device", value_name = "PATTERN", value_delimiter = ',')]
    pub ignored_devices: Vec<String>,

    /// How to attach XDP programs to external devices
    #[arg(long, value_name = "MODE", value_enum, default_value = "auto")]
    pub xdp_mode: XdpMode,

    /// Which processes' connections are translated at the socket
    #[arg(long, value_name = "WHO", value_enum, default_value = "host")]
    pub socket_lb: SocketLb,

    /// Cgroup whose processes' sockets are translated [default: the root of the mounted cgroup v2
    /// hierarchy]
    #[arg(long, value_name = "PATH")]
    pub cgroup_path: Option<PathBuf>,

    /// Directory in which maps and links are pinned
    #[arg(
        long,
        value_name = "PATH",
        env = BPF_ROOT,
        default_value = lb_datapath::pins::DEFAULT_ROOT
    )]
    pub bpf_root: PathBuf,

    /// Source ports for source NAT [default: the largest range from 1024 on without NodePorts and
    /// without ports of the node's own connections (net.ipv4.ip_local_port_range)]
    #[arg(long, value_name = "FIRST-LAST")]
    pub snat_ports: Option<PortRange>,

    /// Range of NodePorts, as in the API server's setting of the same name
    #[arg(long, value_name = "FIRST-LAST", default_value = "30000-32767")]
    pub service_node_port_range: PortRange,

    /// Whether forwarded traffic without source NAT passes the host's netfilter rules
    #[arg(long, value_name = "MODE", value_enum, default_value = "bypass")]
    pub netfilter: NetfilterMode,

    /// Which proxy opens new connections, while another service proxy on this node still has
    /// connections (`in`), or takes the new ones (`out`)
    #[arg(long, value_name = "DIRECTION", value_enum, default_value = "off")]
    pub handover: Handover,

    /// Whether new connections avoid an endpoint that has just refused connections, or has not
    /// answered, while the Service has another endpoint
    #[arg(long, value_name = "CHOICE", value_enum, default_value = "avoid")]
    pub failing_endpoints: FailingEndpoints,

    /// Whether ClusterIPs refuse new connections to ports that they do not have, and those to addresses
    /// in a ServiceCIDR that no Service has are dropped
    #[arg(long, value_name = "CHOICE", value_enum, default_value = "reject")]
    pub unknown_service_ports: UnknownServicePorts,

    /// Whether Services of SCTP are served
    #[arg(long, value_name = "CHOICE", value_enum, default_value = "on")]
    pub sctp: Sctp,

    /// How many flows there is room for
    #[arg(
        long,
        value_name = "FLOWS",
        value_parser = clap::value_parser!(u32).range(1024..=1 << 26),
        default_value = "262144"
    )]
    pub flow_table_size: u32,

    /// How many addresses of this node there is room for. Packets from an address without room
    /// count as packets from outside
    #[arg(
        long,
        value_name = "ADDRESSES",
        value_parser = clap::value_parser!(u32).range(16..=1 << 20),
        default_value = "4096"
    )]
    pub local_address_table_size: u32,

    /// How many service ports there is room for: each port of a Service, in each family
    #[arg(
        long,
        value_name = "PORTS",
        value_parser = clap::value_parser!(u32).range(16..=1 << SERVICE_BITS),
        default_value_t = MapSizes::DEFAULT.service_ports
    )]
    pub service_port_table_size: u32,

    /// How many addresses of Services (times ports) there is room for, in each family
    #[arg(
        long,
        value_name = "ADDRESSES",
        value_parser = clap::value_parser!(u32).range(16..=1 << 24),
        default_value_t = MapSizes::DEFAULT.addresses
    )]
    pub address_table_size: u32,

    /// How many endpoints (times ports) there is room for
    #[arg(
        long,
        value_name = "ENDPOINTS",
        value_parser = clap::value_parser!(u32).range(16..=1 << 23),
        default_value_t = MapSizes::DEFAULT.endpoints
    )]
    pub endpoint_table_size: u32,

    /// How many Maglev tables there is room for [default: as many as 4,194,304 entries make: 256 of
    /// the default size]
    #[arg(
        long,
        value_name = "TABLES",
        value_parser = clap::value_parser!(u32).range(1..=1 << 16)
    )]
    pub maglev_tables: Option<u32>,

    /// How many networks of loadBalancerSourceRanges there is room for
    #[arg(
        long,
        value_name = "NETWORKS",
        value_parser = clap::value_parser!(u32).range(16..=1 << 22),
        default_value_t = MapSizes::DEFAULT.source_ranges
    )]
    pub source_range_table_size: u32,

    /// Entries in a Service's Maglev table: a prime number, much larger than its number of
    /// endpoints
    #[arg(
        long,
        value_name = "ENTRIES",
        value_parser = maglev_table_size,
        default_value = "16381"
    )]
    pub maglev_table_size: u32,
}
