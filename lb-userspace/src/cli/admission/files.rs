//! The files that a command reads its configuration from.

use std::{fmt, path::PathBuf};

use anyhow::bail;
use clap::Args;
use lb_admission::{
    configuration::Configuration,
    objects::status::{DANGLING, SEATS_CUT},
    suggested::SUGGESTED,
};

use crate::{
    admission::{files, objects::Objects},
    cli::print_error,
};

/// Where the objects are.
#[derive(Args, Debug)]
pub struct Files {
    /// File with PriorityLevels and FlowSchemas, YAML or JSON, or a directory of such files; may be
    /// repeated [default: the suggested configuration]
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Seats of the node: how many connections may be open at the same time
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub concurrency: u32,
}

impl Files {
    /// Reads the files. Notes for their author go to standard error.
    ///
    /// # Errors
    /// If a file cannot be read. Errors inside are in [`Objects::errors`].
    pub fn load(&self) -> anyhow::Result<Objects> {
        let mut texts = Vec::new();
        if self.files.is_empty() {
            texts.push(("suggested.yaml".into(), Ok(SUGGESTED.as_bytes().to_vec())));
        }
        for path in &self.files {
            texts.extend(files::texts(path)?);
        }
        for (path, text) in &texts {
            if let Err(error) = text {
                bail!("cannot read {}: {error}", path.display());
            }
        }
        let mut objects = Objects::default();
        objects.read(texts);
        for note in &objects.notes {
            warn(note);
        }
        warn_of_conditions(&objects.configuration, self.concurrency);
        Ok(objects)
    }
}

/// Warns of conditions of valid objects that their author probably did not intend.
fn warn_of_conditions(configuration: &Configuration, concurrency: u32) {
    for (object, conditions) in configuration.conditions(concurrency) {
        for condition in conditions {
            if condition.status && matches!(condition.type_, DANGLING | SEATS_CUT) {
                warn(&format_args!(
                    "{object}: {}: {}",
                    condition.type_, condition.message
                ));
            }
        }
    }
}

pub fn warn(what: &dyn fmt::Display) {
    print_error(&format!("warning: {what}\n"));
}
