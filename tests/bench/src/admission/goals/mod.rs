//! The goals of connection admission on live traffic: what a quiet client sees of a flood and of a busy
//! client, how evenly clients take turns and how soon, how a level recovers from too much, and what
//! connections cost that wait. Each is measured in a lab of its own.

mod crowd;
mod ground;
mod quiet;
mod sheet;
mod step;
mod turns;
mod wire;

use std::time::Duration;

use anyhow::{Context, Result};
use lb_tests::traffic::allow_many_files;
use serde_json::{Map, json};

use self::sheet::Sheet;
use crate::{
    cluster::agent::xdp_flag,
    lab::idle::{self, Begun},
    options::{Options, Part},
    report::Findings,
};

/// How long clients wait after a failure before they connect again.
const BACK_OFF: Duration = Duration::from_millis(100);
/// How long to wait for an idle machine.
const PATIENCE: Duration = Duration::from_secs(2);

/// Measures each goal.
///
/// # Errors
///
/// Without root, or if something cannot be measured.
pub fn run(options: &Options) -> Result<Findings> {
    allow_many_files()?;
    let xdp = xdp_flag(options.xdp_mode)?;
    let mut begun = Begun::default();
    let mut begin = |what: &str| -> Result<()> {
        eprintln!("admission goals: {what}");
        begun.count(idle::wait(PATIENCE)?);
        Ok(())
    };
    let extent = quiet::Extent::of(options);
    let mut quiet = Sheet::new(
        "A quiet client while others load the node",
        "quiet",
        quiet::COLUMNS,
        quiet_notes(extent),
    );
    let mut turns = Sheet::new(
        "Turns of five clients",
        "turns",
        turns::COLUMNS,
        turns_notes(),
    );
    let steps = step::Extent::of(options);
    let mut step = Sheet::new(
        "A step to 1.4 times the capacity",
        "step",
        step::COLUMNS,
        step_notes(),
    );
    let mut crowd = Sheet::new(
        "Many connections that wait",
        "crowd",
        crowd::COLUMNS,
        crowd_notes(),
    );
    for _ in 0..options.rounds(Part::AdmissionGoals) {
        for case in quiet::Case::ALL {
            begin(case.name())?;
            let samples = quiet::measure(case, extent, &xdp).context(case.name())?;
            for sample in samples {
                quiet.add(case.name(), sample);
            }
        }
        for hold in turns::Hold::of(options) {
            let name = hold.name();
            begin(&name)?;
            let sample = turns::measure(hold, &xdp).with_context(|| name.clone())?;
            turns.add(&name, sample);
        }
        let name = format!("1.4 times for {:?}", steps.step);
        begin(&name)?;
        let sample = step::measure(steps, &xdp).with_context(|| name.clone())?;
        step.add(&name, sample);
        begin("a crowd that waits")?;
        for (name, sample) in crowd::measure(&xdp).context("a crowd that waits")? {
            crowd.add(name, sample);
        }
    }

    let sheets = [quiet, turns, step, crowd];
    let json = sheets
        .iter()
        .map(|sheet| (sheet.key.to_owned(), sheet.json()));
    let mut json = Map::from_iter(json);
    json.insert("busy_samples".to_owned(), json!(begun.busy));
    let mut tables: Vec<_> = sheets.iter().map(Sheet::table).collect();
    tables[0].notes.push(begun.note());
    Ok(Findings {
        key: "admission_goals",
        tables,
        json: json.into(),
        plots: Vec::new(),
    })
}

fn quiet_notes(extent: quiet::Extent) -> Vec<String> {
    vec![
        format!(
            "{:?} idle, {:?} beside a control and {:?} beside the load, {} times; the quiet client connects, has its \
             answer and closes, again after {:?}",
            extent.window,
            extent.window,
            extent.window,
            extent.cycles,
            quiet::PAUSE
        ),
        format!(
            "levels of {} seats; {} SYNs a second are sent, and the control's to a port of the node without Service, \
             where nftables drops them; the busy client wants {} connections of {:?}, and beside it as a control the \
             quiet one is in another level",
            quiet::SEATS,
            quiet::FLOOD,
            quiet::WANTED,
            quiet::HOLD
        ),
    ]
}

fn turns_notes() -> Vec<String> {
    vec![
        "they always have or want 0.5, 1, 2, 5 and 10 times the seats in connections, which wait for at most 5 s; from \
         the segments at the endpoint's device"
            .to_owned(),
    ]
}

fn step_notes() -> Vec<String> {
    vec![format!(
        "a level of {} seats, a client with {} connections of {:?} that wants {} more for a time; the 99th percentile \
         is that of connections which begin within {:?}: before, what 95 % of such windows do not exceed",
        step::SEATS,
        step::USUAL,
        step::HOLD,
        step::MORE,
        step::WINDOW
    )]
}

fn crowd_notes() -> Vec<String> {
    vec![format!(
        "{} SYNs from addresses without number, divided between two levels whose {} seats are taken; each waits \
         for {:?}",
        crowd::CROWD,
        crowd::SEATS,
        crowd::WAIT
    )]
}
