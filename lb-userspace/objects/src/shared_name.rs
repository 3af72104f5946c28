//! Names that very many objects share.

use std::{
    collections::HashSet,
    fmt,
    ops::Deref,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

/// The name of a node, a zone, a port or a namespace. There are few names and many objects that have them, so all
/// copies share one text in memory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedName(Arc<str>);

/// All names in use, and some that are no longer used.
#[derive(Default)]
struct Names {
    known: HashSet<Arc<str>>,
    /// How many names there were after unused ones were last removed.
    kept: usize,
}

/// With fewer names than this, unused ones are not removed.
const FEW: usize = 1024;

static NAMES: LazyLock<Mutex<Names>> = LazyLock::new(Mutex::default);

impl Names {
    fn get(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        // Nodes come and go, so unused names are removed each time the number has doubled, which
        // costs little per name.
        if self.known.len() >= FEW.max(2 * self.kept) {
            self.known.retain(|name| Arc::strong_count(name) > 1);
            self.kept = self.known.len();
        }
        let name = Arc::<str>::from(name);
        self.known.insert(name.clone());
        name
    }
}

impl From<&str> for SharedName {
    fn from(name: &str) -> Self {
        // No step leaves the data incomplete, so poison is ignored.
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        Self(names.get(name))
    }
}

impl From<String> for SharedName {
    fn from(name: String) -> Self {
        name.as_str().into()
    }
}

impl Default for SharedName {
    fn default() -> Self {
        "".into()
    }
}

impl PartialEq<str> for SharedName {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for SharedName {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl Deref for SharedName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SharedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

impl fmt::Debug for SharedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_are_one() {
        let [a, b] = ["zone-a", "zone-a"].map(SharedName::from);
        assert!(Arc::ptr_eq(&a.0, &b.0));
        assert_eq!(&*a, "zone-a");
        assert_ne!(a, SharedName::from("zone-b"));
    }

    #[test]
    fn names_that_nobody_has_are_forgotten() {
        let mut names = Names::default();
        let kept = names.get("kept");
        for number in 0..10 * FEW {
            names.get(&number.to_string());
            assert!(names.known.len() <= FEW);
        }
        assert!(Arc::ptr_eq(&kept, &names.get("kept")));
    }
}
