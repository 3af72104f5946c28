//! Objects by their names. The objects have these themselves, so that no name is in memory twice:
//! there are very many objects.

use std::{
    borrow::Borrow,
    collections::HashSet,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use lb_objects::{EndpointSlice, ObjectName, Service};

/// An object with a name of its own.
pub trait Named {
    fn name(&self) -> &ObjectName;
}

impl Named for Service {
    fn name(&self) -> &ObjectName {
        &self.name
    }
}

impl Named for EndpointSlice {
    fn name(&self) -> &ObjectName {
        &self.name
    }
}

/// Objects of one kind, each name once.
pub struct ByName<T>(HashSet<Entry<T>>);

/// An object, equal to all others of its name.
struct Entry<T>(Arc<T>);

impl<T> Default for ByName<T> {
    fn default() -> Self {
        Self(HashSet::new())
    }
}

impl<T: fmt::Debug> fmt::Debug for ByName<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.0.iter().map(|Entry(object)| object))
            .finish()
    }
}

impl<T: Named> ByName<T> {
    /// The object with this name.
    pub fn get(&self, name: &ObjectName) -> Option<&Arc<T>> {
        self.0.get(name).map(|Entry(object)| object)
    }

    /// Whether there is an object with this name.
    pub fn contains(&self, name: &ObjectName) -> bool {
        self.0.contains(name)
    }

    /// Adds an object, and returns the one of this name that was there before.
    pub fn insert(&mut self, object: Arc<T>) -> Option<Arc<T>> {
        self.0.replace(Entry(object)).map(|Entry(before)| before)
    }

    /// Removes the object with this name, and returns it.
    pub fn remove(&mut self, name: &ObjectName) -> Option<Arc<T>> {
        self.0.take(name).map(|Entry(object)| object)
    }

    /// All objects, in no particular order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<T>> {
        self.0.iter().map(|Entry(object)| object)
    }
}

impl<T: Named> Borrow<ObjectName> for Entry<T> {
    fn borrow(&self) -> &ObjectName {
        self.0.name()
    }
}

impl<T: Named> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name()
    }
}

impl<T: Named> Eq for Entry<T> {}

impl<T: Named> Hash for Entry<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.name().hash(hasher);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(name: &str, service: &str) -> Arc<EndpointSlice> {
        Arc::new(EndpointSlice {
            name: ObjectName::new("default", name),
            service: service.to_owned(),
            weight: 1,
            ports: Vec::new(),
            endpoints: Vec::new(),
        })
    }

    #[test]
    fn the_latest_object_of_a_name_is_there() {
        let mut slices = ByName::default();
        let [first, second] = ["blue", "green"].map(|service| slice("a", service));
        assert_eq!(slices.insert(first.clone()), None);
        assert_eq!(slices.insert(second.clone()), Some(first.clone()));
        slices.insert(slice("b", "blue"));
        assert_eq!(slices.iter().len(), 2);
        assert!(Arc::ptr_eq(slices.get(&first.name).unwrap(), &second));
        // The name is that of the object that is there, not of the one that was.
        drop(first);
        assert!(slices.contains(&second.name));
        assert_eq!(slices.remove(&second.name), Some(second.clone()));
        assert!(!slices.contains(&second.name));
        assert_eq!(slices.remove(&second.name), None);
    }
}
