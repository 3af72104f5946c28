//! Classes of destinations in the maps: which flow schema takes the connections to a frontend.
//! Frontends with the same answer share a class.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use lb_common::abi::{Decision, DestinationClass};
use lb_datapath::maps::Maps;

use super::super::{
    ranges::{Numbers, Ranges},
    verify::Findings,
};

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
    /// What [`UNKNOWN`] means, once that has been said.
    unknown: Option<Decision>,
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
            unknown: None,
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
        let mut first = 0;
        if let Content::BySource { decisions, .. } = &content {
            let Some(free) = self.decisions.take(decisions.len() as u32) else {
                self.numbers.release(class);
                return None;
            };
            first = free;
        }
        let (element, decisions) = in_map(&content, first);
        for (index, decision) in (first..).zip(decisions) {
            maps.decisions.write(index, decision);
        }
        maps.destination_classes.write(class, &element);
        // There are no more of them.
        let class = class as u16;
        self.remember(class, content, first);
        Some(class)
    }

    /// Says what [`UNKNOWN`] means.
    pub fn set_unknown(&mut self, decision: Decision, maps: &Maps) {
        let (element, _) = in_map(&Content::Any(decision), 0);
        maps.destination_classes.write(UNKNOWN.into(), &element);
        self.unknown = Some(decision);
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

    /// Compares the classes and their decisions with what was written, and mends them.
    pub fn verify(&self, maps: &Maps, findings: &mut Findings) {
        let unknown = self
            .unknown
            .map(|decision| (UNKNOWN, Content::Any(decision), 0));
        let known = self.known.iter();
        let known = known.map(|(class, (content, first))| (*class, content.clone(), *first));
        for (class, content, first) in known.chain(unknown) {
            let (element, decisions) = in_map(&content, first);
            let whose = format!("class {class}");
            let element = (class.into(), &element);
            let classes = &*maps.destination_classes;
            findings.element("DESTINATION_CLASSES", classes, element, &whose);
            for decision in (first..).zip(decisions) {
                findings.element("DECISIONS", &*maps.decisions, decision, &whose);
            }
        }
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

/// The element of a class, and its decisions, of which this is the first one's index.
fn in_map(content: &Content, first: u32) -> (DestinationClass, &[Decision]) {
    let none = DestinationClass::default();
    match content {
        Content::Any(decision) => {
            let decision = *decision;
            (DestinationClass { decision, ..none }, &[])
        }
        Content::BySource { set, decisions } => {
            let (set, count) = (*set, decisions.len() as u32);
            let element = DestinationClass {
                set,
                first,
                count,
                ..none
            };
            (element, decisions)
        }
    }
}
