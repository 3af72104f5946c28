//! Splits the text of a manifest into documents: JSON or YAML, any number of them.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_saphyr::{Location, Spanned};

/// The most YAML nodes in one document: enough for far more than 100,000 objects, and a bound on
/// memory.
const MAX_NODES: usize = 4_000_000;
/// The most YAML nodes that aliases may stand for in one document, against alias bombs.
const MAX_ALIASED_NODES: usize = 100_000;

/// Why a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub line: Option<u64>,
    pub message: String,
}

/// The documents of a manifest, each with the line on which it starts: JSON if the file's name says
/// so, else YAML.
///
/// # Errors
/// If any document is broken.
pub fn documents<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<Vec<(u64, T)>, Broken> {
    let text = utf8(text)?;
    match is_json(path) {
        true => json(text),
        false => yaml(text),
    }
}

/// The text of a file, which must be UTF-8.
pub fn utf8(text: &[u8]) -> Result<&str, Broken> {
    std::str::from_utf8(text).map_err(|error| Broken {
        line: Some(1 + newlines(&text[..error.valid_up_to()])),
        message: "is not UTF-8 text".to_owned(),
    })
}

/// Whether a file's name says that it is JSON.
pub fn is_json(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "json")
}

/// The YAML documents of a text, each with the line on which it starts.
pub fn yaml<T: DeserializeOwned>(text: &str) -> Result<Vec<(u64, T)>, Broken> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_ALIASED_NODES,
        },
    };
    let documents: Vec<Spanned<T>> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| Broken {
            line: error.location().as_ref().map(Location::line),
            message: error.without_snippet().to_string(),
        })?;
    let documents = documents.into_iter();
    Ok(documents
        .map(|document| (document.referenced.line(), document.value))
        .collect())
}

/// The JSON documents of a text, each with the line on which it starts.
pub fn json<T: DeserializeOwned>(text: &str) -> Result<Vec<(u64, T)>, Broken> {
    let mut parser = serde_json::Deserializer::from_str(text).into_iter();
    let (mut line, mut offset) = (1, 0);
    let mut documents = Vec::new();
    loop {
        let rest = text[offset..].trim_start();
        let start = text.len() - rest.len();
        line += newlines(&text.as_bytes()[offset..start]);
        match parser.next() {
            None => return Ok(documents),
            Some(Ok(document)) => documents.push((line, document)),
            Some(Err(error)) => {
                return Err(Broken {
                    line: Some(error.line() as u64),
                    message: error.to_string(),
                });
            }
        }
        offset = parser.byte_offset();
        line += newlines(&text.as_bytes()[start..offset]);
    }
}

/// The number of line feeds in a text.
pub fn newlines(text: &[u8]) -> u64 {
    text.iter().filter(|byte| **byte == b'\n').count() as u64
}
