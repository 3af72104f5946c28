//! A plot of the quiet tenant's wait against the noisy tenant's load.

use std::path::Path;

use anyhow::{Result, anyhow};
use lb_admission::queueset::Policy;
use plotters::prelude::*;

use crate::tenants::{Outcome, mode};

/// Size in pixels.
const SIZE: (u32, u32) = (800, 500);

/// Draws the 99th percentile of waits, one line for each hold and mode. Refused connections count
/// as waits of a whole second.
///
/// # Errors
/// If the file cannot be written.
pub fn write(outcomes: &[Outcome], path: &Path) -> Result<()> {
    draw(outcomes, path).map_err(|error| anyhow!("cannot plot {}: {error}", path.display()))
}

fn draw(outcomes: &[Outcome], path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("quiet tenant: 99 % wait less", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d((0.5..20.0).log_scale(), (0.0001..1.1).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("noisy tenant's load, as a multiple of what the level can take")
        .y_desc("seconds")
        .light_line_style(WHITE)
        .draw()?;
    let lines =
        outcomes.chunk_by(|one, other| one.hold == other.hold && one.policy == other.policy);
    for (index, line) in lines.enumerate() {
        let Some(Outcome { hold, policy, .. }) = line.first().copied() else {
            continue;
        };
        // One colour for each hold. The lines of the exact mode are thin.
        let color = Palette99::pick(index / 2).to_rgba();
        let style = color.stroke_width(if policy == Policy::Exact { 1 } else { 3 });
        let point = |outcome: &Outcome| {
            let wait = if outcome.refused > 0.01 {
                1.0
            } else {
                outcome.p99
            };
            (outcome.load, wait.max(0.0001))
        };
        chart
            .draw_series(LineSeries::new(line.iter().map(point), style).point_size(3))?
            .label(format!("{hold} s, {}", mode(policy)))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    area.present()?;
    Ok(())
}
