//! From the text of one file to objects.

use std::path::Path;

use serde_json::Value;
use serde_saphyr::{Location, Spanned, options::Options};

use super::super::{
    Object, ObjectRef, Problem, Refused,
    kubernetes::{self, Outcome},
    quoted,
};

/// Most YAML nodes in one file: well above 100,000 objects, and a bound on memory.
const MAX_NODES: usize = 4_000_000;

/// What a file says. Without file names: its reader knows them.
#[derive(Debug, Default)]
pub struct Manifest {
    pub objects: Vec<Object>,
    /// Invalid objects, whose last good version is to stay.
    pub refused: Vec<ObjectRef>,
    pub problems: Vec<Problem>,
    /// The first document that is no manifest at all, which makes the file a broken one.
    broken: Option<Broken>,
}

/// Why a file is of no use.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken {
    pub line: Option<u64>,
    pub message: String,
}

/// Parses JSON (by the file's name) or YAML, in either case one document or several.
pub fn parse(path: &Path, text: &[u8]) -> Result<Manifest, Broken> {
    let text = std::str::from_utf8(text).map_err(|error| Broken {
        line: Some(line_at(text, error.valid_up_to())),
        message: "is not UTF-8 text".to_owned(),
    })?;
    let is_json = path
        .extension()
        .is_some_and(|extension| extension == "json");
    let mut manifest = if is_json {
        parse_json(text)?
    } else {
        parse_yaml(text)?
    };
    match manifest.broken.take() {
        Some(broken) => Err(broken),
        None => Ok(manifest),
    }
}

fn parse_json(text: &str) -> Result<Manifest, Broken> {
    let mut manifest = Manifest::default();
    let mut documents = serde_json::Deserializer::from_str(text).into_iter();
    loop {
        let rest = &text[documents.byte_offset()..];
        let start = text.len() - rest.trim_start().len();
        match documents.next() {
            None => return Ok(manifest),
            Some(Ok(value)) => manifest.add_document(line_at(text.as_bytes(), start), value),
            Some(Err(error)) => {
                return Err(Broken {
                    line: Some(error.line() as u64),
                    message: error.to_string(),
                });
            }
        }
    }
}

fn parse_yaml(text: &str) -> Result<Manifest, Broken> {
    let parsed = serde_saphyr::from_str_multiple_with_options::<Spanned<Value>, _>(text, limits());
    parsed.map_err(|error| Broken {
        line: error.location().as_ref().map(Location::line),
        message: error.without_snippet().to_string(),
    })
}

/// The parser's own limits against alias bombs and deep nesting, but room for large files.
fn limits() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_documents: MAX_NODES,
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
        },
    }
}

/// Lets the parser hand over each document as it is read, so that only one is ever held.
impl Extend<Spanned<Value>> for Manifest {
    fn extend<I: IntoIterator<Item = Spanned<Value>>>(&mut self, documents: I) {
        for document in documents {
            self.add_document(document.referenced.line(), document.value);
        }
    }
}

impl Manifest {
    fn add_document(&mut self, line: u64, document: Value) {
        if document.is_null() || self.broken.is_some() {
            return;
        }
        match document.get("kind").and_then(Value::as_str) {
            Some(_) => self.add(line, document),
            None => {
                self.broken = Some(Broken {
                    line: Some(line),
                    message: "is not a Kubernetes object: it has no kind".to_owned(),
                });
            }
        }
    }

    /// Adds an object, or the items of a list.
    fn add(&mut self, line: u64, mut manifest: Value) {
        let kind = manifest
            .get("kind")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let item_kind = match kind {
            "List" => "",
            "ServiceList" | "EndpointSliceList" | "NodeList" => &kind[..kind.len() - "List".len()],
            _ => return self.add_object(line, manifest),
        };
        let item_kind = item_kind.to_owned();
        let api_version = manifest.get("apiVersion").cloned();
        let items = match manifest.get_mut("items").map(Value::take) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(items)) => items,
            Some(other) => {
                let message = format!("items: {} must be a list", quoted(&other.to_string()));
                return self.problems.push(Problem {
                    refused: Refused::Object,
                    object: None,
                    file: None,
                    line: Some(line),
                    message,
                });
            }
        };
        for mut item in items {
            // Items of typed lists may leave out what the list already says.
            if let Value::Object(fields) = &mut item
                && !item_kind.is_empty()
                && !fields.contains_key("kind")
            {
                fields.insert("kind".to_owned(), item_kind.clone().into());
                let api_version = api_version
                    .clone()
                    .map(|version| ("apiVersion".to_owned(), version));
                fields.extend(api_version);
            }
            self.add(line, item);
        }
    }

    fn add_object(&mut self, line: u64, manifest: Value) {
        let Some(translated) = kubernetes::translate_manifest(manifest) else {
            return;
        };
        match translated.outcome {
            Outcome::Use(object) => self.objects.push(object),
            Outcome::Refuse => self.refused.push(translated.reference),
            Outcome::Skip => {}
        }
        let located = translated.problems.into_iter().map(|problem| Problem {
            line: Some(line),
            ..problem
        });
        self.problems.extend(located);
    }
}

/// Line of a byte offset, from 1.
fn line_at(text: &[u8], offset: usize) -> u64 {
    1 + text[..offset].iter().filter(|byte| **byte == b'\n').count() as u64
}
