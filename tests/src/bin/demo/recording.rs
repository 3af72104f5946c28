//! What the demo has shown, as a picture that shows it again: an SVG whose lines come as they did on
//! the terminal. It needs no script, so it moves in a README as well.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use super::screen::Style;

/// Lines that are seen at a time, and characters in a line. What is longer is cut.
const ROWS: usize = 32;
const COLUMNS: usize = 120;
/// A character and a line, in pixels.
const WIDTH: f64 = 7.8;
const HEIGHT: usize = 18;
const MARGIN: usize = 16;
/// What took longer than this, or less, takes so long in the picture.
const LONGEST: Duration = Duration::from_millis(1500);
const SHORTEST: Duration = Duration::from_millis(120);
/// How long the end stays.
const END: Duration = Duration::from_secs(6);

/// A part of a line in one style.
pub type Part = (Style, String);

/// The lines so far.
pub struct Recording {
    last: Instant,
    /// With the time that each has taken.
    lines: Vec<(Duration, Vec<Part>)>,
}

impl Recording {
    /// Nothing yet.
    pub fn new() -> Self {
        Self {
            last: Instant::now(),
            lines: Vec::new(),
        }
    }

    /// Adds a line that is shown now.
    pub fn add(&mut self, line: Vec<Part>) {
        let now = Instant::now();
        self.lines.push((now - self.last, line));
        self.last = now;
    }

    /// The picture.
    pub fn svg(&self) -> String {
        let took = self
            .lines
            .iter()
            .map(|(took, _)| (*took).clamp(SHORTEST, LONGEST));
        let total = took.clone().sum::<Duration>() + END;
        let (mut up, mut away) = (frame(0.0, scrolled(0)), frame(0.0, shown(0)));
        let mut at = Duration::ZERO;
        for (lines, took) in (1..).zip(took) {
            at += took;
            let percent = 100.0 * at.as_secs_f64() / total.as_secs_f64();
            up += &frame(percent, scrolled(lines));
            away += &frame(percent, shown(lines));
        }
        let text: String = (1..)
            .zip(&self.lines)
            .map(|(number, (_, parts))| row(number, parts))
            .collect();
        let (inner, rows) = ((COLUMNS as f64 * WIDTH) as usize, ROWS * HEIGHT);
        let (width, height) = (inner + 2 * MARGIN, rows + 2 * MARGIN);
        let seconds = total.as_secs_f64();
        let all = self.lines.len();
        let (end, gone) = (moved(scrolled(all)), moved(shown(all)));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\
             <title>cargo xtask demo</title>\n<style>{STYLE}\
             @keyframes up{{{up}100%{{{end}}}}}@keyframes away{{{away}100%{{{gone}}}}}\
             #lines{{{end}}}#cover{{{gone}}}\
             @media (prefers-reduced-motion:no-preference){{\
             #lines{{animation:up {seconds:.1}s step-end infinite}}\
             #cover{{animation:away {seconds:.1}s step-end infinite}}}}\
             </style>\n<rect width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n\
             <svg x=\"{MARGIN}\" y=\"{MARGIN}\" width=\"{inner}\" height=\"{rows}\">\
             <g id=\"lines\">\n{text}</g><rect id=\"cover\" width=\"{inner}\" height=\"{rows}\"/></svg>\n</svg>\n",
        )
    }
}

const STYLE: &str = "text{font:13px ui-monospace,Menlo,Consolas,monospace;white-space:pre;fill:#d4d4d4}\
                     rect{fill:#1b1f24}.title{fill:#fff;font-weight:700}.command{fill:#6cb6ff}\
                     .kept{fill:#57ab5a}.broken{fill:#ff7b72;font-weight:700}";

/// How far the lines have moved down when so many have been shown: up, as soon as there is no room
/// for the last one.
fn scrolled(lines: usize) -> isize {
    -((lines.saturating_sub(ROWS) * HEIGHT) as isize)
}

/// How far what hides the lines to come has moved down by then.
fn shown(lines: usize) -> isize {
    (lines.min(ROWS) * HEIGHT) as isize
}

/// Where something is from a part of the time on.
fn frame(percent: f64, down: isize) -> String {
    format!("{percent:.2}%{{{}}}", moved(down))
}

fn moved(down: isize) -> String {
    format!("transform:translateY({down}px)")
}

/// A line as text of the picture; lines count from 1.
fn row(number: usize, parts: &[Part]) -> String {
    let mut room = COLUMNS;
    let mut spans = String::new();
    for (style, part) in parts {
        let long = part.chars().count() > room;
        let fits: String = part.chars().take(room - usize::from(long)).collect();
        room -= fits.chars().count() + usize::from(long);
        let end = if long { "…" } else { "" };
        let fits = escaped(&fits);
        let class = style.name();
        write!(spans, "<tspan class=\"{class}\">{fits}{end}</tspan>")
            .expect("a String takes any text");
        if long {
            break;
        }
    }
    format!("<text y=\"{}\">{spans}</text>\n", number * HEIGHT - 5)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(lines: &[(u64, &str)]) -> Recording {
        let lines = lines.iter().map(|(took, text)| {
            let parts = vec![(Style::Plain, (*text).to_owned())];
            (Duration::from_millis(*took), parts)
        });
        Recording {
            last: Instant::now(),
            lines: lines.collect(),
        }
    }

    #[test]
    fn lines_come_in_their_time_and_the_oldest_leave() {
        // In the picture: 500 ms, 1,500 ms and then the end of 6 s.
        let svg = recorded(&[(500, "one"), (60_000, "two")]).svg();
        for (percent, lines) in [(0.0, 0), (6.25, 1), (25.0, 2), (100.0, 2)] {
            let uncovered = format!("{{transform:translateY({}px)}}", lines * HEIGHT);
            let step = if percent < 100.0 {
                format!("{percent:.2}%")
            } else {
                "100%".to_owned()
            };
            assert!(svg.contains(&(step + &uncovered)), "{percent} % in {svg}");
        }
        assert!(svg.contains("animation:away 8.0s"), "{svg}");

        let many = vec![(1, "line"); ROWS + 3];
        let svg = recorded(&many).svg();
        assert!(
            svg.contains(&format!("#lines{{{}}}", moved(-3 * HEIGHT as isize))),
            "{svg}"
        );
        assert!(
            svg.contains(&format!("#cover{{{}}}", moved((ROWS * HEIGHT) as isize))),
            "{svg}"
        );
    }

    #[test]
    fn what_is_long_is_cut_and_nothing_is_markup() {
        let long = "x".repeat(COLUMNS + 1);
        let svg = recorded(&[(1, &long), (1, "a <b> & c")]).svg();
        assert!(
            svg.contains(&format!(">{}…<", "x".repeat(COLUMNS - 1))),
            "{svg}"
        );
        assert!(svg.contains(">a &lt;b&gt; &amp; c<"), "{svg}");
    }
}
