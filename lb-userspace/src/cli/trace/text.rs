//! The readable form of `node-lb trace`: a block for each packet.

use std::fmt::Write as _;

use crate::trace::{Ended, Packet};

/// What was decided about a packet, a step a line.
pub fn packet(packet: &Packet) -> String {
    let unknown = || "?".to_owned();
    let seconds = packet.microseconds as f64 / 1e6;
    let device = packet.device.iter().map(|device| format!(" of {device}"));
    let device: String = device.collect();
    let mut steps = Vec::new();
    if let (Some(source), Some(destination)) = (packet.source, packet.destination) {
        let flags: String = packet
            .tcp_flags
            .iter()
            .chain(&packet.sctp_chunk)
            .map(|flag| format!(" {flag}"))
            .collect();
        let protocol = packet.protocol.clone().unwrap_or_else(unknown);
        steps.push((
            "parse",
            format!("{protocol} {source} > {destination}{flags}"),
        ));
    }
    if let Some(flow) = &packet.flow {
        let facts: String = packet
            .flow_facts
            .iter()
            .map(|fact| format!(", {fact}"))
            .collect();
        steps.push(("flow", format!("{flow}{facts}")));
    }
    if let Some(service) = &packet.service {
        steps.push(("service", service.clone()));
    }
    if let Some(schema) = &packet.flow_schema {
        let level = packet.priority_level.iter();
        let level: String = level.map(|level| format!(", level {level}")).collect();
        steps.push(("admission", format!("schema {schema}{level}")));
    }
    if let Some(endpoint) = packet.endpoint {
        steps.push(("endpoint", endpoint.to_string()));
    }
    if let (Some(source), Some(destination)) =
        (packet.rewritten_source, packet.rewritten_destination)
    {
        steps.push(("rewrite", format!("{source} > {destination}")));
    }
    let by = packet
        .leaves_by
        .iter()
        .map(|device| format!(" to {device}"));
    let by: String = by.collect();
    steps.push(("way", format!("{}{by}", packet.way)));
    let reason = match packet.reason.as_str() {
        "" => "unknown: its line was lost",
        reason => reason,
    };
    steps.push(("reason", reason.to_owned()));

    let mut text = format!(
        "#{} {seconds:+.6} s  {}{device}\n",
        packet.number, packet.hook
    );
    for (step, what) in steps {
        writeln!(text, "    {step:9} {what}").expect("a String takes any text");
    }
    text
}

/// What a trace has come to.
pub fn ended(ended: &Ended) -> String {
    let Ended {
        reason,
        seen,
        packets,
        lost_lines,
    } = ended;
    let mut text = format!("{packets} packets traced of {seen} looked at; over: {reason}");
    if *lost_lines != 0 {
        write!(text, "; {lost_lines} lines were lost, for want of room")
            .expect("a String takes any text");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_per_packet() {
        let shown = packet(&Packet {
            number: 3,
            microseconds: 1500,
            hook: "xdp".to_owned(),
            device: Some("eth0".to_owned()),
            protocol: Some("TCP".to_owned()),
            tcp_flags: vec!["SYN".to_owned()],
            source: Some("192.0.2.7:40000".parse().unwrap()),
            destination: Some("10.96.0.1:80".parse().unwrap()),
            flow: Some("opened".to_owned()),
            flow_facts: vec!["source NAT".to_owned()],
            service: Some("shop/web:http".to_owned()),
            flow_schema: Some("tenants".to_owned()),
            priority_level: Some("low".to_owned()),
            endpoint: Some("10.0.1.5:8080".parse().unwrap()),
            way: "redirect".to_owned(),
            leaves_by: Some("eth0".to_owned()),
            reason: "opened".to_owned(),
            ..Packet::default()
        });
        let expected = "\
#3 +0.001500 s  xdp of eth0
    parse     TCP 192.0.2.7:40000 > 10.96.0.1:80 SYN
    flow      opened, source NAT
    service   shop/web:http
    admission schema tenants, level low
    endpoint  10.0.1.5:8080
    way       redirect to eth0
    reason    opened
";
        assert_eq!(shown, expected);
    }
}
