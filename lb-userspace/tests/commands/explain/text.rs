//! The text output.

use super::{DB, NODE, NODE_CIDR, WEB, explain};
use crate::{Files, stdout};

#[test]
fn weights_are_shown_where_endpoints_differ() {
    let weighted = |weights: &str| {
        let annotations = format!("annotations: {{node-lb.io/weights: '{weights}'}}");
        let name = "name: web}";
        assert!(WEB.contains(name));
        WEB.replacen(name, &format!("name: web, {annotations}}}"), 1)
    };
    let shown = |weights| {
        let manifests = Files::numbered(&[NODE, &weighted(weights), DB]);
        let packet = ["--from", "10.0.0.9", "--to", "198.51.100.7:80"];
        let arguments = [&packet[..], &NODE_CIDR].concat();
        stdout(&explain(&manifests, &arguments)).to_owned()
    };
    let picked = "is picked at random: 10.0.0.1:8080 (weight 1), 10.0.1.1:8080 (weight 3).";
    let text = shown("10.0.1.1=3");
    assert!(text.contains(picked), "{text}");
    let text = shown("10.0.0.1=3, 10.0.1.1=3");
    assert!(!text.contains("weight"), "{text}");
}

#[test]
fn a_bound_of_maglev_is_told() {
    let shown = |algorithm: &str| {
        let annotations = format!(
            "annotations: {{node-lb.io/algorithm: {algorithm}, node-lb.io/hash-balance-factor: '125'}}"
        );
        let web = WEB.replacen("name: web}", &format!("name: web, {annotations}}}"), 1);
        let manifests = Files::numbered(&[NODE, &web, DB]);
        let packet = ["--from", "10.0.0.9", "--to", "198.51.100.7:80"];
        stdout(&explain(&manifests, &[&packet[..], &NODE_CIDR].concat())).to_owned()
    };
    let text = shown("maglev");
    let how = "is picked by Maglev, past those that have 125 % of the mean of open connections: ";
    assert!(text.contains(how), "{text}");
    let text = shown("random");
    assert!(text.contains("is picked at random: "), "{text}");
}

#[test]
fn text_reads_as_an_explanation() {
    let manifests = Files::numbered(&[NODE, WEB, DB]);
    for (from, to, expected) in [
        (
            "203.0.113.9",
            "192.168.0.2:30080",
            "\
TCP from 203.0.113.9 (outside) to 192.168.0.2:30080 is forwarded (opened).
192.168.0.2:30080 is a node port of Service shop/web:http.
externalTrafficPolicy is Local: only endpoints on this node serve it.
The only such endpoint is 10.0.0.1:8080.
The source address is kept.
",
        ),
        (
            "10.0.0.1",
            "198.51.100.7:80",
            "\
TCP from 10.0.0.1 (a local pod) to 198.51.100.7:80 is forwarded (opened).
198.51.100.7:80 is an external IP of Service shop/web:http.
externalTrafficPolicy is Local, but what local pods and the node itself send may go to any node.
One of 2 is picked at random: 10.0.0.1:8080, 10.0.1.1:8080.
The source address is kept, unless 10.0.0.1:8080 is picked, which is the client itself: then it becomes this node's.
",
        ),
        (
            "203.0.113.9",
            "172.30.0.2:5432",
            "\
TCP from 203.0.113.9 (outside) to 172.30.0.2:5432 is forwarded (opened).
172.30.0.2:5432 is the cluster IP of Service shop/db.
internalTrafficPolicy is Cluster: endpoints on any node serve it.
The only such endpoint is 10.0.1.9:5432.
None is ready; these still serve while they terminate.
A client that connected within the last 3h returns to its endpoint (session affinity).
The source address becomes this node's, 192.168.0.2, or that on a tunnel to the endpoint.
",
        ),
        (
            "203.0.113.200",
            "192.0.2.10:80",
            "\
TCP from 203.0.113.200 (outside) to 192.0.2.10:80 is dropped (source-range).
192.0.2.10:80 is a load balancer IP of Service shop/web:http.
Its loadBalancerSourceRanges, 203.0.113.0/25, do not contain 203.0.113.200.
",
        ),
        (
            "203.0.113.9",
            "172.30.0.1:80/udp",
            "\
UDP from 203.0.113.9 (outside) to 172.30.0.1:80 is rejected (no-endpoints).
172.30.0.1:80 is the cluster IP of Service shop/web:quic.
No endpoint on any node is ready, or still serves while it terminates; the client gets ICMP port unreachable.
",
        ),
        (
            "2001:db8:c::9",
            "[2001:db8::2]:30080",
            "\
TCP from 2001:db8:c::9 (outside) to [2001:db8::2]:30080 is dropped (no-local-endpoints).
[2001:db8::2]:30080 is a node port of Service shop/web:http.
externalTrafficPolicy is Local, and no endpoint on this node is usable, but others are. The packet is dropped without an answer, so that a load balancer uses another node.
",
        ),
        (
            "192.168.0.2",
            "172.30.0.1:80/sctp",
            "\
SCTP from 192.168.0.2 (this node) to 172.30.0.1:80 passes untouched (not-service).
172.30.0.1:80 is the cluster IP of Service shop/web:sig.
The node's own connections are translated at their sockets, which Linux has no hooks for with SCTP: the packet leaves the node untranslated.
",
        ),
        (
            "203.0.113.9",
            "172.30.0.1:81",
            "\
TCP from 203.0.113.9 (outside) to 172.30.0.1:81 is rejected (unknown-port).
172.30.0.1 is the cluster IP of Service shop/web, and no Service has this port and protocol there; the client gets ICMP port unreachable.
",
        ),
        (
            "203.0.113.9",
            "192.0.2.99:80",
            "\
TCP from 203.0.113.9 (outside) to 192.0.2.99:80 passes untouched (not-service).
No Service has this address, port and protocol here: the packet is left to the kernel.
",
        ),
    ] {
        let arguments = [&["--from", from, "--to", to], &NODE_CIDR[..]].concat();
        let output = explain(&manifests, &arguments);
        assert_eq!(stdout(&output), expected);
    }
}

#[test]
fn new_connections_are_another_proxys_while_node_lb_hands_over() {
    let manifests = Files::numbered(&[NODE, WEB]);
    let packet = ["--from", "203.0.113.9", "--to", "172.30.0.1:80"];
    for (handover, expected) in [
        ("out", "passes untouched (not-service)."),
        ("in", "is forwarded (opened)."),
    ] {
        let output = explain(
            &manifests,
            &[&packet[..], &["--handover", handover]].concat(),
        );
        let text = stdout(&output);
        assert!(text.contains(expected), "{text}");
        assert_eq!(
            text.contains("`handover: out`"),
            handover == "out",
            "{text}"
        );
    }
}
