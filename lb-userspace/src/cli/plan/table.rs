//! The readable form of `node-lb plan`: a block of aligned lines per service port.

use std::{fmt::Write, time::Duration};

use crate::plan::report::{FrontendReport, PortReport};

/// Longer sets are shortened; `-o json` shows all of them.
const SHOWN_ENDPOINTS: usize = 16;

pub fn render(ports: &[PortReport<'_>]) -> String {
    if ports.is_empty() {
        return "No Services.\n".to_owned();
    }
    let blocks: Vec<_> = ports.iter().map(block).collect();
    blocks.join("\n")
}

fn block(port: &PortReport<'_>) -> String {
    let mut lines = vec![];
    let width = port.frontends.iter().map(|f| f.address.len()).max();
    for frontend in &port.frontends {
        lines.push((
            frontend.kind,
            format!(
                "{:width$}  {:7}  {}",
                frontend.address,
                frontend.policy,
                outcome(frontend),
                width = width.unwrap_or_default()
            ),
        ));
    }
    if let Some(endpoints) = &port.cluster_endpoints {
        lines.push(("Cluster set", set(endpoints)));
    }
    if let Some(endpoints) = &port.local_endpoints {
        lines.push(("Local set", set(endpoints)));
    }
    if let Some(seconds) = port.session_affinity_seconds {
        let timeout = humantime::format_duration(Duration::from_secs(seconds));
        lines.push(("Affinity", format!("client IP, for {timeout}")));
    }
    for health in port.health_checks {
        lines.push((
            "Health check",
            format!(
                "{} port {} answers {}: {} ready on this node",
                health.family,
                health.port,
                health.status(),
                counted(health.local_ready)
            ),
        ));
    }
    for note in &port.notes {
        lines.push(("Note", (*note).to_owned()));
    }

    let mut block = format!("{}\n", port.title);
    for (label, text) in lines {
        writeln!(block, "  {label:14}  {text}").expect("a String takes any text");
    }
    block
}

fn outcome(frontend: &FrontendReport) -> String {
    let mut outcome = match frontend.verdict.as_str() {
        "reject" => "reject: no usable endpoint anywhere".to_owned(),
        "drop" => "drop: usable endpoints are on other nodes only".to_owned(),
        verdict => format!("{verdict} to {}", counted(frontend.endpoints)),
    };
    if !frontend.source_ranges.is_empty() {
        let ranges = frontend.source_ranges.join(", ");
        write!(outcome, "; only from {ranges}").expect("a String takes any text");
    }
    outcome
}

fn set(endpoints: &[String]) -> String {
    match endpoints.len() {
        0 => "empty".to_owned(),
        len if len > SHOWN_ENDPOINTS => {
            let shown = endpoints[..SHOWN_ENDPOINTS].join(", ");
            format!("{shown} and {} more", len - SHOWN_ENDPOINTS)
        }
        _ => endpoints.join(", "),
    }
}

fn counted(endpoints: usize) -> String {
    match endpoints {
        1 => "1 endpoint".to_owned(),
        n => format!("{n} endpoints"),
    }
}
