//! Turns the text of a file into objects. Only documents that have changed are parsed again.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    path::Path,
    sync::Arc,
};

use lb_objects::text::{self, Broken, newlines};

use super::document::{Document, Manifest};

/// The documents of a file as last parsed, by the hash of their text.
#[derive(Debug, Default)]
pub struct Documents {
    hasher: RandomState,
    parsed: HashMap<u64, Arc<Manifest>>,
}

impl Documents {
    /// Parses a file with any number of documents: JSON if the file's name says so, else YAML. If
    /// one document is broken, all are refused.
    pub fn parse(&mut self, path: &Path, text: &[u8]) -> Result<Manifest, Broken> {
        let text = text::utf8(text)?;
        let (documents, parse): (_, fn(&str) -> _) = match text::is_json(path) {
            true => (vec![text], |text| join(text::json(text)?)),
            false => (yaml_documents(text), |text| join(text::yaml(text)?)),
        };

        let mut parsed = HashMap::with_capacity(documents.len());
        let mut whole = Manifest::default();
        let mut lines_before = 0;
        for document in documents {
            let hash = self.hasher.hash_one(document);
            let manifest = match self.parsed.get(&hash) {
                Some(manifest) => manifest.clone(),
                None => parse(document).map(Arc::new).map_err(|broken| Broken {
                    line: broken.line.map(|line| line + lines_before),
                    ..broken
                })?,
            };
            whole.append(&manifest, lines_before);
            lines_before += newlines(document.as_bytes());
            parsed.insert(hash, manifest);
        }
        self.parsed = parsed;
        Ok(whole)
    }
}

/// Splits a YAML stream where documents start (`---`) and end (`...`); no scalar can contain these
/// at the start of a line. Directives and comments stay with the document that follows them.
fn yaml_documents(text: &str) -> Vec<&str> {
    let is_marker = |line: &str, marker| {
        let rest = line.strip_prefix(marker);
        rest.is_some_and(|rest: &str| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
    };
    let mut documents = Vec::new();
    let (mut start, mut offset, mut has_content) = (0, 0, false);
    for line in text.split_inclusive('\n') {
        let begins = is_marker(line, "---");
        if begins && has_content {
            documents.push(&text[start..offset]);
            start = offset;
        }
        offset += line.len();
        if is_marker(line, "...") {
            documents.push(&text[start..offset]);
            (start, has_content) = (offset, false);
        } else {
            let is_blank = line.trim_start().is_empty() || line.starts_with(['#', '%']);
            has_content |= begins || !is_blank;
        }
    }
    documents.push(&text[start..]);
    documents
}

fn join(documents: impl IntoIterator<Item = (u64, Document)>) -> Result<Manifest, Broken> {
    let mut whole = Manifest::default();
    for (line, Document(manifest)) in documents {
        let manifest = manifest.ok_or_else(|| Broken {
            line: Some(line),
            message: "is not a Kubernetes object: it has no kind".to_owned(),
        })?;
        whole.append(&manifest.at_line(line), 0);
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use lb_objects::Object;

    use super::*;

    #[test]
    fn yaml_is_split_where_documents_are() {
        let cases: [(&str, &[&str]); 8] = [
            ("", &[""]),
            ("a: b\n", &["a: b\n"]),
            (
                "# c\n---\na: b\n---\nc: d",
                &["# c\n---\na: b\n", "---\nc: d"],
            ),
            (
                "%YAML 1.2\n---\na: b\n...\n%YAML 1.2\n---\nc: d\n",
                &["%YAML 1.2\n---\na: b\n...\n", "%YAML 1.2\n---\nc: d\n"],
            ),
            ("a: |\n  ---\n ---\nb: c\n", &["a: |\n  ---\n ---\nb: c\n"]),
            ("---a: b\n", &["---a: b\n"]),
            (
                "--- {a: b}\r\n---\r\nc: d\r\n",
                &["--- {a: b}\r\n", "---\r\nc: d\r\n"],
            ),
            ("---\n---\n", &["---\n", "---\n"]),
        ];
        for (text, expected) in cases {
            let documents = yaml_documents(text);
            assert_eq!(documents.concat(), text);
            let documents: Vec<_> = documents.into_iter().filter(|d| !d.is_empty()).collect();
            let expected: Vec<_> = expected.iter().filter(|d| !d.is_empty()).copied().collect();
            assert_eq!(documents, expected, "{text:?}");
        }
    }

    #[test]
    fn unchanged_documents_are_not_parsed_again() {
        let service = |name: &str, ip: &str| {
            format!("---\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{clusterIP: {ip}}}\n")
        };
        let mut documents = Documents::default();
        let path = Path::new("a.yaml");
        let both = service("a", "10.0.0.1") + &service("b", "10.0.0.999");
        let first = documents.parse(path, both.as_bytes()).unwrap();
        assert_eq!((first.objects.len(), first.problems[0].line), (1, Some(6)));

        // The same documents after another one: the same objects, on other lines.
        let moved = service("c", "10.0.0.3") + &both;
        let second = documents.parse(path, moved.as_bytes()).unwrap();
        assert_eq!(
            (second.objects.len(), second.problems[0].line),
            (2, Some(10))
        );
        let (Object::Service(old), Object::Service(new)) = (&first.objects[0], &second.objects[1])
        else {
            panic!("{second:?}");
        };
        assert!(Arc::ptr_eq(old, new));
        assert!(documents.parse(path, b"---\nkind: [\n").is_err());
    }

    proptest! {
        #[test]
        fn any_text_parses_without_panic(
            lines in prop::collection::vec(
                prop_oneof![
                    Just("---".to_owned()), Just("...".to_owned()), Just("%YAML 1.2".to_owned()),
                    Just("kind: List".to_owned()), Just("items:".to_owned()),
                    Just("- kind: Service".to_owned()), Just("  metadata: {name: a}".to_owned()),
                    Just("<<: *a".to_owned()), Just("a: &a {b: *a}".to_owned()),
                    "[ -~]{0,20}", ".{0,20}",
                ],
                0..20,
            ),
        ) {
            let text = lines.join("\n");
            for name in ["a.yaml", "a.json"] {
                let result = Documents::default().parse(Path::new(name), text.as_bytes());
                if let Err(broken) = result {
                    prop_assert!(broken.line.is_none_or(|line| line <= 2 + lines.len() as u64));
                }
            }
        }

        /// Splitting a stream into documents does not change what is valid and what is broken.
        #[test]
        fn documents_apart_are_as_documents_together(
            lines in prop::collection::vec(
                prop::sample::select(vec![
                    "---", "...", "# c", "", "kind: Pod", "a: |", "  x", "a: 'b", "'", "b: [c", "]", "- d",
                ]),
                0..12,
            ),
        ) {
            let text = lines.join("\n");
            let together = text::yaml::<Document>(&text).and_then(join).is_ok();
            let apart = yaml_documents(&text).into_iter().all(|document| text::yaml::<Document>(document).and_then(join).is_ok());
            prop_assert_eq!(together, apart, "{}", text);
        }
    }
}
