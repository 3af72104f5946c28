//! Connections that wait for a seat, at the edge to the kernel: programs hand their SYNs over, and one
//! program ends their wait.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use aya::maps::{Map, MapData, RingBuf};
use lb_common::{abi::turn_word, flow::queue::Waiter, verdict::Reason};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{
    Loaded,
    bpf::{Words, run_classifier},
};

/// Name of the program that ends waits.
pub const PROGRAM: &str = "end_wait";
const RING: &str = "WAITERS";

/// The connections that have begun to wait, as programs hand them over.
pub struct Arrivals {
    ring: RingBuf<MapData>,
}

impl Arrivals {
    /// # Errors
    ///
    /// If the map cannot be opened.
    pub fn open(loaded: &Loaded) -> anyhow::Result<Self> {
        let map = Map::RingBuf(loaded.map(RING)?);
        Ok(Self {
            ring: RingBuf::try_from(map)?,
        })
    }

    /// Waits until there may be one, but not for longer than this.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn wait(&self, at_most: Duration) -> io::Result<()> {
        let mut fds = [PollFd::new(self.ring.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the next one.
    pub fn take(&mut self) -> Option<Waiter> {
        while let Some(record) = self.ring.next() {
            if record.len() >= size_of::<Waiter>() {
                // SAFETY: as many bytes as a waiter has, of which any are valid.
                return Some(unsafe { record.as_ptr().cast::<Waiter>().read_unaligned() });
            }
        }
        None
    }
}

/// The program that ends waits.
#[derive(Debug)]
pub struct WaitEnder {
    program: OwnedFd,
}

/// How a wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The connection gets a flow, if there is a seat. Says which [card](lb_common::flow::party::Taker::card)
    /// of its party's hand the queue is in which it waited.
    LetIn(u32),
    /// Programs look at the SYN anew, as if the connection had not waited.
    AskAgain,
    /// The client is told that it is refused, as its flow schema, by its number, has it for this reason.
    TurnAway(Reason, u32),
}

impl WaitEnder {
    /// Of programs among which it has been loaded.
    ///
    /// # Errors
    ///
    /// If it has not.
    pub fn new(loaded: &Loaded) -> anyhow::Result<Self> {
        Ok(Self {
            program: loaded.program(PROGRAM)?.try_clone_to_owned()?,
        })
    }

    /// Ends the wait of a connection with this SYN, which begins with an Ethernet header and came by this
    /// device. If the SYN `is_whole`, it goes its way after that. Returns what has become of it: with
    /// [`Reason::Parked`] there is no seat.
    ///
    /// # Errors
    ///
    /// If the kernel does not run the program: the device may be gone.
    pub fn end(
        &self,
        end: End,
        syn: &[u8],
        is_whole: bool,
        ifindex: u32,
    ) -> io::Result<Option<Reason>> {
        let mut words = Words::default();
        (words[turn_word::COMMAND], words[turn_word::DETAIL]) = match end {
            End::LetIn(card) => (turn_word::LET_IN, card),
            End::AskAgain => (turn_word::ASK_AGAIN, 0),
            End::TurnAway(reason, schema) => (reason as u32, schema),
        };
        words[turn_word::IFINDEX] = if is_whole { ifindex } else { 0 };
        let after = run_classifier(self.program.as_fd(), syn, ifindex, words)?;
        Ok(Reason::ALL.get(after[turn_word::REASON] as usize).copied())
    }
}
