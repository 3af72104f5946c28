//! The result of a check.

use std::fmt::Display;

use serde::Serialize;

use crate::docs::Section;

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
    /// Where the documentation says more, if it does.
    #[serde(rename = "docs", skip_serializing_if = "Option::is_none")]
    pub section: Option<Section>,
}

impl Finding {
    pub(super) fn ok(check: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            level: Level::Ok,
            found: found.into(),
            remedy: None,
            section: None,
        }
    }

    /// The same with the section of the documentation that says more, unless there is nothing to do.
    #[must_use]
    pub fn see(self, section: Section) -> Self {
        let section = (self.level != Level::Ok).then_some(section);
        Self { section, ..self }
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
