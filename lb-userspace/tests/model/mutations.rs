//! Breaks the protocol in one place each. The checker must notice.

use std::{mem::offset_of, sync::atomic::Ordering};

use lb_common::{
    addr::Ip4,
    flow::{Flow, tag},
};

use crate::{
    scenarios, seats,
    world::{RECORDS, World},
};

/// The way in which the protocol is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A claim does not check whether another one has claimed for the same tuple.
    NoRivalCheck,
    /// A claim takes a record as soon as it is dead.
    NoGraceForClaims,
    /// The sweeper frees records as soon as they are dead.
    NoGraceForSweeper,
    /// A record is visible as soon as it is claimed, before its fields are written.
    VisibleWhenClaimed,
    /// A claim reads the tag and then writes it, without a compare-and-swap.
    ClaimedWithoutSwap,
    /// The same when a flow is settled.
    SettledWithoutSwap,
    /// The same when a record is killed.
    KilledWithoutSwap,
    /// The time of a death is not written, so that a dead record seems to have been dead for long.
    DeathWithoutTime,
    /// A program that ends a flow leaves the endpoint's direction live.
    OneDirectionKilled,
    /// The sweeper leaves the endpoint's direction live.
    OneDirectionSwept,
    /// A flow that leaves the half-open ones is counted twice.
    SettledTwice,
    /// The sweeper cleans tombs that searches pass over.
    PassedTombsCleaned,
    /// A new flow leaves the copy of the previous flow in the other table.
    CopiesStay,
    /// A copy is kept although its flow has ended during the copying.
    EndedFlowsCopied,
    /// A seat is taken before the flow's records are claimed.
    SeatTakenBeforeClaim,
    /// A seat's bit is read and then written, without a compare-and-swap: two may give it back.
    SeatTakenOutWithoutSwap,
    /// The same when a flow takes its seat at the end of its handshake.
    SeatTakenWithoutSwap,
    /// A flow that ends does not give its seat back.
    SeatNeverReturned,
    /// A flow that ends gives its seat back twice.
    SeatReturnedTwice,
    /// The copy of a flow gets its seat, and the flow keeps it.
    SeatCopied,
}

impl Mutation {
    /// Called before a compare-and-swap of a record's tag that is about to succeed.
    pub fn before_swap(self, world: &World, index: u32, old: u32, new: u32) {
        let state = tag::state(new);
        let is_seated = tag::state(old) == tag::SEATED && world.is_reply(index);
        let without_swap = match self {
            Self::ClaimedWithoutSwap => state == tag::BUSY,
            Self::SettledWithoutSwap => state == tag::LIVE,
            Self::KilledWithoutSwap => state == tag::DEAD,
            Self::SeatTakenOutWithoutSwap => is_seated && state == tag::LIVE,
            Self::SeatTakenWithoutSwap => state == tag::SEATED && world.is_reply(index),
            _ => false,
        };
        if without_swap {
            world.touch_tag(index);
            // What was written meanwhile goes unnoticed.
            world.set_tag(index, old);
        }
        match self {
            Self::VisibleWhenClaimed if state == tag::BUSY => {
                world.afterwards(index, tag::with_state(new, tag::LIVE));
            }
            Self::OneDirectionKilled if state == tag::DEAD && world.is_reply(index) => {
                world.afterwards(index, old);
            }
            Self::EndedFlowsCopied
                if state == tag::DEAD && index < RECORDS && world.runs_next() =>
            {
                world.afterwards(index, old);
            }
            Self::DeathWithoutTime if state == tag::DEAD => {
                let last_seen = world.word(index, offset_of!(Flow<Ip4>, last_seen));
                last_seen.store(0, Ordering::SeqCst);
            }
            Self::SeatNeverReturned if is_seated && !tag::in_use(new) => world.change_seats(1),
            Self::SeatReturnedTwice if is_seated && !tag::in_use(new) => world.change_seats(-1),
            Self::SeatCopied if is_seated && state == tag::LIVE && index >= RECORDS => {
                world.afterwards(index, old);
            }
            _ => {}
        }
    }
}

/// Tests that a scenario notices a mutation, and prints what it notices.
macro_rules! caught {
    ($($test:ident: $mutation:ident by $($scenario:ident)::+,)*) => {
        $(
            #[test]
            fn $test() {
                println!("{}", $($scenario)::+().catches(Mutation::$mutation));
            }
        )*
    };
}

caught! {
    claims_look_for_rivals: NoRivalCheck by scenarios::claim_released,
    claims_wait_for_the_grace: NoGraceForClaims by scenarios::reclaimed,
    evictions_wait_for_their_grace: NoGraceForClaims by scenarios::evicted,
    the_sweeper_waits_for_the_grace: NoGraceForSweeper by scenarios::held_up,
    records_are_written_before_they_are_visible: VisibleWhenClaimed by scenarios::one_syn,
    records_are_claimed_in_one_step: ClaimedWithoutSwap by scenarios::neighbours,
    flows_are_settled_in_one_step: SettledWithoutSwap by scenarios::settled,
    records_are_killed_in_one_step: KilledWithoutSwap by scenarios::reopened,
    deaths_have_their_time: DeathWithoutTime by scenarios::reclaimed,
    programs_end_both_directions: OneDirectionKilled by scenarios::reopened,
    the_sweeper_ends_both_directions: OneDirectionSwept by scenarios::reopened,
    flows_are_counted_once: SettledTwice by scenarios::settled,
    tombs_stay_where_searches_pass: PassedTombsCleaned by scenarios::cleaned,
    copies_end_with_their_flows: CopiesStay by scenarios::replaced,
    what_has_ended_is_not_copied: EndedFlowsCopied by scenarios::replaced,
    seats_are_taken_after_the_claim: SeatTakenBeforeClaim by seats::last,
    seats_are_taken_out_in_one_step: SeatTakenOutWithoutSwap by seats::over_twice,
    seats_are_taken_late_in_one_step: SeatTakenWithoutSwap by seats::proved_twice,
    seats_come_back: SeatNeverReturned by seats::reopened,
    seats_come_back_once: SeatReturnedTwice by seats::reopened,
    seats_move_with_their_flow: SeatCopied by seats::copied,
}
