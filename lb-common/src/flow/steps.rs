//! The steps of searches and claims as plain functions, for code that no verifier checks.

use super::{
    claim, end, linger, load,
    place::Place,
    queue, resize, seats,
    slots::{Purpose, Slots, Steps},
    table,
};
use crate::{
    addr::Address,
    parse::{Segment, Tuple},
};

/// Memory with the functions themselves as its steps.
pub trait Plain {}

impl<A: Address, S: Slots<A> + Plain> Steps<A> for S {
    fn find_index(&self, tuple: &Tuple<A>) -> u64 {
        table::find_index(self, tuple)
    }

    fn claim_index(&self, tuple: &Tuple<A>, hash: u64) -> u64 {
        claim::claim_index(self, tuple, hash)
    }

    fn has_rival(&self, tuple: &Tuple<A>, hash: u64, outcome: u64) -> bool {
        claim::has_rival(self, tuple, hash, outcome)
    }

    fn gives_way(&self, index: u32, segment: &Segment, purpose: Purpose) -> bool {
        end::gives_way(self, index, segment, purpose)
    }

    fn join_party(&self, forward: u32, ports: u32, most: u32) -> u64 {
        seats::join_party(self, forward, ports, most)
    }

    fn leave_party(&self, forward: u32, ports: u32) -> u64 {
        seats::leave_party(self, forward, ports)
    }

    fn enter_party(&self, party: u64, most: u32) -> u64 {
        seats::enter_party(self, party, most)
    }

    fn enter_endpoint(&self, endpoint: u32, most: u32) -> bool {
        load::enter_endpoint(self, endpoint, most)
    }

    fn leave_endpoint(&self, forward: u32, ports: u32) {
        seats::leave_endpoint(self, forward, ports);
    }

    fn approach(&self, hash: u64, other: u64) {
        table::approach(self, [hash, other]);
    }

    fn leave_ended(&self, index: u32) {
        seats::leave_ended(self, index);
    }

    fn charge(&self, place: Place, party: u64, ports: u32, is_over: bool) {
        queue::charge(self, place, party, ports, is_over);
    }

    fn linger(&self, place: Place, schema: u32) -> Place {
        linger::linger(self, place, schema)
    }

    fn find_other_index(&self, tuple: &Tuple<A>) -> u64 {
        table::find_other_index(self, tuple)
    }

    fn copy_index(&self, tuple: &Tuple<A>) -> u64 {
        resize::copy_index(self, tuple)
    }

    fn end_other(&self, index: u32) {
        resize::end_other(self, index);
    }
}
