//! Rules of other service proxies on this node, above all of kube-proxy.

use std::path::Path;

use super::{Finding, iptables, nftables};
use crate::docs::Section;

const REMEDY: &str =
    "stop kube-proxy on this node, let node-lb start, and then run `kube-proxy --cleanup`";
/// The device on which kube-proxy's IPVS mode keeps its addresses.
const IPVS_DEVICE: &str = "/sys/class/net/kube-ipvs0";

/// Rules of kube-proxy in any of its modes. They do no harm while node-lb takes over. Afterwards
/// they would catch what node-lb lets pass.
pub fn check() -> Vec<Finding> {
    vec![
        finding("kube-proxy, nftables", nftables::kube_proxy_tables()),
        finding("kube-proxy, iptables", iptables::kube_proxy_tables()),
        finding(
            "kube-proxy, IPVS",
            Ok(match Path::new(IPVS_DEVICE).exists() {
                true => vec!["device kube-ipvs0".to_owned()],
                false => Vec::new(),
            }),
        ),
    ]
}

fn finding(check: &str, found: std::io::Result<Vec<String>>) -> Finding {
    match found {
        Ok(found) if found.is_empty() => Finding::ok(check, "no rules"),
        Ok(found) => Finding::warning(check, format!("rules in {}", found.join(", ")), REMEDY)
            .see(Section::KubeProxy),
        Err(error) => Finding::warning(
            check,
            format!("cannot be read: {error}"),
            "to look by hand: nft list tables, iptables-save | grep KUBE-",
        ),
    }
}
