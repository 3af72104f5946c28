//! Elements that the pipeline changes in place, as programs change elements of maps.

use std::{cell::UnsafeCell, ptr::NonNull};

use lb_common::{flow::Hop, pipeline::RINGS};

/// How many next hops are kept. Only few are ever in use.
pub const HOP_ENTRIES: u32 = 64;
/// How many half-open flows a service may have before the oldest gives way.
pub const HALF_OPEN: u32 = 256;

/// Elements that never move in memory.
struct Elements<T>(Vec<Box<UnsafeCell<T>>>);

// SAFETY: threads reach elements as packets on several CPUs do: atomically, or where any value will
// do.
unsafe impl<T: Send> Sync for Elements<T> {}

impl<T: Default> Elements<T> {
    fn new(count: u32) -> Self {
        let mut elements = Self(Vec::new());
        elements.grow(count);
        elements
    }

    /// Adds elements until there are at least `count`.
    fn grow(&mut self, count: u32) {
        let count = self.0.len().max(count as usize);
        self.0.resize_with(count, Box::default);
    }

    fn clear(&mut self) {
        for element in &mut self.0 {
            *element.get_mut() = T::default();
        }
    }

    fn get(&self, index: u32) -> Option<NonNull<T>> {
        NonNull::new(self.0.get(index as usize)?.get())
    }
}

/// The elements that both families share.
pub struct Shared {
    hops: Elements<Hop>,
}

impl Shared {
    pub fn new() -> Self {
        Self {
            hops: Elements::new(HOP_ENTRIES),
        }
    }

    /// Resets all elements to their initial values.
    pub fn clear(&mut self) {
        self.hops.clear();
    }

    pub fn hop(&self, index: u32) -> Option<NonNull<Hop>> {
        self.hops.get(index)
    }
}

/// The rings of half-open flows.
pub struct HalfOpen {
    places: Box<[UnsafeCell<u64>]>,
    cursors: Box<[UnsafeCell<u32>]>,
}

// SAFETY: places and cursors are only accessed atomically.
unsafe impl Sync for HalfOpen {}

impl HalfOpen {
    pub fn new() -> Self {
        Self {
            places: (0..RINGS * HALF_OPEN).map(|_| UnsafeCell::new(0)).collect(),
            cursors: (0..RINGS).map(|_| UnsafeCell::new(0)).collect(),
        }
    }

    /// Frees all places.
    pub fn clear(&mut self) {
        self.places
            .iter_mut()
            .for_each(|place| *place.get_mut() = 0);
        self.cursors
            .iter_mut()
            .for_each(|cursor| *cursor.get_mut() = 0);
    }

    pub fn place(&self, index: u32) -> Option<NonNull<u64>> {
        NonNull::new(self.places.get(index as usize)?.get())
    }

    pub fn cursor(&self, ring: u32) -> Option<NonNull<u32>> {
        NonNull::new(self.cursors.get(ring as usize)?.get())
    }
}
