//! What was wrong with input, where, and what was refused because of it.

use std::{borrow::Cow, fmt, path::PathBuf};

use crate::ObjectRef;

/// Longest piece of foreign text repeated in a message, in bytes.
const MAX_QUOTED: usize = 100;

/// Something a source could not use. Everything else in the same place stays in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub refused: Refused,
    /// `None` when the whole place is meant.
    pub object: Option<ObjectRef>,
    /// The manifest, for sources that read files.
    pub file: Option<PathBuf>,
    /// Where in `file`: of the error, or else where the document starts.
    pub line: Option<u64>,
    /// Field, value and the rule it breaks.
    pub message: String,
}

/// How much a [`Problem`] took out of force, from the widest to the narrowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refused {
    /// The directory could not be read; everything last known stays.
    Directory,
    /// The file could not be read or parsed; its last good objects stay.
    File,
    /// The object was not taken; its last good version stays.
    Object,
    /// The object was found before, and is taken from there.
    Duplicate,
    /// One endpoint of a slice was left out.
    Endpoint,
    /// One value of an object was left out.
    Value,
}

impl Refused {
    /// One word, for labels of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::File => "file",
            Self::Object => "object",
            Self::Duplicate => "duplicate",
            Self::Endpoint => "endpoint",
            Self::Value => "value",
        }
    }

    fn consequence(self) -> &'static str {
        match self {
            Self::Directory => "everything last read from it stays in force",
            Self::File => "file refused, objects last read from it stay in force",
            Self::Object => "object refused, an earlier version stays in force",
            Self::Duplicate => "duplicate left out",
            Self::Endpoint => "endpoint left out",
            Self::Value => "value left out",
        }
    }
}

impl Problem {
    /// What is wrong and what follows from it, without where.
    pub fn what(&self) -> String {
        format!("{} ({})", self.message, self.refused.consequence())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", file.display())?;
            if let Some(line) = self.line {
                write!(f, "{line}:")?;
            }
            f.write_str(" ")?;
        }
        if let Some(object) = &self.object {
            write!(f, "{object}: ")?;
        }
        f.write_str(&self.what())
    }
}

/// Foreign text as a quoted, escaped string that fits a log line.
pub fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text))
}

/// The text itself, or its beginning and its length in bytes.
pub fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_QUOTED {
        return text.into();
    }
    let end = text.floor_char_boundary(MAX_QUOTED / 2);
    format!("{}... ({} bytes)", &text[..end], text.len()).into()
}
