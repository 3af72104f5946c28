//! From the text of one file to objects, parsing only the documents that changed since last time.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    path::Path,
    sync::Arc,
};

use serde_saphyr::{Location, Spanned};

use super::document::{Document, Manifest};

/// Most YAML nodes in one document: well above 100,000 objects, and a bound on memory.
const MAX_NODES: usize = 4_000_000;
/// Most YAML nodes that aliases may stand for in one document, against alias bombs.
const MAX_ALIASED_NODES: usize = 100_000;

/// The documents of a file as last parsed, by the hash of their text.
#[derive(Debug, Default)]
pub struct Documents {
    hasher: RandomState,
    parsed: HashMap<u64, Arc<Manifest>>,
}

/// Why a file is of no use.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken {
    pub line: Option<u64>,
    pub message: String,
}

impl Documents {
    /// Parses a file's contents: JSON (by the file's name) or YAML, in either case any number of
    /// documents, of which one broken one is enough to refuse all.
    pub fn parse(&mut self, path: &Path, text: &[u8]) -> Result<Manifest, Broken> {
        let text = std::str::from_utf8(text).map_err(|error| Broken {
            line: Some(1 + newlines(&text[..error.valid_up_to()])),
            message: "is not UTF-8 text".to_owned(),
        })?;
        let is_json = path
            .extension()
            .is_some_and(|extension| extension == "json");
        let (documents, parse): (_, fn(&str) -> _) = match is_json {
            true => (vec![text], parse_json),
            false => (yaml_documents(text), parse_yaml),
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

/// Splits a YAML stream where documents begin (`---`) and end (`...`), which no scalar can contain
/// at the start of a line. Directives and comments stay with the document they precede.
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

fn parse_yaml(text: &str) -> Result<Manifest, Broken> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_ALIASED_NODES,
        },
    };
    let documents: Vec<Spanned<Document>> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| Broken {
            line: error.location().as_ref().map(Location::line),
            message: error.without_snippet().to_string(),
        })?;
    let documents = documents.into_iter();
    join(documents.map(|document| (document.referenced.line(), document.value)))
}

fn parse_json(text: &str) -> Result<Manifest, Broken> {
    let mut parser = serde_json::Deserializer::from_str(text).into_iter();
    let (mut line, mut offset) = (1, 0);
    let mut documents = Vec::new();
    loop {
        let rest = text[offset..].trim_start();
        let start = text.len() - rest.len();
        line += newlines(&text.as_bytes()[offset..start]);
        match parser.next() {
            None => return join(documents),
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

fn newlines(text: &[u8]) -> u64 {
    text.iter().filter(|byte| **byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::super::Object, *};

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

        // The same documents with another before them: the same objects, on other lines.
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

        /// Cutting a stream into documents does not change what is good and what is broken.
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
            let together = parse_yaml(&text).is_ok();
            let apart = yaml_documents(&text).into_iter().all(|document| parse_yaml(document).is_ok());
            prop_assert_eq!(together, apart, "{}", text);
        }
    }
}
