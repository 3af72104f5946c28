//! Gives equal values the same number.

use std::{collections::HashMap, hash::Hash};

/// Numbers distinct values from zero up.
#[derive(Clone, Debug)]
pub struct Interned<T> {
    values: Vec<T>,
    numbers: HashMap<T, u32>,
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            numbers: HashMap::new(),
        }
    }
}

impl<T: Clone + Eq + Hash> Interned<T> {
    /// The number of a value, a new one if it has none.
    pub fn number(&mut self, value: T) -> u32 {
        if let Some(number) = self.numbers.get(&value) {
            return *number;
        }
        let number =
            u32::try_from(self.values.len()).expect("4 billion values do not fit in memory");
        self.values.push(value.clone());
        self.numbers.insert(value, number);
        number
    }
}

impl<T> Interned<T> {
    /// How many distinct values there are.
    pub fn len(&self) -> u32 {
        // Each has a number.
        self.values.len() as u32
    }

    /// The value of a number, if it has one.
    pub fn get(&self, number: u32) -> Option<&T> {
        self.values.get(number as usize)
    }
}
