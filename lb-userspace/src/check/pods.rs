//! Whether this node's pods can be told from other sources, and reach Services.

use lb_objects::{EndpointSlice, Node};

use super::{Finding, devices};
use crate::{
    config::{Config, SourceSpec},
    docs::Section,
    plan::{DetectLocal, Undetected},
    source::Event,
    source::dir,
    store::Store,
};

const CHECK: &str = "local pods";

/// As [`check`], with the Node object of a directory; nothing if that is not the source, or if it
/// cannot be read.
pub async fn check_directory(config: &Config) -> Vec<Finding> {
    let SourceSpec::Dir(path) = &config.source else {
        return Vec::new();
    };
    let Ok((objects, _)) = dir::load(path) else {
        return Vec::new();
    };
    let mut store = Store::new(&config.node_name);
    store.apply(objects.into_iter().map(Event::Apply));
    let node = store.node().map(AsRef::as_ref);
    let slices = store
        .services()
        .flat_map(|service| store.slices(&service.name));
    check(config, node, slices).await
}

/// What the settings and this node's object make of its pods, and of devices that lead to others;
/// `slices` are some that may have endpoints of this node.
pub async fn check<'a>(
    config: &Config,
    object: Option<&Node>,
    slices: impl IntoIterator<Item = &'a EndpointSlice>,
) -> Vec<Finding> {
    let mut findings = vec![detection(config, object, slices)];
    findings.extend(devices::unserved(config, object).await);
    findings
}

/// Whether this node's pods can be told from other sources.
fn detection<'a>(
    config: &Config,
    object: Option<&Node>,
    slices: impl IntoIterator<Item = &'a EndpointSlice>,
) -> Finding {
    let node = config.this_node(object);
    let detect = &config.detect_local;
    let endpoints = slices.into_iter().flat_map(|slice| &slice.endpoints);
    let here = endpoints.filter(|endpoint| endpoint.node_name.as_deref() == Some(&*node.name));
    let pods = here.map(|endpoint| endpoint.address);
    let pods = pods.filter(|ip| !node.addresses.contains(ip));
    let finding =
        match Undetected::on(&node, detect).or_else(|| Undetected::by(pods, &node, detect)) {
            Some(undetected) if undetected.is_partial() => {
                Finding::warning(CHECK, undetected.found(), undetected.remedy())
            }
            Some(undetected) => Finding::failure(CHECK, undetected.found(), undetected.remedy()),
            None => Finding::ok(CHECK, told_by(&config.detect_local)),
        };
    finding.see(Section::Cluster)
}

/// How they are told.
fn told_by(detect: &DetectLocal) -> String {
    match detect {
        DetectLocal::Auto(networks) if networks.is_empty() => "by the Node's podCIDRs".to_owned(),
        DetectLocal::Auto(_) => "by --cluster-cidr, else the Node's podCIDRs".to_owned(),
        DetectLocal::ClusterCidr(_) => "by --cluster-cidr".to_owned(),
        DetectLocal::NodeCidr => "by the Node's podCIDRs".to_owned(),
        DetectLocal::BridgeInterface(name) => format!("by the bridge {name}"),
        DetectLocal::InterfaceNamePrefix(prefix) => format!("by devices named {prefix}*"),
        DetectLocal::None => {
            "no source counts as one, as --detect-local-mode=none wants".to_owned()
        }
    }
}
