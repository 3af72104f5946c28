//! Line plots over a logarithmic axis.

use std::{error::Error, path::Path};

use plotters::prelude::*;

/// Size of a plot in pixels.
const SIZE: (u32, u32) = (800, 500);

/// Lines, and levels to compare them with.
#[derive(Clone, Debug)]
pub struct Lines {
    /// Name of its file.
    pub file: &'static str,
    pub title: &'static str,
    /// What the axes show.
    pub axes: [&'static str; 2],
    pub lines: Vec<Line>,
    /// Levels to compare with: name and height.
    pub levels: Vec<(String, f64)>,
}

/// A line: its name and its points, whose first coordinates are 1 or more.
#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

impl Lines {
    /// Writes the plot, if there is a line of more than one point.
    pub fn draw(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        let lines = self.lines.iter().filter(|line| line.points.len() > 1);
        let lines: Vec<&Line> = lines.collect();
        if lines.is_empty() {
            return Ok(());
        }
        draw(path, self, &lines)
    }
}

fn draw(path: &Path, plot: &Lines, lines: &[&Line]) -> Result<(), Box<dyn Error>> {
    let points = || lines.iter().flat_map(|line| line.points.iter().copied());
    let heights = points().map(|(_, y)| y);
    let heights = heights.chain(plot.levels.iter().map(|(_, level)| *level));
    // With room for the legend.
    let top = heights.fold(0.0, f64::max) * 1.4;
    let end = points().map(|(x, _)| x).fold(2.0, f64::max);

    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(plot.title, ("sans-serif", 20))
        .margin(12)
        .margin_right(36)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d((1.0..end).log_scale(), 0.0..top)?;
    let [x, y] = plot.axes;
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .light_line_style(WHITE)
        .draw()?;
    for (index, (name, level)) in plot.levels.iter().enumerate() {
        let style = BLACK.mix(0.3 + 0.4 * index as f64);
        chart
            .draw_series(LineSeries::new([(1.0, *level), (end, *level)], style))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    }
    for (index, line) in lines.iter().enumerate() {
        let style = Palette99::pick(index).to_rgba().stroke_width(2);
        let points = line.points.iter().copied();
        chart
            .draw_series(LineSeries::new(points, style).point_size(3))?
            .label(&line.name)
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
