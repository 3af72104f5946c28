//! What was wrong with input, where it was, and what was refused because of it.

use std::{borrow::Cow, fmt, path::PathBuf};

use crate::ObjectRef;

/// The longest piece of foreign text that a message repeats, in bytes.
const MAX_QUOTED: usize = 100;

/// Something that a source could not use. Everything else in the same place stays in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub refused: Refused,
    /// `None` if the whole place is meant.
    pub object: Option<ObjectRef>,
    /// The manifest's file, if the source reads files.
    pub file: Option<PathBuf>,
    /// Line in `file`: that of the error or, if unknown, of the document's start.
    pub line: Option<u64>,
    /// Field, value and the rule that it breaks.
    pub message: String,
}

/// How much a [`Problem`] puts out of force, from most to least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refused {
    /// The directory could not be read; everything last known stays.
    Directory,
    /// The file could not be read or parsed; its last good objects stay.
    File,
    /// The object was refused; its last good version stays.
    Object,
    /// The object is defined elsewhere too, and the other definition is used.
    Duplicate,
    /// One endpoint of a slice was left out.
    Endpoint,
    /// One value of an object was left out.
    Value,
}

impl Refused {
    /// One word, for metric labels.
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
    /// What is wrong and what follows from it, without the place.
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

/// Foreign text as a quoted and escaped string that fits a log line.
pub fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text))
}

/// The text itself, or if it is long, its beginning and its length in bytes.
pub fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_QUOTED {
        return text.into();
    }
    let end = text.floor_char_boundary(MAX_QUOTED / 2);
    format!("{}... ({} bytes)", &text[..end], text.len()).into()
}
