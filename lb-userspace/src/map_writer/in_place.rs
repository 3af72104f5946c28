//! Replacing a service port's endpoints where they are, for want of a fresh place.
//!
//! A full map must not keep endpoints in force that are gone. So what stays as it is is published
//! alone at first, and the rest is written over what is gone, in up to three plans, each published
//! when no packet can be looking at what it overwrites. Meanwhile, some milliseconds, the service
//! port has fewer endpoints than it could have, if need be none, but no wrong ones.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use lb_common::abi::{self, CLASSES};

use super::{
    Key, MapWriter, NotProgrammed,
    parts::Parts,
    service::{Next, Wanted, place, places},
};
use crate::plan::Plan;

/// Endpoints in each class.
type Counts = [u32; CLASSES];

impl MapWriter {
    /// Makes a service port's endpoints those wanted, as far as they fit where the present ones
    /// are: if not all do, those of the first classes.
    ///
    /// # Errors
    ///
    /// If not everything is as wanted then; with `error`, why there is no fresh place, if that is
    /// because there are more endpoints than before.
    pub(super) fn replace_in_place(
        &mut self,
        key: &Key,
        plan: &Plan,
        wanted: &Wanted,
        error: NotProgrammed,
    ) -> Result<(), NotProgrammed> {
        let current = &self.programmed[key];
        if current.plan == 0 {
            return Err(error);
        }
        let room = current.endpoints.len();
        let target = wanted.first(room);
        if is_same(&current.content, &current.endpoints, &target) {
            return Err(error);
        }
        let before: Vec<u32> = current.endpoints.iter().map(|e| e.id).collect();
        let staying = self.staying(key, &target);
        let rewritten = self.rewrite(key, plan, &target, &staying);
        let used: HashSet<u32> = self.programmed[key]
            .endpoints
            .iter()
            .map(|e| e.id)
            .collect();
        let lost = before.into_iter();
        let lost = lost.filter(|id| staying.contains(id) && !used.contains(id));
        self.garbage.endpoint_ids.extend(lost);
        rewritten?;
        if wanted.endpoints.len() > room {
            return Err(error);
        }
        match self.is_published(&self.programmed[key], plan, wanted) {
            true => Ok(()),
            // The endpoints are where they are to be: this needs no slots.
            false => self.try_publish(key, plan, wanted),
        }
    }

    /// Numbers of endpoints that are to be there afterwards as well.
    fn staying(&self, key: &Key, target: &Wanted) -> HashSet<u32> {
        let known = places(&self.programmed[key].endpoints);
        let staying = target.endpoints.iter().map(place);
        staying
            .filter_map(|place| known.get(&place).copied())
            .collect()
    }

    fn rewrite(
        &mut self,
        key: &Key,
        plan: &Plan,
        target: &Wanted,
        staying: &HashSet<u32>,
    ) -> Result<(), NotProgrammed> {
        let current = &self.programmed[key];
        let start = current.content.first;
        let known = places(&current.endpoints);
        let part = Part::that_stays(&current.content.counts, &current.endpoints, target);
        let mut here = part.positions.len();
        let elsewhere = part.positions.start;
        let is_all = elsewhere == 0 && here == target.endpoints.len();
        let first = start + elsewhere as u32;
        self.publish_part(
            key,
            plan,
            target,
            first,
            part.endpoints,
            part.counts,
            staying,
        )?;
        if is_all {
            return Ok(());
        }

        // What has gone may be overwritten from here on.
        let mut taken = Parts::default();
        let numbered = self.number_endpoints(plan.rank, &target.endpoints, &known, &mut taken);
        let endpoints = match numbered {
            Ok(endpoints) => endpoints,
            Err(error) => {
                self.release(taken);
                return Err(error);
            }
        };
        if elsewhere > 0 && here > 0 {
            // In the way of the others: it has to make way for the first of them.
            self.slots.reserve(start..start + 1);
            let (first, counts) = (endpoints[..1].to_vec(), target.first(1).content.counts);
            self.publish_part(key, plan, target, start, first, counts, staying)?;
            here = 1;
        }
        let end = start + endpoints.len() as u32;
        self.slots.reserve(start + here as u32..end);
        let counts = target.content.counts;
        self.publish_part(key, plan, target, start, endpoints, counts, staying)
    }

    /// Publishes endpoints in slots that nobody is looking at, or where they are already, and waits
    /// until nobody is looking at anything else.
    #[expect(clippy::too_many_arguments, reason = "all of it is one plan")]
    fn publish_part(
        &mut self,
        key: &Key,
        plan: &Plan,
        target: &Wanted,
        first: u32,
        endpoints: Vec<abi::Endpoint>,
        counts: Counts,
        staying: &HashSet<u32>,
    ) -> Result<(), NotProgrammed> {
        let index = self.plan_number(key, plan.rank, &mut Parts::default())?;
        let source_set = match self.source_set(key, plan) {
            Ok(set) => set,
            Err(_) => {
                // Rather the one in force than none, which lets everybody in.
                let present = self.programmed[key].content.source_set;
                self.source_sets.adopt(present);
                present
            }
        };
        let content = abi::Plan {
            first,
            counts,
            source_set,
            maglev_rows: 0,
            ..target.content
        };
        let next = Next {
            index,
            content,
            weights: target.weights_of(&endpoints),
            endpoints,
        };
        self.publish_next(key, next, staying);
        self.make_room();
        Ok(())
    }
}

/// Whether a plan in force has these endpoints and does with them what is wanted, but for how one
/// is picked.
fn is_same(content: &abi::Plan, endpoints: &[abi::Endpoint], target: &Wanted) -> bool {
    let wanted = &target.content;
    let rules = |plan: &abi::Plan| (plan.counts, plan.flags, plan.affinity_seconds, plan.seats);
    rules(content) == rules(wanted)
        && endpoints.len() == target.endpoints.len()
        && prefix(&content.counts, endpoints, target) == endpoints.len()
}

/// Endpoints in force that are to stay just as they are.
struct Part {
    /// Among those in force.
    positions: Range<usize>,
    endpoints: Vec<abi::Endpoint>,
    counts: Counts,
}

impl Part {
    /// As many as there are in a row from where they are to be in the end; if there are none, the
    /// longest row that leaves the first place to be overwritten.
    fn that_stays(counts: &Counts, endpoints: &[abi::Endpoint], target: &Wanted) -> Self {
        let positions = match prefix(counts, endpoints, target) {
            0 => longest_run(counts, endpoints, target),
            stay => 0..stay,
        };
        let mut of_part = Counts::default();
        for (_, class) in classes(counts)
            .enumerate()
            .filter(|(position, _)| positions.contains(position))
        {
            of_part[class] += 1;
        }
        Self {
            endpoints: endpoints[positions.clone()].to_vec(),
            positions,
            counts: of_part,
        }
    }
}

/// How many of the endpoints in force are the first ones wanted, in their classes.
fn prefix(counts: &Counts, endpoints: &[abi::Endpoint], target: &Wanted) -> usize {
    let present = endpoints.iter().zip(classes(counts));
    let wanted = target.endpoints.iter().zip(classes(&target.content.counts));
    present
        .zip(wanted)
        .take_while(|((have, class), (want, wanted))| class == wanted && is_equal(have, want))
        .count()
}

/// The longest row of endpoints in force, without the first one, that are wanted in the same class.
fn longest_run(counts: &Counts, endpoints: &[abi::Endpoint], target: &Wanted) -> Range<usize> {
    let wanted = target.endpoints.iter().zip(classes(&target.content.counts));
    let wanted: HashMap<_, _> = wanted
        .map(|(want, class)| (place(want), (want, class)))
        .collect();
    // None: all places may be overwritten.
    let mut longest = 0..0;
    let mut run = 1..1;
    for (position, (have, class)) in endpoints.iter().zip(classes(counts)).enumerate().skip(1) {
        let stays = wanted
            .get(&place(have))
            .is_some_and(|(want, wanted)| *wanted == class && is_equal(have, want));
        run = match stays {
            true => run.start..position + 1,
            false => position + 1..position + 1,
        };
        if run.len() > longest.len() {
            longest = run.clone();
        }
    }
    longest
}

/// The class of each endpoint.
fn classes(counts: &Counts) -> impl Iterator<Item = usize> {
    let classes = counts.iter().enumerate();
    classes.flat_map(|(class, count)| std::iter::repeat_n(class, *count as usize))
}

fn is_equal(have: &abi::Endpoint, want: &abi::Endpoint) -> bool {
    abi::Endpoint { id: 0, ..*have } == *want
}
