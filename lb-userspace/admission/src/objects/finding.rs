//! What is wrong with an object, and where in it.

use std::fmt;

use lb_objects::{kubernetes::field::Invalid, quoted};

/// A finding about one field of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path of the field: `spec.rules[0].subjects`.
    pub field: String,
    /// The value and the rule that it breaks, or the value that is used instead.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// The result of checking an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Each makes the object invalid.
    pub errors: Vec<Finding>,
    /// Notes for the author of a valid object.
    pub notes: Vec<Finding>,
}

impl Findings {
    /// Records an error, which makes the object invalid.
    pub fn error(&mut self, path: &Path, message: impl Into<String>) {
        self.errors.push(Finding {
            field: path.0.clone(),
            message: message.into(),
        });
    }

    /// Records a note for the object's author.
    pub fn note(&mut self, path: &Path, message: impl Into<String>) {
        self.notes.push(Finding {
            field: path.0.clone(),
            message: message.into(),
        });
    }

    /// The value. If there is none, the error is recorded.
    pub fn check<T>(&mut self, value: Result<T, Invalid>) -> Option<T> {
        let refuse = |invalid: Invalid| {
            let (field, message) = invalid.into_parts();
            self.errors.push(Finding { field, message });
        };
        value.map_err(refuse).ok()
    }

    /// Records the error for a word that is not one of `known`.
    pub fn unsupported(&mut self, path: &Path, value: &str, known: &[&str]) {
        let known = known.join(", ");
        match value {
            "" => self.error(path, format!("is required: one of {known}")),
            value => self.error(path, format!("{} must be one of {known}", quoted(value))),
        }
    }
}

/// Where in an object a field is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    /// The object's specification.
    pub fn spec() -> Self {
        Self("spec".to_owned())
    }

    /// The object's metadata.
    pub fn metadata() -> Self {
        Self("metadata".to_owned())
    }

    /// The path of a field inside this one.
    #[must_use]
    pub fn field(&self, name: &str) -> Self {
        Self(format!("{}.{name}", self.0))
    }

    /// The path of an element of this list.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// The path of an entry of this map.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
