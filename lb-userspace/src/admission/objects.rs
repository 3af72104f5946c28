//! PriorityLevels and FlowSchemas from files, and what is wrong with them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, mem,
    path::{Path, PathBuf},
    sync::Arc,
};

use lb_admission::{
    configuration::Configuration,
    objects::{Document, Finding, Manifest, ObjectRef},
};
use lb_objects::{AsWritten, text::Broken};
use serde::Serialize;
use serde_json::Value;

/// The contents of files: the last valid version of each object.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub configuration: Configuration,
    /// What is wrong with them.
    pub errors: Vec<ObjectError>,
    /// What their authors may not have intended.
    pub notes: Vec<String>,
    /// Objects of other kinds.
    pub others: Vec<Value>,
    /// Whose objects each file had when it was last read.
    files: BTreeMap<PathBuf, BTreeSet<ObjectRef>>,
}

/// An error in the form that commands show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ObjectError {
    /// `KIND/NAME`, or a file that could not be used at all.
    pub object: String,
    /// Path of the field; empty for a file.
    pub field: String,
    pub message: String,
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => write!(f, "{}: {}", self.object, self.message),
            field => write!(f, "{}: {field}: {}", self.object, self.message),
        }
    }
}

/// A file's contents, or why they could not be read.
pub type Text = (PathBuf, Result<Vec<u8>, String>);

impl Objects {
    /// Takes over the present contents of all files. Of a broken file the objects stay that it had
    /// before, of an invalid object its last valid version.
    pub fn read(&mut self, texts: impl IntoIterator<Item = Text>) {
        let before = mem::take(&mut self.files);
        self.errors.clear();
        self.notes.clear();
        self.others.clear();
        let parsed: Vec<_> = texts.into_iter().map(parse).collect();
        // What is gone leaves its room to what comes.
        let mut gone: BTreeSet<_> = before.values().flatten().collect();
        for (path, manifest) in &parsed {
            match manifest {
                Ok(manifest) => manifest.documents.iter().for_each(|document| {
                    gone.remove(&document.reference);
                }),
                Err(_) => before.get(path).into_iter().flatten().for_each(|kept| {
                    gone.remove(kept);
                }),
            }
        }
        for gone in gone {
            self.configuration.delete(gone);
        }
        let mut seen = BTreeMap::new();
        for (path, manifest) in parsed {
            match manifest {
                Ok(manifest) => {
                    self.others.extend(manifest.others);
                    let references = self.take(&path, manifest.documents, &mut seen);
                    self.files.insert(path, references);
                }
                Err(message) => {
                    self.refuse(&path.display(), "", message);
                    let kept = before.get(&path).cloned().unwrap_or_default();
                    self.files.insert(path, kept);
                }
            }
        }
    }

    /// Takes over all objects that an API server has.
    pub fn read_from_api(&mut self, objects: &[Arc<AsWritten>]) {
        self.read(objects.iter().map(|object| {
            // A name for messages; `.json` says how it is read.
            let name = object.reference.to_string().replace(' ', "/") + ".json";
            (name.into(), Ok(object.json.to_string().into_bytes()))
        }));
    }

    /// Takes over a file's objects, and returns whose they are. `seen` are those of files before it,
    /// with their places.
    fn take(
        &mut self,
        path: &Path,
        documents: Vec<Document>,
        seen: &mut BTreeMap<ObjectRef, String>,
    ) -> BTreeSet<ObjectRef> {
        let mut references = BTreeSet::new();
        for document in documents {
            let reference = document.reference;
            let place = format!("{}:{}", path.display(), document.line);
            if let Some(first) = seen.get(&reference) {
                let message = format!("is taken: such an object comes before, in {first}");
                self.refuse(&reference, "metadata.name", message);
                continue;
            }
            seen.insert(reference.clone(), place);
            references.insert(reference.clone());
            let taken = match document.object {
                Ok(object) => self.configuration.apply(&object),
                Err(errors) => {
                    self.configuration.refuse(reference.clone(), errors.clone());
                    Err(errors)
                }
            };
            match taken {
                Ok(notes) => {
                    let notes = notes.iter().map(|note| format!("{reference}: {note}"));
                    self.notes.extend(notes);
                }
                Err(errors) => {
                    for Finding { field, message } in errors {
                        self.refuse(&reference, &field, message);
                    }
                }
            }
        }
        references
    }

    fn refuse(&mut self, object: &dyn fmt::Display, field: &str, message: String) {
        self.errors.push(ObjectError {
            object: object.to_string(),
            field: field.to_owned(),
            message,
        });
    }
}

/// A file's objects, or why there are none.
fn parse((path, text): Text) -> (PathBuf, Result<Manifest, String>) {
    let text = text.map_err(|error| format!("cannot be read: {error}"));
    let parsed = text.and_then(|text| {
        Manifest::parse(&path, &text).map_err(|Broken { line, message }| {
            let line = line.map(|line| format!("line {line}: "));
            format!("{}{message}", line.unwrap_or_default())
        })
    });
    (path, parsed)
}

#[cfg(test)]
mod tests {
    use lb_admission::level::MAX_LEVELS;

    use super::*;

    fn level(name: &str, shares: &str) -> String {
        format!(
            "apiVersion: node-lb.io/v1alpha1\nkind: PriorityLevel\nmetadata: {{name: {name}}}\n\
             spec: {{type: Limited, limited: {{nominalConcurrencyShares: {shares}, limitResponse: {{type: Reject}}}}}}\n"
        )
    }

    fn shares(objects: &Objects) -> Vec<(String, u32)> {
        let levels = objects.configuration.in_force().levels;
        let levels = levels.into_iter().filter(|l| l.limited().is_some());
        levels.map(|level| (level.name, level.shares)).collect()
    }

    fn text(path: &str, text: &str) -> Text {
        (path.into(), Ok(text.as_bytes().to_vec()))
    }

    #[test]
    fn what_is_wrong_leaves_the_last_valid_version_in_force() {
        let mut objects = Objects::default();
        let catch_all = ("catch-all".to_owned(), 5);
        let [a, b] = ["a", "b"].map(str::to_owned);
        objects.read([
            text("1.yaml", &level("a", "10")),
            text("2.yaml", &level("b", "20")),
        ]);
        assert_eq!(objects.errors, []);
        let both = [(a.clone(), 10), (b.clone(), 20), catch_all.clone()];
        assert_eq!(shares(&objects), both);

        // One file is broken, an object in the other is invalid.
        objects.read([text("1.yaml", "{"), text("2.yaml", &level("b", "-1"))]);
        assert_eq!(objects.errors.len(), 2, "{:?}", objects.errors);
        assert_eq!(shares(&objects), both);

        // The broken one is gone, and the other one cannot be read.
        objects.read([("2.yaml".into(), Err("no permission".to_owned()))]);
        assert_eq!(
            objects.errors[0].to_string(),
            "2.yaml: cannot be read: no permission"
        );
        assert_eq!(shares(&objects), [(b.clone(), 20), catch_all.clone()]);

        // An object that two files define is the first one's.
        objects.read([
            text("2.yaml", &level("b", "21")),
            text("3.yaml", &level("b", "22")),
        ]);
        assert_eq!(objects.errors.len(), 1);
        assert_eq!(shares(&objects), [(b, 21), catch_all.clone()]);
        objects.read([]);
        assert_eq!(shares(&objects), [catch_all]);
    }

    #[test]
    fn what_is_gone_leaves_its_room_to_what_comes() {
        let all = |prefix: &str| -> String {
            let levels = 2..MAX_LEVELS;
            let level = |number| format!("---\n{}", level(&format!("{prefix}{number}"), "10"));
            levels.map(level).collect()
        };
        let mut objects = Objects::default();
        for prefix in ["a", "b"] {
            objects.read([text("1.yaml", &all(prefix))]);
            assert_eq!(objects.errors, []);
            assert_eq!(shares(&objects)[0].0, format!("{prefix}10"));
        }
    }
}
