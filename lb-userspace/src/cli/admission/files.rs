//! The files that a command reads its configuration from.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;
use lb_admission::{
    configuration::Configuration,
    objects::{
        Finding, Manifest, ObjectRef,
        status::{DANGLING, SEATS_CUT},
    },
    suggested::SUGGESTED,
};
use serde::Serialize;
use serde_json::Value;

use crate::cli::print_error;

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

/// The contents of the files.
#[derive(Debug, Default)]
pub struct Loaded {
    pub configuration: Configuration,
    pub errors: Vec<ObjectError>,
    /// Objects of other kinds.
    pub others: Vec<Value>,
    /// The file and line where each object was found.
    seen: BTreeMap<ObjectRef, String>,
}

/// An error in the form that commands show.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectError {
    /// `KIND/NAME`, or a file that could not be used at all.
    pub object: String,
    /// Path of the field; empty for a file.
    pub field: String,
    pub message: String,
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => write!(f, "{}: {}", self.object, self.message),
            field => write!(f, "{}: {field}: {}", self.object, self.message),
        }
    }
}

impl Files {
    /// Reads the files. Notes for their author go to standard error.
    ///
    /// # Errors
    /// If a file cannot be read. Errors inside are in [`Loaded::errors`].
    pub fn load(&self) -> anyhow::Result<Loaded> {
        let mut loaded = Loaded::default();
        if self.files.is_empty() {
            loaded.add(Path::new("suggested.yaml"), SUGGESTED.as_bytes());
        }
        for path in &self.files {
            for file in files_of(path)? {
                let text =
                    fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
                loaded.add(&file, &text);
            }
        }
        loaded.warn_of_conditions(self.concurrency);
        Ok(loaded)
    }
}

/// The file itself, or a directory's manifests sorted by name.
fn files_of(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let context = || format!("cannot list {}", path.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(path).with_context(context)? {
        let file = entry.with_context(context)?.path();
        let is_manifest = |extension: &std::ffi::OsStr| {
            ["yaml", "yml", "json"]
                .iter()
                .any(|known| extension == *known)
        };
        let is_hidden = file
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if file.extension().is_some_and(is_manifest) && !is_hidden {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

impl Loaded {
    fn add(&mut self, file: &Path, text: &[u8]) {
        let manifest = match Manifest::parse(file, text) {
            Ok(manifest) => manifest,
            Err(broken) => {
                let line = broken
                    .line
                    .map(|line| format!("line {line}: "))
                    .unwrap_or_default();
                self.errors.push(ObjectError {
                    object: file.display().to_string(),
                    field: String::new(),
                    message: format!("{line}{}", broken.message),
                });
                return;
            }
        };
        self.others.extend(manifest.others);
        for document in manifest.documents {
            let reference = document.reference;
            let place = format!("{}:{}", file.display(), document.line);
            if let Some(first) = self.seen.get(&reference) {
                let message = format!("is taken: such an object comes before, in {first}");
                self.refuse(&reference, "metadata.name", message);
                continue;
            }
            self.seen.insert(reference.clone(), place);
            let taken = match document.object {
                Ok(object) => self.configuration.apply(&object),
                Err(errors) => {
                    self.configuration.refuse(reference.clone(), errors.clone());
                    Err(errors)
                }
            };
            match taken {
                Ok(notes) => notes
                    .iter()
                    .for_each(|note| warn(&format_args!("{reference}: {note}"))),
                Err(errors) => {
                    for Finding { field, message } in errors {
                        self.refuse(&reference, &field, message);
                    }
                }
            }
        }
    }

    fn refuse(&mut self, object: &ObjectRef, field: &str, message: String) {
        self.errors.push(ObjectError {
            object: object.to_string(),
            field: field.to_owned(),
            message,
        });
    }

    /// Warns of conditions of valid objects that their author probably did not intend.
    fn warn_of_conditions(&self, concurrency: u32) {
        for (object, conditions) in self.configuration.conditions(concurrency) {
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
}

pub fn warn(what: &dyn fmt::Display) {
    print_error(&format!("warning: {what}\n"));
}
