//! Cuts an answer into pieces as it arrives: a list into objects, a watch into events. Neither is
//! ever held in memory as a whole.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::Deserialize;

use super::failure::Failure;

/// The longest object, event or frame of a list, in bytes: ten times what etcd accepts.
const MAX_PIECE: usize = 16 << 20;

/// Cuts a list into its items, whatever surrounds them.
///
/// It looks only at the outline of JSON: strings and brackets.
#[derive(Debug, Default)]
pub struct ListCutter {
    /// The list without its items.
    outline: Vec<u8>,
    item: Vec<u8>,
    /// Number of open brackets.
    depth: usize,
    in_items: bool,
    in_string: bool,
    escaped: bool,
}

/// A list without its items.
#[derive(Debug, Deserialize)]
struct Outline {
    kind: String,
    metadata: ListMeta,
}

impl ListCutter {
    /// Takes the next bytes and passes on each item that they complete.
    ///
    /// # Errors
    /// The error that `each` returns, or an error if this cannot be a list.
    pub fn push(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for &byte in bytes {
            if self.take(byte)? {
                each(&self.item)?;
                self.item.clear();
            }
        }
        match self.item.len().max(self.outline.len()) > MAX_PIECE {
            true => Err(broken("an object is larger than any API server takes")),
            false => Ok(()),
        }
    }

    /// Takes one byte; true if it completes an item.
    fn take(&mut self, byte: u8) -> Result<bool, Failure> {
        let between_items = self.in_items && self.depth == 2;
        if self.in_string {
            self.in_string = self.escaped || byte != b'"';
            self.escaped = !self.escaped && byte == b'\\';
            self.keep(byte);
            return Ok(false);
        }
        match byte {
            b'"' => self.in_string = true,
            b'[' if self.depth == 1 && self.is_before_items() => {
                self.outline.push(byte);
                self.in_items = true;
                self.depth = 2;
                return Ok(false);
            }
            b'{' | b'[' => self.depth += 1,
            b']' if between_items => {
                self.in_items = false;
                self.depth = 1;
                self.outline.push(byte);
                return Ok(!self.item.is_empty());
            }
            b'}' | b']' => {
                let outer = self.depth.checked_sub(1);
                self.depth = outer.ok_or_else(|| broken("brackets do not match"))?;
            }
            b',' if between_items => return Ok(!self.item.is_empty()),
            _ if between_items && byte.is_ascii_whitespace() => return Ok(false),
            _ => {}
        }
        self.keep(byte);
        Ok(false)
    }

    fn keep(&mut self, byte: u8) {
        match self.in_items {
            true => self.item.push(byte),
            false => self.outline.push(byte),
        }
    }

    /// Whether the outline ends with the key of the items.
    fn is_before_items(&self) -> bool {
        let key = self.outline.trim_ascii_end().strip_suffix(b":");
        key.is_some_and(|key| key.trim_ascii_end().ends_with(b"\"items\""))
    }

    /// The list's metadata, once the list is complete.
    ///
    /// # Errors
    /// If the list is incomplete or not a list. Some of its items may be missing then.
    pub fn finish(self) -> Result<ListMeta, Failure> {
        let outline: Outline = serde_json::from_slice(&self.outline)
            .map_err(|error| broken(&format!("not a complete list, {error}")))?;
        let has_version = outline.metadata.resource_version.as_deref() != Some("")
            && outline.metadata.resource_version.is_some();
        match outline.kind.ends_with("List") && has_version {
            true => Ok(outline.metadata),
            false => Err(broken("not a list with a resourceVersion")),
        }
    }
}

/// Cuts a watch into its events, one per line.
#[derive(Debug, Default)]
pub struct LineCutter {
    partial: Vec<u8>,
}

impl LineCutter {
    /// Takes the next bytes and passes on each line that they complete.
    ///
    /// # Errors
    /// The error that `each` returns, or an error for a line that is too long.
    pub fn push(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, more) = rest.split_at(end);
            rest = &more[1..];
            if self.partial.is_empty() {
                each(line)?;
            } else {
                self.partial.extend_from_slice(line);
                each(&std::mem::take(&mut self.partial))?;
            }
        }
        self.partial.extend_from_slice(rest);
        match self.partial.len() > MAX_PIECE {
            true => Err(broken("an event is larger than any API server sends")),
            false => Ok(()),
        }
    }

    /// # Errors
    /// If the watch ended in the middle of an event.
    pub fn finish(self) -> Result<(), Failure> {
        match self.partial.trim_ascii().is_empty() {
            true => Ok(()),
            false => Err(broken("the watch ended in the middle of an event")),
        }
    }
}

fn broken(what: &str) -> Failure {
    Failure::Broken(what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds a text in pieces of this size.
    fn items(text: &str, piece: usize) -> Result<(Vec<String>, ListMeta), Failure> {
        let mut cutter = ListCutter::default();
        let mut items = Vec::new();
        for bytes in text.as_bytes().chunks(piece) {
            cutter.push(bytes, |item| {
                items.push(String::from_utf8(item.to_vec()).unwrap());
                Ok(())
            })?;
        }
        Ok((items, cutter.finish()?))
    }

    #[test]
    fn list_is_cut_into_items_however_it_arrives() {
        let text = r#" {"kind":"ServiceList","a":{"items":[1]},"items" : [ {"x":"]}\"[{,"} ,
            {"items":[{},{}]}, null, 7 ], "metadata":{"resourceVersion":"5","continue":"c"}} "#;
        for piece in [1, 2, 7, 1000] {
            let (items, meta) = items(text, piece).unwrap();
            assert_eq!(
                items,
                [r#"{"x":"]}\"[{,"}"#, r#"{"items":[{},{}]}"#, "null", "7"]
            );
            assert_eq!(meta.resource_version.as_deref(), Some("5"));
            assert_eq!(meta.continue_.as_deref(), Some("c"));
        }
    }

    #[test]
    fn empty_lists_are_lists_but_nothing_else_is() {
        for empty in ["[]", "null", "[ ]"] {
            let text = format!(
                r#"{{"kind":"NodeList","metadata":{{"resourceVersion":"1"}},"items":{empty}}}"#
            );
            assert_eq!(items(&text, 3).unwrap().0, [""; 0]);
        }
        for text in [
            "",
            "{}",
            "<html>",
            "null",
            "}",
            r#"{"kind":"NodeList","metadata":{},"items":[]}"#,
            r#"{"kind":"NodeList","metadata":{"resourceVersion":""},"items":[]}"#,
            r#"{"kind":"Status","metadata":{"resourceVersion":"1"}}"#,
            r#"{"kind":"NodeList","metadata":{"resourceVersion":"1"},"items":[{"#,
            r#"{"kind":"NodeList","metadata":{"resourceVersion":"1"},"items":[{}]"#,
        ] {
            assert!(matches!(items(text, 4), Err(Failure::Broken(_))), "{text}");
        }
    }

    #[test]
    fn watch_is_cut_into_lines() {
        let mut cutter = LineCutter::default();
        let mut lines = Vec::new();
        for piece in ["a", "b\nc\n", "", "\nd", "e"] {
            let each = |line: &[u8]| {
                lines.push(line.to_vec());
                Ok(())
            };
            cutter.push(piece.as_bytes(), each).unwrap();
        }
        assert_eq!(lines, [&b"ab"[..], b"c", b""]);
        assert!(cutter.finish().is_err());
        assert!(LineCutter::default().finish().is_ok());
    }
}
