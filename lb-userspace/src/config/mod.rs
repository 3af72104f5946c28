//! The agent's configuration, from flags and a file, the same for all commands.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use ipnet::IpNet;
use lb_datapath::devices::DeviceNames;
use lb_objects::{IpFamily, Node};

pub use self::{
    flags::{BPF_ROOT, DEFAULT_SOCKET, Flags, PROBE_SOCKET},
    limits::{Cap, Caps, MapLimits, Resource},
    map_sizes::MapSizes,
    source::{ApiAccess, SourceSpec},
    values::{
        AdmissionMode, DetectLocalMode, FailingEndpoints, FeatureGate, Gate, Handover,
        NetfilterMode, NodePortAddress, PortRange, Sctp, ServiceSeries, SocketLb,
        UnknownServicePorts, XdpMode, object_name,
    },
};
use crate::plan::{DetectLocal, NodePortAddresses, PlanOptions};

mod configz;
pub mod file;
mod flags;
mod limits;
mod map_sizes;
pub mod snat_ports;
mod source;
#[cfg(test)]
mod tests;
mod values;

/// The settings after they have been checked against each other.
#[derive(Clone, Debug)]
pub struct Config {
    pub source: SourceSpec,
    /// How to reach the API server, if it is the source.
    pub api_access: ApiAccess,
    /// Name of this node's Node object.
    pub node_name: String,
    /// Addresses of this node besides those of its Node object.
    pub node_addresses: Vec<IpAddr>,
    pub plan: PlanOptions,
    /// What one Service and one namespace may take of the maps.
    pub limits: MapLimits,
    /// The most connections that the node lets in at a time; 0 means no limit.
    pub max_connections: u32,
    pub admission: AdmissionConfig,
    pub detect_local: DetectLocal,
    /// The cluster's pod networks, if configured.
    pub cluster_networks: Vec<IpNet>,
    pub masquerade_all: bool,
    pub healthz_bind_address: SocketAddr,
    pub metrics_bind_address: SocketAddr,
    /// Where the status page is served, besides the socket.
    pub status_page_bind_address: Option<SocketAddr>,
    pub service_metrics: ServiceSeries,
    /// From the beginning of one comparison of the data plane to that of the next one; zero: there are none.
    pub verification_interval: Duration,
    /// Between rounds of test packets; zero: there are none.
    pub test_packet_interval: Duration,
    /// Where the agent listens for local commands.
    pub socket: PathBuf,
    /// Whether to take the place of an agent that runs.
    pub take_over: bool,
    /// Where the agent answers the probes of its pod.
    pub probe_socket: Option<PathBuf>,
    pub http: HttpConfig,
    pub timeouts: FlowTimeouts,
    pub conntrack: ConntrackConfig,
    pub datapath: DatapathConfig,
}

impl Config {
    /// Whether the objects of connection admission are the API server's.
    pub fn follows_admission(&self) -> bool {
        self.source == SourceSpec::Kubernetes
            && self.admission.mode != AdmissionMode::Off
            && self.admission.objects.is_none()
    }

    /// Whether the API server is asked for ServiceCIDRs.
    pub fn follows_service_cidrs(&self) -> bool {
        self.source == SourceSpec::Kubernetes
            && self.datapath.unknown_service_ports == UnknownServicePorts::Reject
    }

    /// Whether the API server is asked whose pods are, if a rule of connection admission depends on it.
    pub fn may_ask_for_pods(&self) -> bool {
        self.source == SourceSpec::Kubernetes && self.admission.mode != AdmissionMode::Off
    }

    /// This node as configured, completed by its Node object if there is one. The configured
    /// addresses come after the object's, so the node IP is the object's.
    pub fn this_node(&self, object: Option<&Node>) -> Node {
        let mut node = object.cloned().unwrap_or_default();
        node.name.clone_from(&self.node_name);
        for address in &self.node_addresses {
            if !node.addresses.contains(address) {
                node.addresses.push(*address);
            }
        }
        node
    }
}

/// What is done about flow schemas and priority levels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionConfig {
    pub mode: AdmissionMode,
    /// File or directory with the objects; without it they are the API server's, if that is the
    /// source.
    pub objects: Option<PathBuf>,
}

/// The limits of the agent's HTTP servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// The longest time that a request may take, unless it is a stream.
    pub request_timeout: Duration,
    /// Whether `request_timeout` is enforced: the feature gate `PerRequestDeadline`.
    pub per_request_deadline: bool,
    /// The most reading requests at a time; zero means no limit.
    pub max_requests_inflight: usize,
    /// The most other requests at a time; zero means no limit.
    pub max_mutating_requests_inflight: usize,
    /// How long readiness waits for the first synchronisation.
    pub cache_initialization_timeout: Duration,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            request_timeout: Duration::from_secs(10),
            per_request_deadline: true,
            max_requests_inflight: 100,
            max_mutating_requests_inflight: 50,
            cache_initialization_timeout: Duration::from_secs(60),
        }
    }
}

/// How long flows without traffic are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTimeouts {
    pub tcp_established: Duration,
    /// One side has closed, the other has not.
    pub tcp_close_wait: Duration,
    /// Nothing has come back yet.
    pub udp: Duration,
    /// Both directions have been seen.
    pub udp_stream: Duration,
}

impl Default for FlowTimeouts {
    fn default() -> Self {
        Self {
            tcp_established: Duration::from_secs(24 * 60 * 60),
            tcp_close_wait: Duration::from_secs(60 * 60),
            udp: Duration::from_secs(30),
            udp_stream: Duration::from_secs(120),
        }
    }
}

/// Settings for the kernel's own connection tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConntrackConfig {
    /// Connections per core for which there must be room; zero leaves the table's size as it is.
    pub max_per_core: u32,
    /// Connections for which there must be room in any case.
    pub min: u32,
    /// How long connections without traffic are kept; zero leaves the kernel's time as it is.
    pub timeouts: FlowTimeouts,
    /// Whether packets outside the TCP window count as part of the connection.
    pub tcp_be_liberal: bool,
}

impl Default for ConntrackConfig {
    fn default() -> Self {
        Self {
            max_per_core: 32 * 1024,
            min: 128 * 1024,
            timeouts: FlowTimeouts::default(),
            tcp_be_liberal: false,
        }
    }
}

/// Where the programs are attached, and the sizes of their tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatapathConfig {
    /// External devices; if empty, those with a default route.
    pub devices: Vec<String>,
    /// Names of pod-side devices; `*` stands for any text.
    pub pod_device_patterns: Vec<String>,
    /// Names of devices without programs; `*` stands for any text.
    pub ignored_devices: Vec<String>,
    pub xdp_mode: XdpMode,
    pub socket_lb: SocketLb,
    /// Sockets of processes in this cgroup are translated; `None` means the root of the hierarchy.
    pub cgroup_path: Option<PathBuf>,
    /// Where maps and links are pinned.
    pub bpf_root: PathBuf,
    /// Source ports for source NAT.
    pub snat_ports: PortRange,
    /// The range of NodePorts.
    pub node_ports: PortRange,
    pub netfilter: NetfilterMode,
    pub handover: Handover,
    pub failing_endpoints: FailingEndpoints,
    pub unknown_service_ports: UnknownServicePorts,
    pub sctp: Sctp,
    /// How many flows there is room for.
    pub flow_table_size: u32,
    /// The node's own addresses.
    pub local_address_table_size: u32,
    /// What the maps that hold Services have room for.
    pub map_sizes: MapSizes,
    /// Entries per Service, a prime number.
    pub maglev_table_size: u32,
}

impl DatapathConfig {
    /// By which names devices get their roles.
    pub fn device_names(&self) -> DeviceNames<'_> {
        DeviceNames {
            external: &self.devices,
            pods: &self.pod_device_patterns,
            ignored: &self.ignored_devices,
        }
    }
}

impl TryFrom<Flags> for Config {
    type Error = anyhow::Error;

    /// # Errors
    /// Names flags that contradict each other, or that need another flag.
    fn try_from(flags: Flags) -> anyhow::Result<Self> {
        let timeouts = FlowTimeouts::default();
        let given = FlowTimeouts {
            tcp_established: flags.conntrack_tcp_timeout_established,
            tcp_close_wait: flags.conntrack_tcp_timeout_close_wait,
            udp: flags.conntrack_udp_timeout,
            udp_stream: flags.conntrack_udp_timeout_stream,
        };
        Ok(Self {
            node_name: node_name(flags.node.as_deref())?,
            plan: plan_options(&flags)?,
            limits: MapLimits {
                service: limits::of_service(&flags.service_limits),
                namespace: limits::of_namespace(&flags.namespace_limits),
            },
            max_connections: flags.max_connections,
            admission: admission(&flags)?,
            http: http_config(&flags),
            detect_local: detect_local(&flags)?,
            cluster_networks: flags.cluster_cidr.clone(),
            source: flags.source.unwrap_or_default(),
            api_access: ApiAccess {
                kubeconfig: flags.kubeconfig,
                master: flags.master,
            },
            node_addresses: flags.node_addresses,
            masquerade_all: flags.masquerade_all,
            healthz_bind_address: flags.healthz_bind_address,
            metrics_bind_address: flags.metrics_bind_address,
            status_page_bind_address: flags.status_page_bind_address,
            verification_interval: flags.verification_interval,
            test_packet_interval: flags.test_packet_interval,
            service_metrics: flags.service_metrics,
            socket: flags.socket,
            take_over: flags.take_over,
            probe_socket: flags.probe_socket,
            timeouts: FlowTimeouts {
                tcp_established: nonzero_or(timeouts.tcp_established, given.tcp_established),
                tcp_close_wait: nonzero_or(timeouts.tcp_close_wait, given.tcp_close_wait),
                udp: nonzero_or(timeouts.udp, given.udp),
                udp_stream: nonzero_or(timeouts.udp_stream, given.udp_stream),
            },
            conntrack: ConntrackConfig {
                max_per_core: flags.conntrack_max_per_core,
                min: flags.conntrack_min,
                timeouts: given,
                tcp_be_liberal: flags.conntrack_tcp_be_liberal,
            },
            datapath: DatapathConfig {
                devices: flags.devices,
                pod_device_patterns: flags.pod_device_patterns,
                ignored_devices: flags.ignored_devices,
                xdp_mode: flags.xdp_mode,
                socket_lb: flags.socket_lb,
                cgroup_path: flags.cgroup_path,
                bpf_root: flags.bpf_root,
                snat_ports: flags.snat_ports.unwrap_or_else(|| {
                    let own = snat_ports::ephemeral().into_iter();
                    snat_ports::free_beside(own.chain([flags.service_node_port_range]))
                }),
                node_ports: flags.service_node_port_range,
                netfilter: flags.netfilter,
                handover: flags.handover,
                failing_endpoints: flags.failing_endpoints,
                unknown_service_ports: flags.unknown_service_ports,
                sctp: flags.sctp,
                flow_table_size: flags.flow_table_size,
                local_address_table_size: flags.local_address_table_size,
                map_sizes: MapSizes {
                    service_ports: flags.service_port_table_size,
                    addresses: flags.address_table_size,
                    endpoints: flags.endpoint_table_size,
                    maglev_tables: flags.maglev_tables,
                    source_ranges: flags.source_range_table_size,
                },
                maglev_table_size: flags.maglev_table_size,
            },
        })
    }
}

/// The given name, or else the host's name; both are normalised as by kube-proxy.
fn node_name(given: Option<&str>) -> anyhow::Result<String> {
    let name = match given {
        Some(name) => name.to_owned(),
        None => fs::read_to_string("/proc/sys/kernel/hostname")
            .context("cannot read the host name; pass --node NAME")?,
    };
    let name = name.trim().to_lowercase();
    ensure!(
        !name.is_empty(),
        "the node's name is empty; pass --node NAME"
    );
    Ok(name)
}

fn plan_options(flags: &Flags) -> anyhow::Result<PlanOptions> {
    let mut options = PlanOptions {
        node_port_addresses: node_port_addresses(&flags.nodeport_addresses)?,
        sockets: flags.socket_lb != SocketLb::Off,
        essential: flags.essential_services.clone(),
        external_ip_networks: flags.external_ip_cidrs.clone(),
        ..PlanOptions::default()
    };
    for FeatureGate { gate, enabled } in &flags.feature_gates {
        match gate {
            Gate::AllowServiceExternalIps => options.allow_external_ips = *enabled,
            Gate::PreferSameTrafficDistribution => options.honour_node_hints = *enabled,
            Gate::PerRequestDeadline => {}
        }
    }
    Ok(options)
}

fn admission(flags: &Flags) -> anyhow::Result<AdmissionConfig> {
    ensure!(
        flags.admission == AdmissionMode::Off || flags.max_connections > 0,
        "--admission {} needs --max-connections: the node's seats, which priority levels share",
        flags.admission.name()
    );
    Ok(AdmissionConfig {
        mode: flags.admission,
        objects: flags.admission_objects.clone(),
    })
}

fn http_config(flags: &Flags) -> HttpConfig {
    let deadline = flags
        .feature_gates
        .iter()
        .rfind(|feature| feature.gate == Gate::PerRequestDeadline);
    HttpConfig {
        request_timeout: flags.request_timeout,
        per_request_deadline: deadline.is_none_or(|feature| feature.enabled),
        max_requests_inflight: flags.max_requests_inflight,
        max_mutating_requests_inflight: flags.max_mutating_requests_inflight,
        cache_initialization_timeout: flags.cache_initialization_timeout,
    }
}

fn node_port_addresses(entries: &[NodePortAddress]) -> anyhow::Result<NodePortAddresses> {
    if entries == [NodePortAddress::Primary] {
        return Ok(NodePortAddresses::Primary);
    }
    let mut networks = Vec::new();
    for entry in entries {
        match entry {
            NodePortAddress::Primary => {
                bail!("--nodeport-addresses takes either `primary` or networks, not both")
            }
            NodePortAddress::Network(network) => networks.push(*network),
        }
    }
    Ok(NodePortAddresses::Networks(networks))
}

fn detect_local(flags: &Flags) -> anyhow::Result<DetectLocal> {
    for family in [IpFamily::V4, IpFamily::V6] {
        let networks = flags.cluster_cidr.iter();
        let of_family = networks.filter(|network| IpFamily::of_net(**network) == family);
        ensure!(
            of_family.count() <= 1,
            "--cluster-cidr takes at most one {family} network"
        );
    }
    Ok(match flags.detect_local_mode {
        DetectLocalMode::Auto => DetectLocal::Auto(flags.cluster_cidr.clone()),
        DetectLocalMode::ClusterCidr => DetectLocal::ClusterCidr(flags.cluster_cidr.clone()),
        DetectLocalMode::NodeCidr => DetectLocal::NodeCidr,
        DetectLocalMode::BridgeInterface => DetectLocal::BridgeInterface(
            flags
                .pod_bridge_interface
                .clone()
                .context("--detect-local-mode BridgeInterface needs --pod-bridge-interface")?,
        ),
        DetectLocalMode::InterfaceNamePrefix => {
            DetectLocal::InterfaceNamePrefix(flags.pod_interface_name_prefix.clone().context(
                "--detect-local-mode InterfaceNamePrefix needs --pod-interface-name-prefix",
            )?)
        }
        DetectLocalMode::None => DetectLocal::None,
    })
}

fn nonzero_or(default: Duration, given: Duration) -> Duration {
    match given.is_zero() {
        true => default,
        false => given,
    }
}
