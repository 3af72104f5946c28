//! Version numbers, as far as the choice of tools needs them.

use std::fmt;

/// `major.minor.patch`; what follows (`-nightly`, `+dfsg1-1~deb12u2`) does not matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl Release {
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self {
            major,
            minor,
            patch,
        }
    }

    /// Reads the number that `text` starts with; missing parts are zero.
    pub fn parse(text: &str) -> Option<Self> {
        let end = text
            .find(|c: char| c != '.' && !c.is_ascii_digit())
            .unwrap_or(text.len());
        let mut parts = text[..end].split('.');
        let major = parts.next()?.parse().ok()?;
        let mut next = || parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
        Some(Self {
            major,
            minor: next(),
            patch: next(),
        })
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_compilers_linkers_and_packages_print() {
        let cases = [
            ("1.97.0-nightly", Some(Release::new(1, 97, 0))),
            ("1.96.0+dfsg1-1~deb12u2", Some(Release::new(1, 96, 0))),
            ("22.1.8", Some(Release::new(22, 1, 8))),
            ("23", Some(Release::new(23, 0, 0))),
            ("1.75.0ubuntu1", Some(Release::new(1, 75, 0))),
            ("(none)", None),
            ("", None),
            ("99999999999.1", None),
        ];
        for (text, expected) in cases {
            assert_eq!(Release::parse(text), expected, "{text:?}");
        }
    }

    #[test]
    fn orders_by_number_not_by_text() {
        assert!(Release::new(0, 13, 0) > Release::new(0, 9, 15));
        assert!(Release::new(1, 100, 0) > Release::new(1, 99, 9));
    }
}
