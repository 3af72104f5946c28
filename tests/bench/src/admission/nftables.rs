//! A balancer of nftables rules, which counts the tracked connections of each source.

use std::net::IpAddr;

use anyhow::Result;
use lb_tests::Lab;

use super::{
    PER_CLIENT,
    ground::{PORT, addresses},
};
use crate::cluster::{nft, services::TARGET_PORT};

/// Loads the rules on the node.
///
/// # Errors
///
/// If `nft` fails.
pub fn start(lab: &Lab) -> Result<()> {
    nft(lab.node(1), &rules(addresses(lab))).map(drop)
}

fn rules([node, pod]: [IpAddr; 2]) -> String {
    format!(
        "table ip balancer {{
    set clients {{ type ipv4_addr; size 65535; flags dynamic; }}
    chain prerouting {{
        type nat hook prerouting priority dstnat;
        ip daddr {node} tcp dport {PORT} dnat to {pod}:{TARGET_PORT}
    }}
    chain forward {{
        type filter hook forward priority filter;
        ip daddr {pod} tcp dport {TARGET_PORT} ct state new \
         add @clients {{ ip saddr ct count over {PER_CLIENT} }} reject with tcp reset
    }}
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translated_connections_are_counted_by_source() {
        let rules = rules([[192, 0, 2, 1].into(), [10, 0, 0, 1].into()]);
        assert!(rules.contains("ip daddr 192.0.2.1 tcp dport 30080 dnat to 10.0.0.1:8080"));
        assert!(rules.contains(
            "ip daddr 10.0.0.1 tcp dport 8080 ct state new \
             add @clients { ip saddr ct count over 80 } reject with tcp reset"
        ));
    }
}
