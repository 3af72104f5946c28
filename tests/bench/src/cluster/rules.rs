//! nftables rules in the form of kube-proxy's nftables mode (`pkg/proxy/nftables` of Kubernetes
//! 1.36): the same base chains, maps and sets, and per service port one chain with one rule.

use std::{fmt::Write as _, iter, net::Ipv4Addr};

use lb_tests::balanced::CLUSTER_CIDR;

use super::services::{self, PORT, TARGET_PORT};

/// Services per transaction. The number is small enough for the kernel, where the cost of a
/// transaction is quadratic in the maps that it binds, and large enough for `nft`, which reads the
/// present rules each time.
const TRANSACTION: u32 = 500;

/// The base: chains, maps and sets, without Services.
fn base() -> String {
    let pods = CLUSTER_CIDR.split(',').next().unwrap_or_default();
    format!(
        "table ip kube-proxy {{
    set cluster-ips {{ type ipv4_addr; }}
    set nodeport-ips {{ type ipv4_addr; }}
    set hairpin-connections {{ type ipv4_addr . ipv4_addr . inet_proto . inet_service; }}
    map service-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
    map service-nodeports {{ type inet_proto . inet_service : verdict; }}
    map no-endpoint-services {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
    map no-endpoint-nodeports {{ type inet_proto . inet_service : verdict; }}
    map firewall-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }}

    chain mark-for-masquerade {{
        meta mark set meta mark or 0x4000
    }}
    chain services {{
        ip daddr @cluster-ips ip saddr != {pods} jump mark-for-masquerade
        ip daddr . meta l4proto . th dport vmap @service-ips
        ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
    }}
    chain masquerade-marked {{
        meta mark set meta mark xor 0x4000
        masquerade fully-random
    }}
    chain masquerading {{
        meta mark and 0x4000 == 0x4000 goto masquerade-marked
        ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random
    }}
    chain service-endpoints-check {{
        ip daddr . meta l4proto . th dport vmap @no-endpoint-services
    }}
    chain nodeport-endpoints-check {{
        ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports
    }}
    chain firewall-check {{
        ip daddr . meta l4proto . th dport vmap @firewall-ips
    }}
    chain cluster-ips-check {{
        ip daddr @cluster-ips reject
        ip daddr 10.96.0.0/12 drop
    }}

    chain filter-prerouting-pre-dnat {{
        type filter hook prerouting priority -110;
        ct state new jump firewall-check
    }}
    chain filter-output-pre-dnat {{
        type filter hook output priority -110;
        ct state new jump firewall-check
    }}
    chain filter-input {{
        type filter hook input priority 0;
        ct state new jump nodeport-endpoints-check
        ct state new jump service-endpoints-check
    }}
    chain filter-forward {{
        type filter hook forward priority 0;
        ct state new jump service-endpoints-check
        ct state new jump cluster-ips-check
    }}
    chain filter-output {{
        type filter hook output priority 0;
        ct state new jump service-endpoints-check
        ct state new jump cluster-ips-check
    }}
    chain nat-prerouting {{
        type nat hook prerouting priority -100;
        jump services
    }}
    chain nat-output {{
        type nat hook output priority -100;
        jump services
    }}
    chain nat-postrouting {{
        type nat hook postrouting priority 100;
        jump masquerading
    }}
}}
"
    )
}

/// The inputs for `nft -f` that program `count` Services from nothing, one after the other.
pub fn transactions(count: u32) -> impl Iterator<Item = String> {
    let firsts = (0..count).step_by(TRANSACTION as usize);
    let services = firsts.map(move |first| {
        let mut text = String::new();
        for number in first..count.min(first + TRANSACTION) {
            add_service(&mut text, number);
        }
        text
    });
    iter::once(base()).chain(services)
}

/// What kube-proxy sends when it replaces the first endpoint of a Service.
pub fn change(service: u32, before: &[Ipv4Addr], after: &[Ipv4Addr]) -> String {
    let mut text = String::new();
    for protocol in protocols(service) {
        let chain = chain(service, protocol);
        let _ = writeln!(text, "add chain ip kube-proxy {chain}");
        let _ = writeln!(text, "flush chain ip kube-proxy {chain}");
        add_rule(&mut text, service, protocol, after);
        for (verb, address) in [("add", after[0]), ("delete", before[0])] {
            hairpin(&mut text, verb, address, protocol);
        }
    }
    text
}

fn add_service(text: &mut String, service: u32) {
    let address = services::cluster_ip(service);
    let endpoints = services::endpoints(service);
    let _ = writeln!(
        text,
        "add element ip kube-proxy cluster-ips {{ {address} }}"
    );
    for protocol in protocols(service) {
        let chain = chain(service, protocol);
        let _ = writeln!(text, "add chain ip kube-proxy {chain}");
        add_rule(text, service, protocol, &endpoints);
        let _ = writeln!(
            text,
            "add element ip kube-proxy service-ips {{ {address} . {protocol} . {PORT} : goto {chain} }}"
        );
        for endpoint in &endpoints {
            hairpin(text, "add", *endpoint, protocol);
        }
    }
}

/// The only rule of a Service's chain: it goes to a random endpoint.
fn add_rule(text: &mut String, service: u32, protocol: &str, endpoints: &[Ipv4Addr]) {
    let chain = chain(service, protocol);
    let numbered = endpoints.iter().enumerate();
    let elements: Vec<_> = numbered
        .map(|(number, address)| format!("{number} : {address} . {TARGET_PORT}"))
        .collect();
    let _ = writeln!(
        text,
        "add rule ip kube-proxy {chain} meta l4proto {protocol} \
         dnat ip addr . port to numgen random mod {} map {{ {} }}",
        elements.len(),
        elements.join(", ")
    );
}

fn hairpin(text: &mut String, verb: &str, address: Ipv4Addr, protocol: &str) {
    let _ = writeln!(
        text,
        "{verb} element ip kube-proxy hairpin-connections \
         {{ {address} . {address} . {protocol} . {TARGET_PORT} }}"
    );
}

fn protocols(service: u32) -> &'static [&'static str] {
    match service {
        0 => &["tcp", "udp"],
        _ => &["tcp"],
    }
}

/// A name as kube-proxy's, with the Service's number in place of the hash.
fn chain(service: u32, protocol: &str) -> String {
    let name = services::name(service);
    format!("service-{service:08}-default/{name}/{protocol}/{protocol}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_is_in_one_transaction() {
        let all: Vec<_> = transactions(1_001).collect();
        assert_eq!(all.len(), 1 + 3);
        let rules = |text: &String| text.matches("add rule").count();
        // The first Service has a chain for UDP, too.
        assert_eq!(all.iter().map(rules).collect::<Vec<_>>(), [0, 501, 500, 1]);
    }

    #[test]
    fn a_change_replaces_one_endpoint() {
        let (before, after) = (services::endpoints(3), services::changed_endpoints(3));
        let text = change(3, &before, &after);
        assert!(text.contains("0 : 10.244.250.1 . 8080, 1 : 10.244.4.31 . 8080"));
        assert_eq!(text.matches("delete element").count(), 1);
    }
}
