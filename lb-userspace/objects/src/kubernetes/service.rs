//! Services.

use std::{collections::HashSet, net::IpAddr, time::Duration};

use k8s_openapi::{
    api::core::v1::{self as core, ServiceSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    super::{Kind, Object, Refused, quoted},
    Translate,
    field::{self, Findings, Invalid},
    namespace::MAX_CONNECTIONS_ANNOTATION,
};
use crate::{
    Algorithm, ObjectName, RemovedEndpoints, Service, ServicePort, ServiceType, TrafficPolicy,
    Weights,
};

/// With this label a Service is left to another service proxy.
const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// How an endpoint is chosen: `random` (default), `maglev`, `least-connections` or
/// `least-latency`.
const ALGORITHM_ANNOTATION: &str = "node-lb.io/algorithm";
/// With `maglev`: how many connections an endpoint may have open before others get its new ones, in
/// percent of the mean; `0` (default) means any number. As HAProxy's `hash-balance-factor`.
const HASH_BALANCE_FACTOR_ANNOTATION: &str = "node-lb.io/hash-balance-factor";
/// The least and the most of them, besides 0.
const BALANCE_FACTORS: std::ops::RangeInclusive<u16> = 101..=10_000;
/// The weights of endpoints, with commas between them: `192.0.2.1=3` for an address, `node/big=2` for
/// all endpoints on a node.
const WEIGHTS_ANNOTATION: &str = "node-lb.io/weights";
/// The most of them: all agents keep those of every Service, and whoever may write a Service could have
/// them keep megabytes.
const MAX_WEIGHT_ENTRIES: usize = 256;
/// Over how many seconds the share of an endpoint that becomes ready grows; `0` (default) means that
/// it is whole at once.
const SLOW_START_ANNOTATION: &str = "node-lb.io/slow-start";
/// The most of them: an hour.
const MAX_SLOW_START_SECONDS: u32 = 3600;
/// What happens to connections to an endpoint that leaves the Service: `keep` (default) or `reset`.
const REMOVED_ENDPOINTS_ANNOTATION: &str = "node-lb.io/removed-endpoints";
/// The most connections that each endpoint may have from a node, by service port and family; `0`
/// (default) means no limit.
const MAX_PER_ENDPOINT_ANNOTATION: &str = "node-lb.io/max-connections-per-endpoint";
/// Whether its connections last, and do not count against a node's limit: `false` (default) or
/// `true`.
const LONG_RUNNING_ANNOTATION: &str = "node-lb.io/long-running";
/// The API server's default affinity timeout, in seconds.
const DEFAULT_AFFINITY_SECONDS: i32 = 10_800;
/// The longest affinity timeout that the API server accepts: a day.
const MAX_AFFINITY_SECONDS: i32 = 86_400;

impl Translate for core::Service {
    const KIND: Kind = Kind::Service;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn to_model(
        &self,
        name: ObjectName,
        findings: &mut Findings,
    ) -> Result<Option<Object>, Invalid> {
        let labelled =
            |labels: &std::collections::BTreeMap<_, _>| labels.contains_key(PROXY_NAME_LABEL);
        if self.metadata.labels.as_ref().is_some_and(labelled) {
            return Ok(None);
        }
        let Some(spec) = &self.spec else {
            return Ok(None);
        };
        let Some(service_type) = service_type(spec)? else {
            return Ok(None);
        };
        let cluster_ips = cluster_ips(spec)?;
        if cluster_ips.is_empty() {
            return Ok(None);
        }

        let mut external_ips = external_ips(spec)?;
        let mut load_balancer_ips = load_balancer_ips(self, findings);
        let mut ranges = source_ranges(spec, findings);
        let has_family = |is_ipv4| cluster_ips.iter().any(|ip| ip.is_ipv4() == is_ipv4);
        external_ips.retain(|ip| has_family(ip.is_ipv4()));
        load_balancer_ips.retain(|ip| has_family(ip.is_ipv4()));
        ranges.retain(|range| has_family(range.addr().is_ipv4()));

        let internal = ("spec.internalTrafficPolicy", &spec.internal_traffic_policy);
        let external = ("spec.externalTrafficPolicy", &spec.external_traffic_policy);
        let uid = self.metadata.uid.as_deref();
        let created = self.metadata.creation_timestamp.as_ref();
        let service = Service {
            name,
            uid: uid.and_then(|uid| uid.parse().ok()),
            created: created.map_or(0, |time| time.0.as_second()),
            service_type,
            ports: ports(spec)?,
            internal_traffic_policy: traffic_policy(internal, findings),
            external_traffic_policy: traffic_policy(external, findings),
            health_check_node_port: field::port_or_zero(
                "spec.healthCheckNodePort",
                spec.health_check_node_port,
            )?,
            session_affinity: session_affinity(spec, findings)?,
            algorithm: algorithm(&self.metadata, findings),
            hash_balance_factor: hash_balance_factor(&self.metadata, findings),
            weights: weights(&self.metadata, findings),
            slow_start: slow_start(&self.metadata, findings),
            removed_endpoints: removed_endpoints(&self.metadata, findings),
            max_connections: most(&self.metadata, MAX_CONNECTIONS_ANNOTATION, findings),
            max_connections_per_endpoint: most(
                &self.metadata,
                MAX_PER_ENDPOINT_ANNOTATION,
                findings,
            ),
            long_running: long_running(&self.metadata, findings),
            cluster_ips,
            external_ips,
            load_balancer_ips,
            load_balancer_source_ranges: ranges,
        };
        Ok(Some(Object::Service(service.into())))
    }
}

fn service_type(spec: &ServiceSpec) -> Result<Option<ServiceType>, Invalid> {
    match spec.type_.as_deref() {
        None | Some("" | "ClusterIP") => Ok(Some(ServiceType::ClusterIp)),
        Some("NodePort") => Ok(Some(ServiceType::NodePort)),
        Some("LoadBalancer") => Ok(Some(ServiceType::LoadBalancer)),
        Some("ExternalName") => Ok(None),
        Some(other) => Err(Invalid::text(
            "spec.type",
            other,
            "must be ClusterIP, NodePort, LoadBalancer or ExternalName",
        )),
    }
}

/// One cluster IP per family, in the order of `ipFamilies`; if that is empty, only the primary one.
/// None for a headless Service.
fn cluster_ips(spec: &ServiceSpec) -> Result<Vec<IpAddr>, Invalid> {
    let all = spec.cluster_ips.as_deref().unwrap_or_default();
    // The API server always fills in both fields; a manifest may have only one of them.
    let primary = match spec.cluster_ip.as_deref() {
        None | Some("") => all.first().map(String::as_str).unwrap_or_default(),
        Some(primary) => primary,
    };
    if matches!(primary, "" | "None") {
        return Ok(Vec::new());
    }
    let families = spec.ip_families.as_deref().unwrap_or_default();
    if families.is_empty() {
        return Ok(vec![field::unicast_ip("spec.clusterIP", primary)?]);
    }

    let all = match all {
        [] => &[primary.to_owned()],
        all => all,
    };
    let mut ips = Vec::with_capacity(2);
    for (index, (family, text)) in families.iter().zip(all).enumerate() {
        let ip = field::unicast_ip(format_args!("spec.clusterIPs[{index}]"), text)?;
        let matches = match family.as_str() {
            "IPv4" => ip.is_ipv4(),
            "IPv6" => ip.is_ipv6(),
            other => {
                let field = format_args!("spec.ipFamilies[{index}]");
                return Err(Invalid::text(field, other, "must be IPv4 or IPv6"));
            }
        };
        if !matches {
            let field = format_args!("spec.clusterIPs[{index}]");
            let rule = format!("must be an {family} address, as spec.ipFamilies[{index}] says");
            return Err(Invalid::text(field, text, rule));
        }
        if !ips
            .iter()
            .any(|known: &IpAddr| known.is_ipv4() == ip.is_ipv4())
        {
            ips.push(ip);
        }
    }
    Ok(ips)
}

fn external_ips(spec: &ServiceSpec) -> Result<Vec<IpAddr>, Invalid> {
    let (mut ips, mut known) = (Vec::new(), HashSet::new());
    for (index, text) in spec.external_ips.iter().flatten().enumerate() {
        let ip = field::unicast_ip(format_args!("spec.externalIPs[{index}]"), text)?;
        if known.insert(ip) {
            ips.push(ip);
        }
    }
    Ok(ips)
}

/// Addresses in VIP mode. Another controller writes them, so one bad entry does not cost the
/// Service its other addresses.
fn load_balancer_ips(service: &core::Service, findings: &mut Findings) -> Vec<IpAddr> {
    let status = service.status.as_ref();
    let ingress = status.and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
    let (mut ips, mut known) = (Vec::new(), HashSet::new());
    for (index, entry) in ingress.into_iter().flatten().enumerate() {
        let is_vip = matches!(entry.ip_mode.as_deref(), None | Some("VIP"));
        let Some(text) = entry.ip.as_deref().filter(|ip| is_vip && !ip.is_empty()) else {
            continue;
        };
        let field = format_args!("status.loadBalancer.ingress[{index}].ip");
        let ip = findings.check(Refused::Value, field::ip(field, text));
        ips.extend(ip.filter(|ip| known.insert(*ip)));
    }
    ips
}

/// Ranges that cannot be parsed are left out, as in kube-proxy. If none is left, there is no
/// filter.
fn source_ranges(spec: &ServiceSpec, findings: &mut Findings) -> Vec<ipnet::IpNet> {
    let ranges = spec.load_balancer_source_ranges.iter().flatten();
    let range = |(index, text): (usize, &String)| {
        let field = format_args!("spec.loadBalancerSourceRanges[{index}]");
        findings.check(Refused::Value, field::cidr(field, text.trim()))
    };
    ranges.enumerate().filter_map(range).collect()
}

fn ports(spec: &ServiceSpec) -> Result<Vec<ServicePort>, Invalid> {
    let all = spec.ports.as_deref().unwrap_or_default();
    let mut ports: Vec<ServicePort> = Vec::with_capacity(all.len());
    let (mut names, mut numbers) = (HashSet::new(), HashSet::new());
    for (index, raw) in all.iter().enumerate() {
        let at = |field| format!("spec.ports[{index}].{field}");
        let port = ServicePort {
            name: field::port_name(at("name"), raw.name.as_deref())?,
            protocol: field::protocol(at("protocol"), raw.protocol.as_deref())?,
            port: field::port(at("port"), raw.port)?,
            node_port: field::port_or_zero(at("nodePort"), raw.node_port)?,
        };
        let name = raw.name.as_deref().unwrap_or_default();
        if !names.insert((port.protocol, name)) {
            let rule = "must differ from the other ports' names";
            return Err(Invalid::text(at("name"), name, rule));
        }
        if !numbers.insert((port.protocol, port.port)) {
            let rule = "must differ from the other ports of its protocol";
            return Err(Invalid::new(at("port"), port.port.to_string(), rule));
        }
        ports.push(port);
    }
    Ok(ports)
}

fn traffic_policy(
    (field, value): (&str, &Option<String>),
    findings: &mut Findings,
) -> TrafficPolicy {
    match value.as_deref() {
        Some("Local") => TrafficPolicy::Local,
        None | Some("" | "Cluster") => TrafficPolicy::Cluster,
        Some(other) => {
            let rule = "must be Cluster or Local, and is taken as Cluster";
            findings.refuse(Refused::Value, Invalid::text(field, other, rule));
            TrafficPolicy::Cluster
        }
    }
}

fn session_affinity(
    spec: &ServiceSpec,
    findings: &mut Findings,
) -> Result<Option<Duration>, Invalid> {
    match spec.session_affinity.as_deref() {
        Some("ClientIP") => {}
        None | Some("" | "None") => return Ok(None),
        Some(other) => {
            let rule = "must be ClientIP or None, and is taken as None";
            let invalid = Invalid::text("spec.sessionAffinity", other, rule);
            findings.refuse(Refused::Value, invalid);
            return Ok(None);
        }
    }
    let config = spec.session_affinity_config.as_ref();
    let seconds = config
        .and_then(|config| config.client_ip.as_ref()?.timeout_seconds)
        .unwrap_or(DEFAULT_AFFINITY_SECONDS);
    match u64::try_from(seconds) {
        Ok(positive) if (1..=MAX_AFFINITY_SECONDS).contains(&seconds) => {
            Ok(Some(Duration::from_secs(positive)))
        }
        _ => Err(Invalid::new(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            seconds.to_string(),
            "must be between 1 and 86400",
        )),
    }
}

fn algorithm(metadata: &ObjectMeta, findings: &mut Findings) -> Algorithm {
    let values = Algorithm::ALL.map(|algorithm| (algorithm.name(), algorithm));
    annotation(metadata, ALGORITHM_ANNOTATION, values, findings)
}

/// The weights that can be read. Whatever breaks a rule is left out.
fn weights(metadata: &ObjectMeta, findings: &mut Findings) -> Weights {
    let mut weights = Weights::default();
    let text = field::annotation(metadata, WEIGHTS_ANNOTATION).unwrap_or_default();
    let entries = text.split(',').map(str::trim);
    let mut entries = entries.filter(|entry| !entry.is_empty());
    for entry in entries.by_ref().take(MAX_WEIGHT_ENTRIES) {
        findings.check(Refused::Value, add_weight(entry, &mut weights));
    }
    if let Some(entry) = entries.next() {
        let field = format_args!("metadata.annotations[{WEIGHTS_ANNOTATION}]");
        let rule =
            format!("and all after it are left out: at most {MAX_WEIGHT_ENTRIES} entries count");
        findings.refuse(Refused::Value, Invalid::text(field, entry, rule));
    }
    weights
}

fn add_weight(entry: &str, weights: &mut Weights) -> Result<(), Invalid> {
    let field = format_args!("metadata.annotations[{WEIGHTS_ANNOTATION}]");
    let invalid = || {
        let rule = "must be ADDRESS=WEIGHT or node/NAME=WEIGHT, and is left out";
        Invalid::text(field, entry, rule)
    };
    let (whose, weight) = entry.split_once('=').ok_or_else(invalid)?;
    let of_entry = format_args!("{field}: the weight of {}", quoted(whose.trim()));
    let weight = field::weight(of_entry, weight.trim(), ", and is left out")?;
    if let Some(node) = whose.trim().strip_prefix("node/") {
        field::subdomain(field, node).map_err(|_| invalid())?;
        weights.set_node(node.into(), weight);
    } else {
        let address = whose.trim().parse().map_err(|_| invalid())?;
        weights.set_address(address, weight);
    }
    Ok(())
}

fn slow_start(metadata: &ObjectMeta, findings: &mut Findings) -> Option<Duration> {
    let text = field::annotation(metadata, SLOW_START_ANNOTATION)?;
    let field = format_args!("metadata.annotations[{SLOW_START_ANNOTATION}]");
    let otherwise = ", and there is no slow start";
    let time = field::seconds(field, text, MAX_SLOW_START_SECONDS, otherwise);
    let time = findings.check(Refused::Value, time)?;
    (!time.is_zero()).then_some(time)
}

fn hash_balance_factor(metadata: &ObjectMeta, findings: &mut Findings) -> u16 {
    let Some(text) = field::annotation(metadata, HASH_BALANCE_FACTOR_ANNOTATION) else {
        return 0;
    };
    let is_valid = |factor: &u16| *factor == 0 || BALANCE_FACTORS.contains(factor);
    if let Some(factor) = text.parse().ok().filter(is_valid) {
        return factor;
    }
    let (least, most) = (BALANCE_FACTORS.start(), BALANCE_FACTORS.end());
    let invalid = Invalid::text(
        format_args!("metadata.annotations[{HASH_BALANCE_FACTOR_ANNOTATION}]"),
        text,
        format!("must be 0 or a whole number from {least} to {most}, and is taken as 0"),
    );
    findings.check(Refused::Value, Err(invalid)).unwrap_or(0)
}

fn removed_endpoints(metadata: &ObjectMeta, findings: &mut Findings) -> RemovedEndpoints {
    let values = [
        ("keep", RemovedEndpoints::Keep),
        ("reset", RemovedEndpoints::Reset),
    ];
    annotation(metadata, REMOVED_ENDPOINTS_ANNOTATION, values, findings)
}

/// A limit of connections. A value that is none puts no limit in force.
fn most(metadata: &ObjectMeta, name: &str, findings: &mut Findings) -> u32 {
    let Some(text) = field::annotation(metadata, name) else {
        return 0;
    };
    let field = format_args!("metadata.annotations[{name}]");
    let most = field::connections(field, text, ", and sets no limit");
    findings.check(Refused::Value, most).unwrap_or_default()
}

fn long_running(metadata: &ObjectMeta, findings: &mut Findings) -> bool {
    let values = [("false", false), ("true", true)];
    annotation(metadata, LONG_RUNNING_ANNOTATION, values, findings)
}

/// The value of an annotation with a few possible names of values; the first one by default.
fn annotation<T: Copy, const N: usize>(
    metadata: &ObjectMeta,
    name: &str,
    values: [(&str, T); N],
    findings: &mut Findings,
) -> T {
    let (default, value) = values[0];
    let Some(text) = field::annotation(metadata, name) else {
        return value;
    };
    if let Some((_, said)) = values.into_iter().find(|(name, _)| *name == text) {
        return said;
    }
    let field = format_args!("metadata.annotations[{name}]");
    let (last, others) = (values[N - 1].0, values.map(|(name, _)| name));
    let others = others[..N - 1].join(", ");
    let rule = format!("must be {others} or {last}, and is taken as {default}");
    findings.refuse(Refused::Value, Invalid::text(field, text, rule));
    value
}
