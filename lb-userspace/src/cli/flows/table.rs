//! The readable form of `node-lb flows`: one aligned line per flow.

use std::{fmt::Write, time::Duration};

use crate::{cli::output::aligned, flows::FlowReport};

/// The flows. `total` is how many there would be without the limit.
pub fn render(flows: &[FlowReport], total: usize) -> String {
    if total == 0 {
        return "No flows.\n".to_owned();
    }
    let mut rows = vec![
        [
            "PROTOCOL",
            "CLIENT",
            "FRONTEND",
            "ENDPOINT",
            "SOURCE NAT",
            "STAGE",
            "IDLE",
            "MODE",
            "SERVICE",
        ]
        .map(str::to_owned),
    ];
    rows.extend(flows.iter().map(row));
    let mut text = aligned(&rows);
    if flows.len() < total {
        writeln!(text, "and {} more", total - flows.len()).expect("a String takes any text");
    }
    text
}

fn row(flow: &FlowReport) -> [String; 9] {
    [
        flow.protocol.clone(),
        flow.client.to_string(),
        flow.frontend.to_string(),
        flow.endpoint.to_string(),
        flow.source_nat
            .map_or_else(|| "-".to_owned(), |address| address.to_string()),
        flow.stage.to_owned(),
        humantime::format_duration(Duration::from_secs(flow.idle_seconds)).to_string(),
        flow.mode.to_owned(),
        flow.service.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}
