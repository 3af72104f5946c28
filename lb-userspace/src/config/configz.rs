//! The settings in force, for `/configz`.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use super::{Config, DetectLocalMode, limits};
use crate::plan::{DetectLocal, NodePortAddresses};

impl Config {
    /// Every feature gate: its name, its stage as in Kubernetes' metrics (empty if it is
    /// permanent), and whether it is on.
    pub fn feature_gates(&self) -> [(&'static str, &'static str, bool); 3] {
        [
            ("AllowServiceExternalIPs", "", self.plan.allow_external_ips),
            ("PerRequestDeadline", "BETA", self.http.per_request_deadline),
            (
                "PreferSameTrafficDistribution",
                "",
                self.plan.honour_node_hints,
            ),
        ]
    }

    /// The settings in force as a JSON object, `{"node-lb": {…}}`, named like the flags.
    pub fn configz(&self) -> Value {
        let http = &self.http;
        let (timeouts, conntrack) = (&self.timeouts, &self.conntrack);
        let (mode, bridge, prefix) = self.detect_local_names();
        let mut settings = json!({
            "source": self.source.to_string(),
            "kubeconfig": self.api_access.kubeconfig,
            "master": self.api_access.master.as_ref().map(ToString::to_string),
            "node": self.node_name,
            "node-address": strings(&self.node_addresses),
            "nodeport-addresses": match &self.plan.node_port_addresses {
                NodePortAddresses::Primary => vec!["primary".to_owned()],
                NodePortAddresses::Networks(networks) => strings(networks),
            },
            "detect-local-mode": mode,
            "cluster-cidr": strings(&self.cluster_networks),
            "pod-bridge-interface": bridge,
            "pod-interface-name-prefix": prefix,
            "masquerade-all": self.masquerade_all,
            "max-connections": self.max_connections,
            "admission": self.admission.mode.name(),
            "admission-objects": self.admission.objects,
            "feature-gates": self.feature_gates().map(|(name, _, enabled)| (name, enabled)).into_iter()
                .collect::<BTreeMap<_, _>>(),
            "healthz-bind-address": self.healthz_bind_address.to_string(),
            "metrics-bind-address": self.metrics_bind_address.to_string(),
            "status-page-bind-address": self.status_page_bind_address.map(|address| address.to_string()),
            "service-metrics": self.service_metrics.to_string(),
            "verification-interval": duration(self.verification_interval),
            "test-packet-interval": duration(self.test_packet_interval),
            "socket": self.socket,
            "take-over": self.take_over,
            "probe-socket": self.probe_socket,
            "request-timeout": duration(http.request_timeout),
            "max-requests-inflight": http.max_requests_inflight,
            "max-mutating-requests-inflight": http.max_mutating_requests_inflight,
            "cache-initialization-timeout": duration(http.cache_initialization_timeout),
            "conntrack-tcp-timeout-established": duration(timeouts.tcp_established),
            "conntrack-tcp-timeout-close-wait": duration(timeouts.tcp_close_wait),
            "conntrack-udp-timeout": duration(timeouts.udp),
            "conntrack-udp-timeout-stream": duration(timeouts.udp_stream),
            "conntrack-max-per-core": conntrack.max_per_core,
            "conntrack-min": conntrack.min,
            "conntrack-tcp-be-liberal": conntrack.tcp_be_liberal,
        });
        extend(&mut settings, self.datapath_settings());
        for (name, values) in self.shares() {
            settings[name] = values.into();
        }
        json!({ "node-lb": settings })
    }

    /// Those of devices, programs and flows.
    fn datapath_settings(&self) -> Value {
        let datapath = &self.datapath;
        json!({
            "device": datapath.devices,
            "pod-device-pattern": datapath.pod_device_patterns,
            "ignored-device": datapath.ignored_devices,
            "xdp-mode": value_name(&datapath.xdp_mode),
            "socket-lb": value_name(&datapath.socket_lb),
            "cgroup-path": datapath.cgroup_path,
            "bpf-root": datapath.bpf_root,
            "snat-ports": datapath.snat_ports.to_string(),
            "service-node-port-range": datapath.node_ports.to_string(),
            "netfilter": value_name(&datapath.netfilter),
            "handover": value_name(&datapath.handover),
            "failing-endpoints": value_name(&datapath.failing_endpoints),
            "unknown-service-ports": value_name(&datapath.unknown_service_ports),
            "sctp": value_name(&datapath.sctp),
            "flow-table-size": datapath.flow_table_size,
            "local-address-table-size": datapath.local_address_table_size,
            "service-port-table-size": datapath.map_sizes.service_ports,
            "address-table-size": datapath.map_sizes.addresses,
            "endpoint-table-size": datapath.map_sizes.endpoints,
            "maglev-tables": datapath.map_sizes.maglev_tables,
            "source-range-table-size": datapath.map_sizes.source_ranges,
            "maglev-table-size": datapath.maglev_table_size,
        })
    }

    /// What decides who gets how much of the maps.
    fn shares(&self) -> [(&'static str, Vec<String>); 4] {
        [
            (
                "external-ip-cidrs",
                strings(&self.plan.external_ip_networks),
            ),
            ("essential-services", strings(&self.plan.essential)),
            ("service-limits", limits::texts(&self.limits.service)),
            ("namespace-limits", limits::texts(&self.limits.namespace)),
        ]
    }

    fn detect_local_names(&self) -> (Option<String>, Option<&str>, Option<&str>) {
        let (mode, bridge, prefix) = match &self.detect_local {
            DetectLocal::Auto(_) => (DetectLocalMode::Auto, None, None),
            DetectLocal::ClusterCidr(_) => (DetectLocalMode::ClusterCidr, None, None),
            DetectLocal::NodeCidr => (DetectLocalMode::NodeCidr, None, None),
            DetectLocal::BridgeInterface(name) => {
                (DetectLocalMode::BridgeInterface, Some(name.as_str()), None)
            }
            DetectLocal::InterfaceNamePrefix(prefix) => (
                DetectLocalMode::InterfaceNamePrefix,
                None,
                Some(prefix.as_str()),
            ),
            DetectLocal::None => (DetectLocalMode::None, None, None),
        };
        (value_name(&mode), bridge, prefix)
    }
}

/// Adds the members of one object to another.
fn extend(settings: &mut Value, more: Value) {
    if let (Value::Object(settings), Value::Object(more)) = (settings, more) {
        settings.extend(more);
    }
}

/// How a value is written on the command line.
fn value_name(value: &impl clap::ValueEnum) -> Option<String> {
    value
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
}

/// A duration as Go writes it and flags accept it: `24h`, `1h30m`, `1s500ms`.
fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let parts = [
        (seconds / 3600, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
        (u64::from(duration.subsec_millis()), "ms"),
    ];
    let text: String = parts
        .iter()
        .filter(|(number, _)| *number != 0)
        .map(|(number, unit)| format!("{number}{unit}"))
        .collect();
    match text.as_str() {
        "" => "0s".to_owned(),
        _ => text,
    }
}

fn strings(items: &[impl ToString]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}
