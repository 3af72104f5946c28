//! One document of a manifest: an object or a list. A list's items are translated while it is read,
//! so that the list of a whole cluster is never held in raw form.

use std::fmt;

use lb_objects::{
    Object, ObjectRef, Problem, Refused,
    kubernetes::{self, Outcome},
};
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

/// The contents of a document, or of a whole file. Without file names, which the caller knows.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    pub objects: Vec<Object>,
    /// Invalid objects. Their last good version stays in force.
    pub refused: Vec<ObjectRef>,
    pub problems: Vec<Problem>,
}

/// One document; `None` if it does not say the kind of its object.
#[derive(Debug)]
pub struct Document(pub Option<Manifest>);

impl Manifest {
    /// Adds another document, which starts after `lines_before` lines.
    pub fn append(&mut self, other: &Self, lines_before: u64) {
        let located = other.problems.iter().map(|problem| Problem {
            line: problem.line.map(|line| line + lines_before),
            ..problem.clone()
        });
        self.problems.extend(located);
        self.objects.extend_from_slice(&other.objects);
        self.refused.extend_from_slice(&other.refused);
    }

    /// Sets the line of all problems.
    pub fn at_line(mut self, line: u64) -> Self {
        for problem in &mut self.problems {
            problem.line = Some(line);
        }
        self
    }

    fn add(&mut self, manifest: Value) {
        let is_list = matches!(
            kind(&manifest),
            Some("List" | "ServiceList" | "EndpointSliceList" | "NodeList" | "ServiceCIDRList")
        );
        if is_list {
            // A list within a list is small, so it is read in raw form.
            if let Ok(Document(Some(items))) = Document::deserialize(manifest) {
                self.append(&items, 0);
            }
            return;
        }
        let Some(translated) = kubernetes::translate_manifest(manifest) else {
            return;
        };
        match translated.outcome {
            Outcome::Use(object) => self.objects.push(object),
            Outcome::Refuse => self.refused.push(translated.reference),
            Outcome::Skip => {}
        }
        self.problems.extend(translated.problems);
    }

    /// Adds items of a typed list, which may leave out their kind and version.
    fn add_untyped(&mut self, items: Vec<Value>, kind: &str, api_version: Option<&Value>) {
        for mut item in items {
            if let Value::Object(fields) = &mut item {
                fields.insert("kind".to_owned(), kind.into());
                let api_version =
                    api_version.map(|version| ("apiVersion".to_owned(), version.clone()));
                fields.extend(api_version);
            }
            self.add(item);
        }
    }
}

fn kind(manifest: &Value) -> Option<&str> {
    manifest.get("kind")?.as_str()
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(DocumentVisitor)
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document, A::Error> {
        let mut fields = Map::new();
        let mut items = Items::default();
        while let Some(key) = map.next_key::<String>()? {
            if key == "items" {
                items = map.next_value()?;
            } else {
                let value = map.next_value()?;
                fields.insert(key, value);
            }
        }

        let Some(kind) = fields.get("kind").and_then(Value::as_str) else {
            return Ok(Document(None));
        };
        let item_kind = match kind {
            "List" => None,
            "ServiceList" => Some("Service"),
            "EndpointSliceList" => Some("EndpointSlice"),
            "NodeList" => Some("Node"),
            "ServiceCIDRList" => Some("ServiceCIDR"),
            _ => {
                let mut manifest = Manifest::default();
                manifest.add(fields.into());
                return Ok(Document(Some(manifest)));
            }
        };
        let Items {
            mut manifest,
            untyped,
            is_list,
        } = items;
        if let Some(item_kind) = item_kind {
            manifest.add_untyped(untyped, item_kind, fields.get("apiVersion"));
        }
        if !is_list {
            manifest.problems.push(Problem {
                refused: Refused::Object,
                object: None,
                file: None,
                line: None,
                message: format!("{kind}: items must be a list"),
            });
        }
        Ok(Document(Some(manifest)))
    }
}

/// Items of something that may turn out to be a list: `kind` often comes after them.
struct Items {
    manifest: Manifest,
    /// Items without kind and version.
    untyped: Vec<Value>,
    is_list: bool,
}

impl Default for Items {
    fn default() -> Self {
        Self {
            manifest: Manifest::default(),
            untyped: Vec::new(),
            is_list: true,
        }
    }
}

impl<'de> Deserialize<'de> for Items {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemsVisitor)
    }
}

/// Accepts anything, because `items` may be anything in other kinds.
struct ItemsVisitor;

impl ItemsVisitor {
    fn not_a_list<E>() -> Result<Items, E> {
        Ok(Items {
            is_list: false,
            ..Items::default()
        })
    }
}

impl<'de> Visitor<'de> for ItemsVisitor {
    type Value = Items;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of Kubernetes objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Items, A::Error> {
        let mut items = Items::default();
        while let Some(item) = seq.next_element::<Value>()? {
            match kind(&item) {
                Some(_) => items.manifest.add(item),
                None => items.untyped.push(item),
            }
        }
        Ok(items)
    }

    fn visit_unit<E: Error>(self) -> Result<Items, E> {
        Ok(Items::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Items, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Self::not_a_list()
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Items, E> {
        Self::not_a_list()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Items, E> {
        Self::not_a_list()
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Items, E> {
        Self::not_a_list()
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Items, E> {
        Self::not_a_list()
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Items, E> {
        Self::not_a_list()
    }
}
