//! Classes of destinations in the maps: which flow schema takes the connections to a frontend.
//! Frontends with the same answer share a class.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use lb_common::abi::{Decision, DestinationClass};
use lb_datapath::maps::Maps;

use super::super::ranges::{Numbers, Ranges};

/// The class of frontends that nothing is known of.
pub const UNKNOWN: u16 = 0;

/// What a class says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// The source's address does not matter.
    Any(Decision),
    /// One decision for each class of sources of a set.
    BySource {
        set: u32,
        decisions: Arc<[Decision]>,
    },
}

/// The classes in `DESTINATION_CLASSES`, and their decisions in `DECISIONS`.
#[derive(Debug)]
pub struct Classes {
    numbers: Numbers,
    decisions: Ranges,
    by_content: HashMap<Content, u16>,
    /// With the index of the first decision.
    known: HashMap<u16, (Content, u32)>,
}

impl Classes {
    /// Of maps that hold nothing.
    pub fn new(maps: &Maps) -> Self {
        let classes = maps.destination_classes.len().min(u32::from(u16::MAX));
        Self {
            numbers: Numbers::new(u32::from(UNKNOWN) + 1..classes),
            decisions: Ranges::new(0..maps.decisions.len()),
            by_content: HashMap::new(),
            known: HashMap::new(),
        }
    }

    /// Takes over classes that an earlier agent has made.
    pub fn inherit(&mut self, classes: impl IntoIterator<Item = u16>, maps: &Maps) {
        for class in classes {
            if class == UNKNOWN || self.known.contains_key(&class) {
                continue;
            }
            let DestinationClass {
                decision,
                set,
                first,
                count,
                ..
            } = maps.destination_classes.read(class.into());
            let range = first..first.saturating_add(count);
            if !self.numbers.reserve(class.into()) {
                continue;
            }
            let content = if set == 0 {
                Content::Any(decision)
            } else if range.end <= maps.decisions.len() && self.decisions.reserve(range.clone()) {
                let decisions = range.map(|index| maps.decisions.read(index)).collect();
                Content::BySource { set, decisions }
            } else {
                // Its frontends get another class.
                self.numbers.release(class.into());
                continue;
            };
            self.remember(class, content, first);
        }
    }

    /// The class that says this; `None` if there is no room for it.
    pub fn number(&mut self, content: Content, maps: &Maps) -> Option<u16> {
        if let Some(class) = self.by_content.get(&content) {
            return Some(*class);
        }
        let class = self.numbers.take()?;
        let mut element = DestinationClass::default();
        match &content {
            Content::Any(decision) => element.decision = *decision,
            Content::BySource { set, decisions } => {
                let count = decisions.len() as u32;
                let Some(first) = self.decisions.take(count) else {
                    self.numbers.release(class);
                    return None;
                };
                for (index, decision) in (first..).zip(&**decisions) {
                    maps.decisions.write(index, decision);
                }
                (element.set, element.first, element.count) = (*set, first, count);
            }
        }
        maps.destination_classes.write(class, &element);
        // There are no more of them.
        let class = class as u16;
        self.remember(class, content, element.first);
        Some(class)
    }

    /// Says what [`UNKNOWN`] means.
    pub fn set_unknown(&self, decision: Decision, maps: &Maps) {
        let element = DestinationClass {
            decision,
            ..DestinationClass::default()
        };
        maps.destination_classes.write(UNKNOWN.into(), &element);
    }

    /// Makes the room of all other classes free. No program uses them any more.
    pub fn retain(&mut self, used: &HashSet<u16>) {
        let unused: Vec<_> = self.known.keys().copied().collect();
        for class in unused.into_iter().filter(|class| !used.contains(class)) {
            let Some((content, first)) = self.known.remove(&class) else {
                continue;
            };
            if self.by_content.get(&content) == Some(&class) {
                self.by_content.remove(&content);
            }
            if let Content::BySource { decisions, .. } = content {
                self.decisions
                    .release(first..first + decisions.len() as u32);
            }
            self.numbers.release(class.into());
        }
    }

    /// Sets of networks that classes refer to.
    pub fn sets(&self) -> HashSet<u32> {
        let contents = self.known.values().map(|(content, _)| content);
        let sets = contents.filter_map(|content| match content {
            Content::Any(_) => None,
            Content::BySource { set, .. } => Some(*set),
        });
        sets.collect()
    }

    /// Classes, and decisions of those where sources matter.
    pub fn used(&self) -> [u32; 2] {
        let decisions = self.known.values().map(|(content, _)| match content {
            Content::Any(_) => 0,
            Content::BySource { decisions, .. } => decisions.len() as u32,
        });
        [self.known.len() as u32, decisions.sum()]
    }

    fn remember(&mut self, class: u16, content: Content, first: u32) {
        self.by_content.insert(content.clone(), class);
        self.known.insert(class, (content, first));
    }
}
