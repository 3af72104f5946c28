//! What it costs the agent to check the data plane all the time, and whether it ever finds something where nothing is
//! wrong: as many rounds as a day has, one after the other, while everything changes.

mod cost;
mod day;

use anyhow::Result;
use serde_json::json;

use self::{cost::Cost, day::Day};
use crate::{
    options::{Options, Part},
    report::Findings,
    statistics::millis,
    table::Table,
};

/// Measures the checks for each number of Services, then has a day of them.
///
/// # Errors
///
/// Without root, or if the agent does not do its work.
pub fn run(options: &Options) -> Result<Findings> {
    let mut costs = Vec::new();
    for services in options.services(Part::SelfChecks) {
        for checks in [false, true] {
            costs.push(cost::measure(services, checks, options)?);
            eprintln!("self-checks: {services} services done, checks: {checks}");
        }
    }
    let day = day::pass(options)?;
    Ok(Findings {
        key: "self_checks",
        tables: vec![cost_table(&costs), day_table(&day)],
        json: json!({
            "costs": costs.iter().map(Cost::json).collect::<Vec<_>>(),
            "day": day.json(),
        }),
        plots: Vec::new(),
    })
}

fn cost_table(costs: &[Cost]) -> Table {
    let columns = [
        "services",
        "checks",
        "agent % of a CPU",
        "records",
        "round s",
        "of it work ms",
        "test packets",
        "round s",
        "of it work ms",
    ];
    let mut table = Table::new("The agent's checks of the data plane", 2, &columns);
    for cost in costs {
        let checks = if cost.checks { "yes" } else { "no" };
        let mut row = vec![
            cost.services.to_string(),
            checks.to_owned(),
            format!("{:.2}", cost.cpu * 100.0),
        ];
        for round in [cost.comparison, cost.test_packets] {
            row.extend(match round {
                None => ["-"; 3].map(str::to_owned),
                Some(round) => [
                    round.number.to_string(),
                    format!("{:.1}", round.took.as_secs_f64()),
                    format!("{:.0}", millis(round.worked)),
                ],
            });
        }
        table.add(row);
    }
    table
}

fn day_table(day: &Day) -> Table {
    let columns = [
        "",
        "rounds",
        "a day has",
        "compared",
        "differences",
        "minutes",
    ];
    let mut table = Table::new("A day of checks while everything changes", 1, &columns);
    table.notes.push(format!(
        "{} endpoints replaced, {} Services made and deleted, {} devices of pods that came and went",
        day.endpoints, day.services, day.devices
    ));
    for (name, check) in [
        ("maps, programs, plans", day.comparison),
        ("test packets", day.test_packets),
    ] {
        table.add(vec![
            name.to_owned(),
            check.rounds.to_string(),
            check.a_day_has.to_string(),
            check.compared.to_string(),
            check.differences.to_string(),
            format!("{:.0}", day.took.as_secs_f64() / 60.0),
        ]);
    }
    table
}
