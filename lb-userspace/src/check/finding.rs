//! The result of a check.

use std::fmt::Display;

use serde::Serialize;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be, or irrelevant.
    Ok,
    /// The agent runs, but not as well as it could, or perhaps not as intended.
    Warning,
    /// The agent does not run, or does not do its work.
    Failure,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked, in a few words.
    pub check: String,
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What to do; absent if there is nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            level: Level::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    /// What works, but not as well as it could.
    pub fn warning(
        check: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            level: Level::Warning,
            remedy: Some(remedy.into()),
            ..Self::ok(check, found)
        }
    }

    /// What does not work.
    pub fn failure(
        check: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            level: Level::Failure,
            ..Self::warning(check, found, remedy)
        }
    }
    /// A finding about something that the agent needs: `found`, or why it is missing.
    pub(super) fn required<E: Display>(
        check: &str,
        found: Result<impl Into<String>, E>,
        remedy: impl Into<String>,
    ) -> Self {
        match found {
            Ok(found) => Self::ok(check, found),
            Err(error) => Self::failure(check, error.to_string(), remedy),
        }
    }
}
