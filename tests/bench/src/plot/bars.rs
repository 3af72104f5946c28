//! Panels of bars: one figure each, with the compared proxies side by side.

use std::{error::Error, path::Path};

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

/// Panels beside each other.
const COLUMNS: usize = 3;
/// Size of a panel in pixels.
const PANEL: (u32, u32) = (280, 240);
/// Height of what is above the panels.
const HEADER: u32 = 60;
/// Share of a group's width that its bars take.
const FILLED: f64 = 0.8;
const FONT: &str = "sans-serif";

/// Panels of bars.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Name of its file.
    pub file: &'static str,
    pub title: &'static str,
    /// Names of the bars, in the order of each group.
    pub names: Vec<&'static str>,
    pub panels: Vec<Panel>,
}

/// One figure.
#[derive(Clone, Debug)]
pub struct Panel {
    pub title: &'static str,
    /// Decimals of the numbers on the bars.
    pub decimals: usize,
    pub groups: Vec<Group>,
}

/// Bars side by side.
#[derive(Clone, Debug)]
pub struct Group {
    pub label: String,
    pub heights: Vec<f64>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

impl Bars {
    /// Writes the plot, if there is a panel.
    pub fn draw(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        if self.panels.is_empty() {
            return Ok(());
        }
        let rows = self.panels.len().div_ceil(COLUMNS);
        let size = (PANEL.0 * COLUMNS as u32, PANEL.1 * rows as u32 + HEADER);
        let area = SVGBackend::new(path, size).into_drawing_area();
        area.fill(&WHITE)?;
        let (header, body) = area.split_vertically(HEADER);
        self.draw_header(&header)?;
        for (panel, area) in self.panels.iter().zip(body.split_evenly((rows, COLUMNS))) {
            panel.draw(&area)?;
        }
        area.present()?;
        Ok(())
    }

    /// The title, and below it the meaning of the colours.
    fn draw_header(&self, area: &Area) -> Result<(), Box<dyn Error>> {
        area.draw(&Text::new(self.title, (16, 12), (FONT, 20)))?;
        let room = PANEL.0 as usize * COLUMNS - 16;
        let width = (room / self.names.len().max(1)).min(120);
        for (index, name) in self.names.iter().enumerate() {
            let x = 16 + (width * index) as i32;
            let square = [(x, 40), (x + 12, 52)];
            area.draw(&Rectangle::new(square, color(index).filled()))?;
            area.draw(&Text::new(*name, (x + 18, 40), (FONT, 14)))?;
        }
        Ok(())
    }
}

impl Panel {
    fn draw(&self, area: &Area) -> Result<(), Box<dyn Error>> {
        let heights = self.groups.iter().flat_map(|group| &group.heights);
        let highest = heights.copied().fold(0.0, f64::max);
        // With room for the numbers on the bars. A figure that is 0 everywhere has an axis, too.
        let top = if highest > 0.0 { highest * 1.2 } else { 1.0 };
        let count = self.groups.len();
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, (FONT, 14))
            .margin(10)
            .x_label_area_size(24)
            .y_label_area_size(44)
            .build_cartesian_2d(-0.5..count as f64 - 0.5, 0.0..top)?;
        // Group I is around I on the axis.
        let label = |x: &f64| {
            let group = self.groups.get(x.round() as usize);
            group.map_or(String::new(), |group| group.label.clone())
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .x_labels(count)
            .x_label_formatter(&label)
            .y_labels(5)
            .draw()?;
        let anchor = Pos::new(HPos::Center, VPos::Bottom);
        let style = TextStyle::from((FONT, 12)).pos(anchor);
        for (number, group) in self.groups.iter().enumerate() {
            let width = FILLED / group.heights.len() as f64;
            for (index, height) in group.heights.iter().enumerate() {
                let left = number as f64 - FILLED / 2.0 + width * index as f64;
                let bar = [(left, 0.0), (left + width, *height)];
                let text = format!("{height:.*}", self.decimals);
                let above = (left + width / 2.0, *height);
                chart.draw_series([Rectangle::new(bar, color(index).filled())])?;
                chart.draw_series([Text::new(text, above, style.clone())])?;
            }
        }
        Ok(())
    }
}

fn color(index: usize) -> PaletteColor<Palette99> {
    Palette99::pick(index)
}
