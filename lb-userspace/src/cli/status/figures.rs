//! The figures that `node-lb status` shows, a line each.

use std::fmt::Write as _;

use crate::agent::{attention::NEARLY_FULL, status::Status};

/// An age of what is shown that is worth mentioning, in milliseconds.
const OLD: u64 = 2000;
/// Problems shown of a kind; `-o json` has all of them.
const SHOWN: usize = 20;

/// Lines with a label and a value.
pub fn render(status: &Status) -> String {
    let mut lines = vec![
        ("Node", status.node.clone()),
        ("Version", status.version.clone()),
        ("Source", status.source.clone()),
    ];
    let api_server = status.api_server.iter();
    lines.extend(api_server.map(|way| ("API server", way.clone())));
    let addresses: Vec<_> = status
        .node_addresses
        .iter()
        .map(ToString::to_string)
        .collect();
    if !addresses.is_empty() {
        lines.push(("Addresses", addresses.join(", ")));
    }
    lines.extend(list("Node problem", status.node_problems.iter().cloned()));
    if status.local_addresses_left_out > 0 {
        let left_out = status.local_addresses_left_out;
        let text = format!(
            "{left_out} of the node's own find no room in LOCAL_ADDRESSES; raise \
             --local-address-table-size"
        );
        lines.push(("Addresses", text));
    }
    lines.extend(list("Not ready", status.not_ready.iter().cloned()));
    let in_sync = match (&status.in_sync_since, &status.last_sync) {
        (Some(since), Some(last)) => format!("since {since}, last change written {last}"),
        _ => "not yet: waiting for the source".to_owned(),
    };
    lines.push(("In sync", in_sync));
    lines.extend(status.syncing.iter().map(|syncing| {
        let (seconds, done) = (syncing.for_ms as f64 / 1e3, syncing.done);
        let text = format!(
            "for {seconds:.1} s: {done} of {} Services written",
            syncing.services
        );
        ("Syncing", text)
    }));
    let verification = &status.verification;
    lines.extend(verification.last_round.iter().map(|last| {
        let (seconds, records) = (verification.took_ms as f64 / 1e3, verification.records);
        let text = format!(
            "last {last}: {records} records compared in {seconds:.1} s; {} differences so far",
            verification.found.differences
        );
        ("Verified", text)
    }));
    let sent = &status.test_packets;
    lines.extend(sent.last_round.iter().map(|last| {
        let (seconds, packets) = (sent.took_ms as f64 / 1e3, sent.packets);
        let text = format!(
            "last {last}: {packets} to all Services within {seconds:.1} s; {} differences so far",
            sent.found.differences
        );
        ("Test packets", text)
    }));
    let not_sent = sent.not_sent.iter();
    lines.extend(not_sent.map(|why| ("Test packets", format!("none: {why}"))));
    if status.age_ms > OLD {
        let age = status.age_ms as f64 / 1e3;
        let text = format!("what follows is from {age:.1} s ago: the agent is busy since");
        lines.push(("Age", text));
    }
    lines.push((
        "Services",
        format!(
            "{} with {} service ports programmed, {} not",
            status.services,
            status.service_ports,
            status.not_programmed.len()
        ),
    ));
    let not_programmed = status.not_programmed.iter().map(|port| {
        let family = &port.family;
        format!(
            "{} {} {family}: {}",
            port.service_port, port.protocol, port.reason
        )
    });
    lines.extend(list("Not programmed", not_programmed));
    let left_to_node = status.left_to_node.iter().map(|port| {
        let address = port.address;
        format!("{} {}: {address}", port.service_port, port.protocol)
    });
    lines.extend(list("Left to node", left_to_node));
    let nearly_full = status
        .maps
        .iter()
        .filter(|map| map.percent() >= NEARLY_FULL);
    let nearly_full: Vec<_> = nearly_full
        .map(|map| {
            let (name, entries, capacity) = (&map.name, map.entries, map.capacity);
            format!(
                "{name}: {entries} of {capacity} entries, {} %",
                map.percent()
            )
        })
        .collect();
    lines.extend(list("Nearly full", nearly_full.into_iter()));
    let pressed = status.pressed.iter().map(|port| {
        let (half_open, gave_way) = (port.half_open, port.gave_way);
        format!(
            "{} {}: {half_open} half-open flows, {gave_way} gave way",
            port.service_port, port.protocol
        )
    });
    lines.extend(list("Under pressure", pressed));
    let at_limit = status.at_limit.iter().map(|port| {
        let (family, exhausted) = (&port.family, port.exhausted.join(", "));
        format!(
            "{} {} {family}: no more {exhausted}",
            port.service_port, port.protocol
        )
    });
    lines.extend(list("At their limit", at_limit));
    let limits = status.connection_limits.iter().map(|limit| {
        let whose = limit.service.as_deref().unwrap_or("node");
        let most = match limit.limit {
            0 => "no limit".to_owned(),
            most => format!("limit {most}"),
        };
        let (in_use, highest, refused) = (limit.in_use, limit.highest, limit.refused);
        let long_running = match limit.long_running {
            true => ", long-running",
            false => "",
        };
        let pressed = match limit.pressed {
            true => format!(
                ", under pressure: {} slow handshakes, so handshakes take no place",
                limit.slow_handshakes
            ),
            false => String::new(),
        };
        format!(
            "{whose}: {in_use} in use ({highest} at most in the last second), {most}, \
             {refused} refused{long_running}{pressed}"
        )
    });
    lines.extend(list("Connections", limits));
    if !matches!(status.admission.as_str(), "" | "off") {
        lines.push(("Admission", admission(status)));
    }
    let problems = status.admission_problems.iter().cloned();
    lines.extend(list("Admission", problems));
    let failing = status.failing.iter().map(|port| {
        let endpoints = port.endpoints.iter().map(ToString::to_string);
        let endpoints: Vec<_> = endpoints.collect();
        let endpoints = endpoints.join(", ");
        format!("{} {}: {endpoints}", port.service_port, port.protocol)
    });
    lines.extend(list("Failing endpoints", failing));
    lines.extend(status.devices.iter().map(|device| {
        let reason = device.reason.iter();
        let reason: String = reason.map(|reason| format!(" ({reason})")).collect();
        let text = format!("{}: {}, {}{reason}", device.name, device.role, device.mode);
        ("Device", text)
    }));
    lines.push((
        "Health checks",
        format!(
            "{} listening, {} failed",
            status.health_checks.listening,
            status.health_checks.problems.len()
        ),
    ));
    let problems = status.health_checks.problems.iter().cloned();
    lines.extend(list("Not listening", problems));
    lines.extend(status.flows.iter().flatten().map(|table| {
        let fill = 100.0 * f64::from(table.occupied) / f64::from(table.records.max(1));
        let (family, flows) = (&table.family, table.flows);
        (
            "Flows",
            format!("{family}: {flows}, table {fill:.1} % full"),
        )
    }));
    let change = status.flow_table_size.change.iter();
    lines.extend(change.map(|change| ("Flow table", change.clone())));
    let trace = status.trace.iter();
    lines.extend(trace.map(|trace| ("Trace", trace.clone())));
    let problems = status.source_problems.iter().cloned();
    lines.extend(list("Source problem", problems));

    let mut text = String::new();
    for (label, line) in lines {
        writeln!(text, "{label:14}  {line}").expect("a String takes any text");
    }
    text
}

/// How many connections priority levels have, and which of them have no seat left or are under
/// pressure.
fn admission(status: &Status) -> String {
    let levels = &status.priority_levels;
    let in_use: u64 = levels.iter().map(|level| u64::from(level.in_use)).sum();
    let full = levels
        .iter()
        .filter(|level| !level.exempt && level.in_use >= level.limit);
    let full: Vec<_> = full
        .filter(|level| level.limit > 0)
        .map(|level| level.name.as_str())
        .collect();
    let full = match full.is_empty() {
        true => "none is at its limit".to_owned(),
        false => format!("at their limit: {}", full.join(", ")),
    };
    let pressed = levels.iter().filter(|level| level.pressed);
    let pressed: Vec<_> = pressed.map(|level| level.name.as_str()).collect();
    let pressed = match pressed.is_empty() {
        true => String::new(),
        false => format!(
            ", under pressure by slow handshakes: {}",
            pressed.join(", ")
        ),
    };
    format!(
        "{}: {in_use} connections in {} priority levels, {full}{pressed} (`node-lb admission levels`)",
        status.admission,
        levels.len()
    )
}

/// Lines with the same label, shortened if there are many.
fn list(
    label: &'static str,
    items: impl ExactSizeIterator<Item = String>,
) -> impl Iterator<Item = (&'static str, String)> {
    let more = items.len().saturating_sub(SHOWN);
    let more = (more > 0).then(|| format!("and {more} more"));
    items.take(SHOWN).chain(more).map(move |item| (label, item))
}
