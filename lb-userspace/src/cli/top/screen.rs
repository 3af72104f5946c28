//! Draws the screen.

use std::time::{Duration, Instant};

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::{Line, Span},
};

use super::{
    app::{App, Open},
    table::{Cell, Column, Table},
    view::View,
};
use crate::cli::output::plain;

/// Draws what is known; `interval` is how often that should change.
pub fn draw(frame: &mut Frame<'_>, app: &mut App, interval: Duration, now: Instant) {
    let [summary, title, table, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(summary_line(app, interval, now), summary);
    frame.render_widget(title_line(app), title);
    draw_table(frame, app, table);
    frame.render_widget(keys_line(app), keys);
}

/// All Services together, or that they are not known.
fn summary_line(app: &App, interval: Duration, now: Instant) -> Line<'static> {
    let age = app.answered.map(|at| now.saturating_duration_since(at));
    if let Some(failure) = &app.failure {
        let old = age.map_or_else(String::new, |age| {
            format!("; these numbers are {} s old", age.as_secs())
        });
        let text = plain(&format!("The agent does not answer{old}: {failure}"));
        return Line::from(text).style(Style::new().add_modifier(Modifier::REVERSED));
    }
    let Some(age) = age else {
        return Line::from("The agent has not answered yet.");
    };
    let shown = &app.shown().frame;
    let ports = shown.service_ports.iter();
    let sum = |number: fn(&super::frame::Port) -> u64| ports.clone().map(number).sum::<u64>();
    let rate = |rate: fn(&super::frame::Port) -> Option<f64>| {
        let known = shown.seconds.map(|_| ports.clone().filter_map(rate).sum());
        Cell::Rate(known).text()
    };
    let mut text = format!(
        "{}  open {}  half-open {}  new {}/s  refused {}/s",
        plain(&shown.node),
        sum(|port| port.traffic.open),
        sum(|port| port.traffic.half_open),
        rate(|port| port.per_second.connections),
        rate(|port| port.per_second.refused()),
    );
    // A moment more is nothing to speak of.
    if age > interval + Duration::from_secs(2) {
        text += &format!("  ({} s old)", age.as_secs());
    }
    let mut spans = vec![Span::raw(text)];
    if app.is_stopped() {
        let stopped = Style::new().add_modifier(Modifier::REVERSED);
        spans.push(Span::raw("  "));
        spans.push(Span::styled("STOPPED", stopped));
    }
    Line::from(spans)
}

/// What is shown, and of that, which rows.
fn title_line(app: &App) -> Line<'static> {
    let Open { view, .. } = app.open();
    let mut text = plain(&view.title());
    if app.is_typing || !app.filter.is_empty() {
        text += &format!("  filter: {}", plain(&app.filter));
        text += if app.is_typing { "_" } else { "" };
    }
    match &app.uncounted {
        Some(why) if view.asks(&app.shown().frame).is_some() => {
            text += &plain(&format!("  flows cannot be counted: {why}"));
        }
        _ if app.is_counting() => text += "  counting flows",
        _ => text += &left_out(app),
    }
    Line::from(text).style(Style::new().add_modifier(Modifier::BOLD))
}

/// How many of those who have flows are shown, if not all.
fn left_out(app: &App) -> String {
    let count = app.shown().count.as_ref();
    let count = count.filter(|count| count.ask == app.open().view.asks(&app.shown().frame));
    match count {
        Some(count) if count.ask.is_some() && count.crowds.len() < count.found => {
            format!("  the first {} of {}", count.crowds.len(), count.found)
        }
        _ => String::new(),
    }
}

fn keys_line(app: &App) -> Line<'static> {
    let text = if app.is_typing {
        "Enter keep the filter  Esc take it away"
    } else if app.open().view == View::Services {
        "q quit  Enter endpoints  / filter  p stop  <> sort  o order  s sources  b budgets  r reasons"
    } else {
        "q quit  Esc back  Enter into  / filter  p stop  <> sort  o order  s sources  b budgets"
    };
    Line::from(text).style(Style::new().add_modifier(Modifier::DIM))
}

fn draw_table(frame: &mut Frame<'_>, app: &mut App, area: Rect) {
    let [titles, rows] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    app.page = usize::from(rows.height).max(1);
    let table = app.table();
    let columns = table.fitting(area.width);
    frame.render_widget(titles_line(app, &table, &columns), titles);
    if table.rows.is_empty() && rows.height > 0 {
        let none = match &*app.filter {
            _ if app.is_unknown() => "",
            "" => "There are none.",
            _ => "None has this text.",
        };
        frame.render_widget(Line::from(none), rows);
    }
    let (cursor, top) = app.place(&table, app.page);
    let shown = table.rows.iter().enumerate().skip(top);
    for ((index, row), area) in shown.zip(rows.rows()) {
        let cells = columns.iter().map(|(column, width)| {
            let width = usize::from(*width);
            aligned(&row.cells[*column], width)
        });
        let style = match index == cursor {
            true => Style::new().add_modifier(Modifier::REVERSED),
            false => Style::new(),
        };
        let text = cells.collect::<Vec<_>>().join(" ");
        let text = format!("{text:width$}", width = usize::from(area.width));
        frame.render_widget(Line::from(text).style(style), area);
    }
}

/// The columns' titles. The one that rows are sorted by has an arrow.
fn titles_line(app: &App, table: &Table, columns: &[(usize, u16)]) -> Line<'static> {
    let sort = app.open().sort;
    let arrow = if sort.is_descending { "v" } else { "^" };
    let titles = columns.iter().map(|(index, width)| {
        let Column { title, .. } = table.columns[*index];
        let title = match *index == sort.column {
            true => format!("{title}{arrow}"),
            false => title.to_owned(),
        };
        let first = table.rows.first().map(|row| &row.cells[*index]);
        let width = usize::from(*width);
        match first.is_some_and(Cell::is_number) {
            true => format!("{title:>width$}"),
            false => format!("{title:width$}"),
        }
    });
    let text = titles.collect::<Vec<_>>().join(" ");
    let sorted_aside = columns.iter().all(|(index, _)| *index != sort.column);
    let aside = match (sorted_aside, table.columns.get(sort.column)) {
        (true, Some(column)) => format!(" {}{arrow}", column.title),
        _ => String::new(),
    };
    Line::from(text + &aside).style(Style::new().add_modifier(Modifier::UNDERLINED))
}

/// A cell of exactly so many characters; what is too long ends with `~`.
fn aligned(cell: &Cell, width: usize) -> String {
    let mut text = cell.within(width);
    if text.len() > width {
        text.truncate(width.saturating_sub(1));
        text.push('~');
    }
    match cell.is_number() {
        true => format!("{text:>width$}"),
        false => format!("{text:width$}"),
    }
}
