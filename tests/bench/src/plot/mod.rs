//! Plots, as SVG.

mod bars;
mod lines;

use std::{error::Error, fs, path::Path};

use anyhow::{Context, Result, anyhow};

pub use self::{
    bars::{Bars, Group, Panel},
    lines::{Line, Lines},
};

/// A plot.
#[derive(Clone, Debug)]
pub enum Plot {
    Lines(Lines),
    Bars(Bars),
}

impl Plot {
    /// Name of its file.
    fn file(&self) -> &'static str {
        match self {
            Self::Lines(lines) => lines.file,
            Self::Bars(bars) => bars.file,
        }
    }

    fn draw(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Lines(lines) => lines.draw(path),
            Self::Bars(bars) => bars.draw(path),
        }
    }
}

/// Writes the plots that show anything.
///
/// # Errors
///
/// If the directory cannot be made or written to.
pub fn write_all<'a>(plots: impl Iterator<Item = &'a Plot>, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    for plot in plots {
        let path = directory.join(plot.file());
        plot.draw(&path)
            .map_err(|error| anyhow!("cannot plot {}: {error}", path.display()))?;
    }
    Ok(())
}
