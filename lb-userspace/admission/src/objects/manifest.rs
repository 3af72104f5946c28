//! Reads objects from any number of YAML or JSON documents, which may be lists. Objects of other
//! kinds are handed back as they are, so that one file may hold a whole cluster.

use std::path;

use lb_objects::{
    quoted, shortened,
    text::{self, Broken},
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{
    GROUP, Kind, NamespaceSpec, Object, ObjectRef, Spec, VERSION, defaults, finding::Finding,
    validate,
};

/// Fields of an object that are allowed beside `spec`.
const OBJECT_FIELDS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];

/// The contents of a file, in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manifest {
    pub documents: Vec<Document>,
    /// Objects of other kinds.
    pub others: Vec<Value>,
}

/// One object of admission's kinds.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    pub reference: ObjectRef,
    /// The line where its YAML or JSON document starts.
    pub line: u64,
    /// The object with zeros replaced by defaults, or why it could not be read.
    pub object: Result<Object, Vec<Finding>>,
}

impl Manifest {
    /// Reads a file's contents: JSON if the file's name says so, else YAML.
    ///
    /// # Errors
    /// If a document is broken or is not an object. Errors inside an object are in its
    /// [`Document`].
    pub fn parse(path: &path::Path, text: &[u8]) -> Result<Self, Broken> {
        let mut manifest = Self::default();
        for (line, value) in text::documents::<Value>(path, text)? {
            if value.is_null() {
                continue;
            }
            manifest.add(line, value)?;
        }
        Ok(manifest)
    }

    fn add(&mut self, line: u64, value: Value) -> Result<(), Broken> {
        let broken = |message: &str| Broken {
            line: Some(line),
            message: message.to_owned(),
        };
        let Value::Object(mut fields) = value else {
            return Err(broken("is not a Kubernetes object"));
        };
        let Some(kind) = text_of(&fields, "kind") else {
            return Err(broken("is not a Kubernetes object: it has no kind"));
        };
        let version = text_of(&fields, "apiVersion");
        let is_in_group = version.is_some_and(|version| version.split('/').next() == Some(GROUP));
        if let Some(kind) = Kind::OWN.into_iter().find(|known| known.as_str() == kind) {
            if is_in_group || version.is_none() {
                self.documents.push(document(kind, line, fields));
                return Ok(());
            }
        } else if kind == Kind::Namespace.as_str() && matches!(version, None | Some("v1")) {
            if let Some(limited) = limited_namespace(line, &fields) {
                self.documents.push(limited);
                return Ok(());
            }
        } else if let Some(item_kind) = kind.strip_suffix("List") {
            let item_kind = item_kind.to_owned();
            let without_items = format!("{} without a list of items", shortened(kind));
            let Some(Value::Array(items)) = fields.remove("items") else {
                return Err(broken(&without_items));
            };
            for mut item in items {
                // In a typed list, items may leave out `apiVersion` and `kind`.
                if let Value::Object(item) = &mut item
                    && !item_kind.is_empty()
                {
                    item.entry("kind")
                        .or_insert_with(|| item_kind.clone().into());
                    if let Some(version) = fields.get("apiVersion") {
                        item.entry("apiVersion").or_insert_with(|| version.clone());
                    }
                }
                self.add(line, item)?;
            }
            return Ok(());
        } else if is_in_group {
            let known = Kind::OWN.map(Kind::as_str).join(", ");
            let kind = quoted(kind);
            return Err(broken(&format!("kind {kind} is none of {GROUP}: {known}")));
        }
        self.others.push(fields.into());
        Ok(())
    }
}

fn text_of<'a>(fields: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    fields.get(key).and_then(Value::as_str)
}

fn name_of(fields: &Map<String, Value>) -> String {
    let metadata = fields.get("metadata");
    let name = metadata.and_then(|metadata| metadata.get("name")?.as_str());
    name.unwrap_or_default().to_owned()
}

/// A Namespace, if it has a limit.
fn limited_namespace(line: u64, fields: &Map<String, Value>) -> Option<Document> {
    let spec = NamespaceSpec::of(fields.get("metadata")?.as_object()?)?;
    let object = Object {
        name: name_of(fields),
        spec: Spec::Namespace(spec),
    };
    Some(Document {
        reference: object.reference(),
        line,
        object: Ok(object),
    })
}

fn document(kind: Kind, line: u64, fields: Map<String, Value>) -> Document {
    let name = name_of(&fields);
    Document {
        reference: ObjectRef {
            kind,
            name: name.clone(),
        },
        line,
        object: object(kind, name, fields),
    }
}

fn object(
    kind: Kind,
    name: String,
    mut fields: Map<String, Value>,
) -> Result<Object, Vec<Finding>> {
    if let Some(version) = text_of(&fields, "apiVersion").filter(|text| !is_known(text)) {
        return Err(vec![Finding {
            field: "apiVersion".to_owned(),
            message: format!("{} must be {GROUP}/{VERSION}", quoted(version)),
        }]);
    }
    let unknown = fields
        .keys()
        .filter(|field| !OBJECT_FIELDS.contains(&field.as_str()));
    let mut errors: Vec<_> = unknown.map(|field| unknown_field(field)).collect();
    let spec = match fields.remove("spec") {
        None | Some(Value::Null) => Map::new().into(),
        Some(spec) => spec,
    };
    let spec = match kind {
        Kind::PriorityLevel => read(spec, &mut errors).map(Spec::PriorityLevel),
        Kind::FlowSchema => read(spec, &mut errors).map(Spec::FlowSchema),
        // It has no specification.
        Kind::Namespace => None,
    };
    let Some(mut spec) = spec else {
        return Err(errors);
    };
    defaults::fill(&mut spec);
    let object = Object { name, spec };
    if errors.is_empty() {
        return Ok(object);
    }
    errors.extend(validate::errors(&object));
    Err(errors)
}

fn is_known(api_version: &str) -> bool {
    api_version.split_once('/') == Some((GROUP, VERSION))
}

fn unknown_field(path: &str) -> Finding {
    Finding {
        field: shortened(path).into_owned(),
        message: "is not a known field".to_owned(),
    }
}

/// Unknown fields are reported up to the first value that has the wrong type, which is reported
/// too.
fn read<T: DeserializeOwned>(spec: Value, errors: &mut Vec<Finding>) -> Option<T> {
    let mut unknown = |path: serde_ignored::Path<'_>| errors.push(unknown_field(&field(&path)));
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(&spec, &mut track);
    match T::deserialize(serde_ignored::Deserializer::new(tracked, &mut unknown)) {
        Ok(spec) => Some(spec),
        Err(reason) => {
            let field = match track.path().to_string().as_str() {
                "." => "spec".to_owned(),
                path => format!("spec.{path}"),
            };
            errors.push(Finding {
                field: shortened(&field).into_owned(),
                message: shortened(&reason.to_string()).into_owned(),
            });
            None
        }
    }
}

/// A path in the form of error messages: `spec.rules[0].subjects`.
fn field(path: &serde_ignored::Path<'_>) -> String {
    match path {
        serde_ignored::Path::Root => "spec".to_owned(),
        serde_ignored::Path::Seq { parent, index } => format!("{}[{index}]", field(parent)),
        serde_ignored::Path::Map { parent, key } => format!("{}.{key}", field(parent)),
        serde_ignored::Path::Some { parent }
        | serde_ignored::Path::NewtypeStruct { parent }
        | serde_ignored::Path::NewtypeVariant { parent } => field(parent),
    }
}
