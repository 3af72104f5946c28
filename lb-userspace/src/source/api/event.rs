//! Events of a watch.

use std::{collections::BTreeMap, fmt::Display};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use lb_objects::{
    Kind, ObjectName,
    kubernetes::{Versioned, translate_json},
    shortened,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::failure::Failure;

/// The annotation of the bookmark that ends the initial events of a streamed list (KEP-3157).
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// What one line of a watch says.
#[derive(Debug)]
pub enum WatchEvent {
    /// The object was added or changed; the difference does not matter here.
    Changed(Box<Versioned>),
    Removed {
        name: ObjectName,
        version: String,
    },
    /// Everything up to this version has been sent.
    Bookmark {
        version: String,
        /// Whether the initial events of a streamed list are complete.
        initial_events_end: bool,
    },
    /// Cannot be used: a type of event that this version does not know, or one without an object.
    Unusable(String),
}

#[derive(Deserialize)]
struct Line<'a> {
    r#type: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Metadata {
    namespace: String,
    name: String,
    resource_version: String,
    annotations: BTreeMap<String, String>,
}

impl WatchEvent {
    /// Reads a line.
    ///
    /// # Errors
    /// [`Failure::Broken`] if it is not an event, and what an ERROR event means.
    pub fn parse(kind: Kind, line: &[u8]) -> Result<Self, Failure> {
        let broken = |error: serde_json::Error| {
            Failure::Broken(format!(
                "not an event of a watch, {error}: {}",
                shortened(&String::from_utf8_lossy(line))
            ))
        };
        let Line { r#type, object } = serde_json::from_slice(line).map_err(broken)?;
        let json = object.get();
        let unusable = |why: &dyn Display| {
            let event = format!("{} event: {why}", shortened(&r#type));
            Ok(Self::Unusable(event))
        };
        match r#type.as_str() {
            "ADDED" | "MODIFIED" => {
                let object = translate_json(kind, json.as_bytes()).map_err(broken)?;
                Ok(Self::Changed(Box::new(object)))
            }
            "DELETED" => {
                let metadata = match serde_json::from_str::<Object>(json) {
                    Ok(object) => object.metadata,
                    Err(error) => return unusable(&error),
                };
                Ok(Self::Removed {
                    name: ObjectName::new(metadata.namespace, metadata.name),
                    version: metadata.resource_version,
                })
            }
            "BOOKMARK" => {
                let metadata = match serde_json::from_str::<Object>(json) {
                    Ok(object) => object.metadata,
                    Err(error) => return unusable(&error),
                };
                let end = metadata.annotations.get(INITIAL_EVENTS_END);
                Ok(Self::Bookmark {
                    version: metadata.resource_version,
                    initial_events_end: end.is_some_and(|value| value == "true"),
                })
            }
            "ERROR" => {
                let status: Status = serde_json::from_str(json).map_err(broken)?;
                Err(Failure::of_event(status))
            }
            _ => unusable(&"of an unknown type"),
        }
    }
}
