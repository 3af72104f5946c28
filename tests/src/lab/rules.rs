//! Foreign rules that a node may have to live with, for nftables.

use super::address::{Networks, PODS};

/// A stateful firewall as distributions ship it: INPUT is open but for INVALID, FORWARD lets
/// through only what conntrack knows. The counters are for tests: `invalid`, `unsolicited`.
pub const FIREWALL: &str = "
table inet firewall {
    counter invalid { }
    counter unsolicited { }
    chain input {
        type filter hook input priority filter; policy accept;
        ct state invalid counter name invalid drop
    }
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state invalid counter name invalid drop
        ct state established,related accept
        # Neighbour discovery is untracked; with br_netfilter, that of bridged pods passes here.
        icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
        counter name unsolicited
    }
}
";

/// A CNI's masquerade rule: pods of this node reach places outside the pod networks with the
/// node's address.
pub fn masquerade(pods: Networks) -> String {
    let Networks { v4, v6 } = pods;
    let Networks {
        v4: cluster_v4,
        v6: cluster_v6,
    } = PODS;
    format!(
        "
table inet cni {{
    chain postrouting {{
        type nat hook postrouting priority srcnat;
        ip saddr {v4} ip daddr != {cluster_v4} masquerade
        ip6 saddr {v6} ip6 daddr != {cluster_v6} masquerade
    }}
}}
"
    )
}
