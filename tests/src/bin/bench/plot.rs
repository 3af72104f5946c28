//! Plots: what a packet costs by the number of flows that are hit at random.

use std::{fs, path::Path};

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;

use crate::{
    cases::Work,
    report::{Report, Row},
};

/// Size of a plot in pixels.
const SIZE: (u32, u32) = (800, 500);

/// Plots and the first parts of the names of their cases, each a line.
const PLOTS: [(&str, &str, &[&str]); 2] = [
    (
        "flows-tcp.svg",
        "established TCP flows",
        &["tcp4-est", "tcp4-reply", "tcp6-est", "tcp6-reply"],
    ),
    (
        "flows-ipv4.svg",
        "established IPv4 flows",
        &["tcp4-est", "udp4-est", "tcp4-local"],
    ),
];

/// A line of a plot: its name, and nanoseconds by flows.
type Line = (String, Vec<(f64, f64)>);

/// Writes all plots that there are figures for.
///
/// # Errors
///
/// If the directory cannot be made or written to.
pub fn write(report: &Report, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    for (file, title, names) in PLOTS {
        let lines = lines(report.rows(), names);
        if lines.is_empty() {
            continue;
        }
        let path = directory.join(file);
        draw(&path, title, &lines, &floors(report.rows()))
            .map_err(|error| anyhow!("cannot plot {}: {error}", path.display()))?;
    }
    Ok(())
}

/// Ours, and the peer's if it has them.
fn lines(rows: &[Row], names: &[&str]) -> Vec<Line> {
    let mut lines = Vec::new();
    for name in names {
        let of_name = |row: &&Row| match row.case.name.rsplit_once('-') {
            Some((first, _)) => first == *name && matches!(row.case.work, Work::Established(..)),
            None => false,
        };
        let rows: Vec<&Row> = rows.iter().filter(of_name).collect();
        let flows = |row: &Row| f64::from(row.case.flows);
        let ours = rows
            .iter()
            .filter_map(|row| Some((flows(row), row.ours()?.median)));
        let peers = rows
            .iter()
            .filter_map(|row| Some((flows(row), row.peers()?.median)));
        lines.push(((*name).to_owned(), ours.collect()));
        lines.push((format!("{name}, peer"), peers.collect()));
    }
    lines.retain(|(_, points): &Line| points.len() > 1);
    lines
}

/// The hash lookups, as lines to compare with.
fn floors(rows: &[Row]) -> Vec<(&'static str, f64)> {
    let floors = rows.iter().filter(|row| row.case.name.starts_with("hash-"));
    floors
        .filter_map(|row| Some((row.case.name, row.ours()?.median)))
        .collect()
}

fn draw(
    path: &Path,
    title: &str,
    lines: &[Line],
    floors: &[(&'static str, f64)],
) -> Result<(), Box<dyn std::error::Error>> {
    let points = lines.iter().flat_map(|(_, points)| points);
    let levels = floors.iter().map(|(_, ns)| *ns);
    let top = points.map(|(_, ns)| *ns).chain(levels).fold(0.0, f64::max) * 1.1;
    let most = f64::from(1 << 20);

    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d((1.0..most).log_scale(), 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc("flows, hit at random")
        .y_desc("ns per packet")
        .x_label_formatter(&|flows| format!("{flows:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    for (name, ns) in floors {
        let style = BLACK.mix(0.4);
        chart
            .draw_series(LineSeries::new([(1.0, *ns), (most, *ns)], style))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    }
    for (index, (name, points)) in lines.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        chart
            .draw_series(
                LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3),
            )?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    area.present()?;
    Ok(())
}
