//! Whether this node's pods can be told from other sources.

use lb_objects::Node;

use super::Finding;
use crate::{
    config::Config,
    plan::{DetectLocal, Undetected},
    source::Event,
    source::{SourceSpec, dir},
    store::Store,
};

const CHECK: &str = "local pods";

/// As [`check`], with the Node object of a directory; nothing if that is not the source, or if it
/// cannot be read.
pub fn check_directory(config: &Config) -> Option<Finding> {
    let SourceSpec::Dir(path) = &config.source else {
        return None;
    };
    let (objects, _) = dir::load(path).ok()?;
    let mut store = Store::new(&config.node_name);
    store.apply(objects.into_iter().map(Event::Apply));
    Some(check(config, store.node().map(AsRef::as_ref)))
}

/// What the settings and this node's object make of its pods.
pub fn check(config: &Config, object: Option<&Node>) -> Finding {
    let node = config.this_node(object);
    match Undetected::on(&node, &config.detect_local) {
        Some(undetected) if undetected.is_partial() => {
            Finding::warning(CHECK, undetected.found(), undetected.remedy())
        }
        Some(undetected) => Finding::failure(CHECK, undetected.found(), undetected.remedy()),
        None => Finding::ok(CHECK, told_by(&config.detect_local)),
    }
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
