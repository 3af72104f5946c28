//! In what node-lb differs from kube-proxy on purpose: `docs/migration.md` has the same list.

use lb_packet::tcp_flag::{ACK, SYN};

use super::{
    difference::Difference,
    message::{Body, Kind},
    seen::{Fields, get},
};

/// A rule by which both may differ.
type Rule = fn(&Difference) -> bool;

const RULES: [(&str, Rule); 10] = [
    ("wrong checksums", has_wrong_checksum),
    ("segments that open nothing", opens_nothing),
    ("segments of no connection", is_stray),
    ("refused before its TTL ends", is_refused_early),
    ("the end of fragments' TTL", is_each_reported),
    ("fragments behind other headers", is_lost_by_the_kernel),
    ("how often a datagram is cut", is_cut_again),
    ("later fragments of what is refused", has_refused_fragments),
    ("who reports an error", is_reported_by_another),
    ("checksum of a quoted SCTP packet", quotes_other_checksum),
];

/// The name of the rule that allows a difference.
pub fn rule(difference: &Difference) -> Option<&'static str> {
    let mut rules = RULES.iter();
    rules
        .find(|(_, rule)| rule(difference))
        .map(|(name, _)| *name)
}

/// Conntrack takes the packet for invalid, so kube-proxy's rules do not see it: it goes on
/// untranslated, or is dropped. node-lb translates it, and its receiver finds the checksum wrong.
fn has_wrong_checksum(difference: &Difference) -> bool {
    let is_damaged = difference.sent().shape.is_damaged;
    let is_wrong = |fields: &Fields| get(fields, "checksum") != "right" || is_error(fields);
    is_damaged && difference.node_lb.iter().all(is_wrong)
}

/// The same goes for segments that neither open a connection nor can be of one: RST, FIN, SYN with
/// ACK or FIN, or none of these. node-lb has no flow for them either, but treats them as the Service
/// says.
fn opens_nothing(difference: &Difference) -> bool {
    let is_odd = match difference.opening.message.body {
        Body::Tcp { flags, .. } => flags != SYN && flags != ACK,
        _ => false,
    };
    is_odd && difference.message.is_none()
}

/// A Service with many half-open flows, as here, takes no segments from the middle of connections. And
/// those to a port that it does not have are not refused, but go on.
fn is_stray(difference: &Difference) -> bool {
    let opening = &difference.opening;
    let is_ack = matches!(opening.message.body, Body::Tcp { flags: ACK, .. });
    let front = opening.to.address.to_string();
    let goes_on = |fields: &Fields| get(fields, "destination") == front;
    is_ack && difference.message.is_none() && difference.node_lb.iter().all(goes_on)
}

/// kube-proxy refuses after the kernel has looked at the TTL, node-lb before.
fn is_refused_early(difference: &Difference) -> bool {
    let are = |packets: &[Fields], kinds: &[&str]| {
        packets.iter().all(|one| kinds.contains(&get(one, "kind")))
    };
    difference.sent().shape.ttl < 2
        && !difference.kube_proxy.is_empty()
        && are(&difference.kube_proxy, &["11/0", "3/0"])
        && are(&difference.node_lb, &["3/3", "1/4"])
}

/// With kube-proxy, fragments are one packet when their TTL ends.
fn is_each_reported(difference: &Difference) -> bool {
    let shape = &difference.sent().shape;
    shape.ttl < 2 && shape.fragments.is_some() && difference.node_lb.iter().all(is_error)
}

/// The kernel, once it has put fragments together for kube-proxy that come behind options, does not
/// answer for the node's own closed port.
fn is_lost_by_the_kernel(difference: &Difference) -> bool {
    let shape = &difference.sent().shape;
    let is_usual = shape.fragments.is_none() || shape.extensions.is_empty();
    !is_usual && difference.kube_proxy.is_empty() && difference.node_lb.iter().all(is_error)
}

/// And may be cut into others than they came in.
fn is_cut_again(difference: &Difference) -> bool {
    difference.sent().shape.fragments.is_some()
        && only_differs(difference, &["fragments", "extensions", "payload length"])
}

/// The kernel puts a datagram together before kube-proxy's rules see it. node-lb refuses the first
/// fragment, and the others go on, unless they are to a ClusterIP.
fn has_refused_fragments(difference: &Difference) -> bool {
    let is_part = |fields: &&Fields| fields.contains_key("fragment");
    let (parts, rest): (Vec<_>, Vec<_>) = difference.node_lb.iter().partition(is_part);
    let is_same = rest.iter().copied().eq(&difference.kube_proxy);
    difference.sent().shape.fragments.is_some() && !parts.is_empty() && is_same
}

/// An ICMP error about a connection comes from the router that has sent it. With kube-proxy, the
/// kernel puts the address of the connection's other end in its place.
fn is_reported_by_another(difference: &Difference) -> bool {
    only_differs(difference, &["source"]) && difference.node_lb.iter().all(is_error)
}

/// The checksum that an error quotes of an SCTP packet: with kube-proxy it is that of the part which is
/// quoted, with node-lb the packet's own.
fn quotes_other_checksum(difference: &Difference) -> bool {
    difference.opening.kind == Kind::Sctp
        && only_differs(difference, &["source", "quoted rest"])
        && difference.node_lb.iter().all(is_error)
}

fn only_differs(difference: &Difference, names: &[&str]) -> bool {
    difference.kube_proxy.len() == difference.node_lb.len()
        && difference
            .differing()
            .iter()
            .all(|name| names.contains(name))
}

fn is_error(fields: &Fields) -> bool {
    matches!(get(fields, "protocol"), "1" | "58")
}
