//! What of an agent's state needs attention, in sentences with remedies.

#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::Serialize;

use super::status::{ConnectionLimit, PriorityLevel, Status};
use crate::{check::Finding, docs::Section};

/// Of a map's entries, or a table's records, how many in a hundred are in use when it is nearly full.
pub const NEARLY_FULL: u64 = 80;
/// Findings of a kind; the figures have more.
const SHOWN: usize = 5;
/// An agent that is busy with one thing for longer than this keeps changes waiting.
const LONG: Duration = Duration::from_secs(10);

/// An agent's state, and before it what of that needs attention: one JSON object.
#[derive(Serialize)]
pub struct Report {
    pub attention: Vec<Finding>,
    #[serde(flatten)]
    pub status: Status,
}

impl Report {
    /// Judges a state.
    pub fn of(status: Status) -> Self {
        Self {
            attention: of(&status),
            status,
        }
    }
}

/// What needs attention, the worst first. What passes within seconds by itself does not.
pub fn of(status: &Status) -> Vec<Finding> {
    let mut findings: Vec<_> = [
        agent(status),
        source(status),
        node(status),
        data_plane(status),
        services(status),
        maps(status),
        flows(status),
        endpoints(status),
        connections(status),
        admission(status),
        health_checks(status),
    ]
    .into_iter()
    .flatten()
    .collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    findings
}

/// What the agent has not done, or does not get done.
fn agent(status: &Status) -> Vec<Finding> {
    let mut findings = some(&status.not_ready, |check| {
        let found = format!("the agent is not ready: {check}");
        let remedy = "the log says more of this check";
        Finding::failure("Agent", found, remedy).see(Section::NotReady)
    });
    let busy = status.syncing.as_ref().map_or(0, |sync| sync.for_ms);
    let busy = Duration::from_millis(busy.max(status.age_ms));
    if busy > LONG {
        let found = format!(
            "the agent has been busy with the same changes for {} s, and others wait",
            busy.as_secs()
        );
        let remedy = "look at its log and at the processor's load; after a minute /livez fails, and the kubelet \
                      starts the agent anew";
        findings.push(Finding::failure("Agent", found, remedy).see(Section::Stuck));
    }
    findings
}

/// What of the source the agent cannot follow or use.
fn source(status: &Status) -> Vec<Finding> {
    some(&status.source_problems, |problem| {
        let remedy = "what was known before stays in force; correct the object, or what keeps the agent from the \
                      API server";
        Finding::warning("Source", problem, remedy).see(Section::SourceProblem)
    })
}

/// What of the node is in the way.
fn node(status: &Status) -> Vec<Finding> {
    let mut findings = some(&status.node_problems, |problem| {
        let remedy = "`node-lb check` looks for the cause";
        Finding::warning("Node", problem, remedy).see(Section::NodeProblem)
    });
    if status.local_addresses_left_out > 0 {
        let found = format!(
            "{} of the node's own addresses find no room, and packets from them count as from outside",
            status.local_addresses_left_out
        );
        let remedy = "raise --local-address-table-size";
        findings.push(Finding::warning("Node", found, remedy).see(Section::NodeProblem));
    }
    findings
}

/// What others have changed of the data plane, and what it does that it should not.
fn data_plane(status: &Status) -> Vec<Finding> {
    let (changed, otherwise) = (&status.verification.found, &status.test_packets.found);
    let changed = changed.recent().map(|latest| {
        let found = format!(
            "{} records of the data plane were not as the agent had written them within the last hour, and were put \
             right; the latest, at {}: {}",
            changed.within_an_hour, latest.at, latest.what
        );
        let remedy = "find what else writes to node-lb's maps or detaches its programs";
        Finding::warning("Data plane", found, remedy).see(Section::DataPlaneChanged)
    });
    let otherwise = otherwise.recent().map(|latest| {
        let found = format!(
            "programs did something else with {} test packets than Services ask for within the last hour; the \
             latest, at {}: {}",
            otherwise.within_an_hour, latest.at, latest.what
        );
        let remedy = "`node-lb verify` says what differs now; if nothing else writes to node-lb's maps, report it";
        Finding::failure("Data plane", found, remedy).see(Section::TestPacketsDiffer)
    });
    changed.into_iter().chain(otherwise).collect()
}

/// Services that are not served, or not wholly.
fn services(status: &Status) -> Vec<Finding> {
    let not_programmed = &status.not_programmed;
    let mut findings = some(not_programmed, |port| {
        let (name, protocol, family) = (&port.service_port, &port.protocol, &port.family);
        let found = format!(
            "{name} {protocol} {family} is not served as it should be: {}",
            port.reason
        );
        Finding::failure("Services", found, &port.remedy).see(Section::NotProgrammed)
    });
    let at_limit = some(&status.at_limit, |port| {
        let (name, protocol, family) = (&port.service_port, &port.protocol, &port.family);
        let found = format!(
            "{name} {protocol} {family} has no more {}",
            port.exhausted.join(", ")
        );
        Finding::failure("Services", found, port.remedies.join("; ")).see(Section::AtLimit)
    });
    findings.extend(at_limit);
    let pressed = some(&status.pressed, |port| {
        let found = format!(
            "{} {} has {} half-open flows: spoofed SYNs, or endpoints that do not answer",
            port.service_port, port.protocol, port.half_open
        );
        let remedy =
            "`node-lb flows` shows the sources; clients that complete their handshakes get through";
        Finding::warning("Services", found, remedy).see(Section::HalfOpenFlood)
    });
    findings.extend(pressed);
    findings
}

/// Maps that are full, or soon will be.
fn maps(status: &Status) -> Vec<Finding> {
    let full = status
        .maps
        .iter()
        .filter(|map| map.percent() >= NEARLY_FULL);
    let full: Vec<_> = full.collect();
    some(&full, |map| {
        let found = format!(
            "map {} is {} % full: {} of {} entries",
            map.name,
            map.percent(),
            map.entries,
            map.capacity
        );
        let remedy = match &map.setting {
            Some(setting) => format!("set a larger {setting}, or delete what fills it"),
            None => "delete what fills it".to_owned(),
        };
        let finding = match map.entries < map.capacity {
            true => Finding::warning("Maps", found, &remedy),
            false => Finding::failure("Maps", found, &remedy),
        };
        finding.see(Section::MapFull)
    })
}

/// Flow tables that are full, or soon will be, and service ports that soon have all that one may have.
fn flows(status: &Status) -> Vec<Finding> {
    let tables = || status.flows.iter().flatten();
    let full = tables().filter(|table| {
        u64::from(table.occupied) * 100 >= u64::from(table.records) * NEARLY_FULL
            && table.records > 0
    });
    let full: Vec<_> = full.collect();
    let busy = tables().filter_map(|table| {
        let busiest = table.busiest.as_ref()?;
        (busiest.flows * 100 >= table.flows_of_one * NEARLY_FULL).then_some((table, busiest))
    });
    let busy: Vec<_> = busy.collect();
    let mut findings = some(&full, |table| {
        let found = format!(
            "{} of {} records of the {} flow table are in use; new connections are dropped when none is free",
            table.occupied, table.records, table.family
        );
        let remedy = "`node-lb flows` shows which Services fill it; set a larger --flow-table-size";
        Finding::warning("Flows", found, remedy).see(Section::FlowTableFull)
    });
    findings.extend(some(&busy, |(table, busiest)| {
        let found = format!(
            "{} {} has {} of the {} flows that one service port may have in the {} flow table; then its new connections \
             are dropped",
            busiest.service_port,
            busiest.protocol,
            busiest.flows,
            table.flows_of_one,
            table.family
        );
        let remedy = "`node-lb top` shows its clients; limit them, or set a larger --flow-table-size";
        Finding::warning("Flows", found, remedy).see(Section::ServicePortFills)
    }));
    findings
}

/// Endpoints that do not serve.
fn endpoints(status: &Status) -> Vec<Finding> {
    let mut findings = some(&status.silent_nodes, |silent| {
        let (node, endpoints) = (&silent.node, silent.endpoints);
        let found = format!(
            "none of the {endpoints} endpoints on node {node} that were tried answers: the node is gone, or the way to \
             it is broken"
        );
        let remedy = format!(
            "look at node {node} and at the pods' network on the way there; new connections avoid these endpoints"
        );
        Finding::warning("Endpoints", found, &remedy).see(Section::EndpointsFail)
    });
    findings.extend(some(&status.failing, |port| {
        let endpoints: Vec<_> = port.endpoints.iter().map(ToString::to_string).collect();
        let found = format!(
            "endpoints of {} {} refuse connections or do not answer: {}",
            port.service_port,
            port.protocol,
            endpoints.join(", ")
        );
        let remedy = "check these pods: their port, readiness probe and network policies, and the way to their \
                      node; new connections avoid them";
        Finding::warning("Endpoints", found, remedy).see(Section::EndpointsFail)
    }));
    findings
}

/// Limits of connections that clients meet.
fn connections(status: &Status) -> Vec<Finding> {
    let of = |limit: &ConnectionLimit| match &limit.service {
        Some(service) => format!("Service {service}"),
        None => "the node".to_owned(),
    };
    let limits = status.connection_limits.iter();
    let full = limits
        .clone()
        .filter(|limit| limit.limit > 0 && limit.in_use >= limit.limit);
    let full: Vec<_> = full.collect();
    let mut findings = some(&full, |limit| {
        let found = format!(
            "{} has all of its {} connections, and refuses more: {} so far",
            of(limit),
            limit.limit,
            limit.refused
        );
        let raise = match limit.service {
            Some(_) => "raise the annotation node-lb.io/max-connections",
            None => "raise --max-connections",
        };
        let remedy = format!("{raise}, or find with `node-lb flows` who holds them");
        Finding::warning("Connections", found, &remedy).see(Section::ConnectionLimit)
    });
    let pressed: Vec<_> = limits.filter(|limit| limit.pressed).collect();
    findings.extend(some(&pressed, |limit| {
        slow_handshakes("Connections", &of(limit), limit.slow_handshakes)
    }));
    findings
}

/// Priority levels without a free seat, and objects that are wrong.
fn admission(status: &Status) -> Vec<Finding> {
    let mut findings = some(&status.admission_problems, |problem| {
        let remedy = "correct the object; its last valid version is in force";
        Finding::warning("Admission", problem, remedy).see(Section::AdmissionObjects)
    });
    let levels = status.priority_levels.iter();
    let is_full =
        |level: &&PriorityLevel| !level.exempt && level.limit > 0 && level.in_use >= level.limit;
    let full: Vec<_> = levels.clone().filter(is_full).collect();
    findings.extend(some(&full, |level| {
        let found = format!(
            "priority level {} has no seat left of {}: {} connections wait, {} were refused so far",
            level.name, level.limit, level.waiting, level.refused
        );
        let remedy = "`node-lb admission connections` shows who holds the seats; give it more shares, or those who \
                      hold them a level of their own";
        Finding::warning("Admission", found, remedy).see(Section::LevelFull)
    }));
    let pressed: Vec<_> = levels.filter(|level| level.pressed).collect();
    findings.extend(some(&pressed, |level| {
        let whose = format!("priority level {}", level.name);
        slow_handshakes("Admission", &whose, level.slow_handshakes)
    }));
    findings
}

/// Health checks that load balancers do not get an answer from.
fn health_checks(status: &Status) -> Vec<Finding> {
    some(&status.health_checks.problems, |problem| {
        let remedy = "`ss -ltnp` names the process; the agent tries again every few seconds";
        Finding::failure("Health checks", problem, remedy).see(Section::HealthChecks)
    })
}

fn slow_handshakes(check: &str, whose: &str, handshakes: u32) -> Finding {
    let found = format!(
        "{whose} has {handshakes} slow handshakes, so that handshakes take no place: spoofed SYNs, or endpoints \
         that do not answer"
    );
    let remedy =
        "`node-lb flows` shows the sources; clients that complete their handshakes get through";
    Finding::warning(check, found, remedy).see(Section::Handshakes)
}

/// Findings about the first of these, and how many more there are.
fn some<T>(items: &[T], finding: impl Fn(&T) -> Finding) -> Vec<Finding> {
    let mut findings: Vec<_> = items.iter().take(SHOWN).map(finding).collect();
    let more = items.len().saturating_sub(SHOWN);
    if let Some(last) = findings.last_mut().filter(|_| more > 0) {
        last.found += &format!(" (and {more} more like this)");
    }
    findings
}
