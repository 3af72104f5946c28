//! A simulation's report for people.

use std::fmt::Write as _;

use lb_admission::simulate::{
    Report,
    report::{Fairness, LevelReport, Waits},
};

pub fn render(report: &Report) -> String {
    let mut text = format!(
        "{} connections, {:.3} s; {} still waiting\n",
        report.connections,
        report.end_ns as f64 / 1e9,
        report.still_waiting
    );
    let columns = "ADMITTED  REJECTED   WAIT P50   WAIT P99   WAIT MAX";
    let _ = writeln!(
        text,
        "\n{:<24}  {columns}  QUEUE-FULL  CONCURRENCY-LIMIT  FLOW-LIMIT  TIME-OUT  MAX SEATS",
        "LEVEL"
    );
    for level in &report.levels {
        let rejections = level.rejections;
        let all = rejections.all();
        let _ = writeln!(
            text,
            "{}  {:>10}  {:>17}  {:>10}  {:>8}  {:>9}",
            outcomes(&level.name, level.executions, all, &level.wait_ns),
            rejections.queue_full,
            rejections.concurrency_limit,
            rejections.flow_limit,
            rejections.time_out,
            level.max_seats_in_use,
        );
    }
    if !(report.clients.is_empty() && report.sources.is_empty()) {
        let _ = writeln!(
            text,
            "\n{:<24}  {columns}  AVERAGE SEATS",
            "CLIENT OR SOURCE"
        );
    }
    let clients = (0..).map(|index| format!("client {index}"));
    let sources = report
        .sources
        .iter()
        .map(|source| source.name.clone().unwrap_or_default());
    let named = clients
        .zip(&report.clients)
        .chain(sources.zip(&report.sources));
    for (name, group) in named {
        let outcomes = outcomes(&name, group.executions, group.rejections, &group.wait_ns);
        let _ = writeln!(text, "{outcomes}  {}", averages(&group.average_seats));
    }
    for level in &report.levels {
        text.push_str(&fairness(level));
    }
    text
}

fn outcomes(name: &str, admitted: u64, rejected: u64, waits: &Waits) -> String {
    let [p50, p99, max] = [waits.p50, waits.p99, waits.max].map(wait);
    format!("{name:<24}  {admitted:>8}  {rejected:>8}  {p50:>9}  {p99:>9}  {max:>9}")
}

fn wait(nanoseconds: u64) -> String {
    match nanoseconds as f64 {
        ns if ns >= 1e9 => format!("{:.2} s", ns / 1e9),
        ns if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} us", ns / 1e3),
    }
}

fn averages(seats: &[f64]) -> String {
    let seats: Vec<_> = seats.iter().map(|seats| format!("{seats:.3}")).collect();
    seats.join("  ")
}

fn fairness(level: &LevelReport) -> String {
    let Fairness {
        flows,
        jain_seat_seconds,
        jain_seats,
    } = level.fairness;
    let index = |index: Option<f64>| index.map_or("-".to_owned(), |index| format!("{index:.3}"));
    format!(
        "\n{}: {flows} flows, Jain's index of seat-seconds {}, of seats while connections wait {}\n",
        level.name,
        index(jain_seat_seconds),
        index(jain_seats)
    )
}
