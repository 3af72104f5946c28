//! What translated sockets hold of limits, which each socket has by itself: only a program can list it.
//!
//! Some kernels let nobody list the values of sockets (`EPERM`, whatever the program is). There the copies count that
//! programs have made in a map of their own. They are as good while programs see every socket's end: a copy whose
//! socket's end was missed stays, and with it the seat.

use std::{
    io::{self, BufRead as _, Read as _},
    os::fd::{AsFd as _, OwnedFd},
};

use aya::maps::MapData;
use lb_common::abi::SocketSeats;

use crate::{
    Loaded,
    bpf::{BatchMap, iterate},
};

/// Name of the program that lists it.
const PROGRAM: &str = "list_seats";
/// What the program is called for, as the kernel names it: each value of a map that belongs to a socket.
pub(crate) const SUBJECT: &str = "bpf_sk_storage_map";
const MAP: &str = "SOCKET_SEATS";
/// The copies, by socket cookie.
const COPIES: &str = "SEATED_SOCKETS";

/// The sockets that hold seats.
pub struct SeatedSockets(Way);

/// How they are listed.
enum Way {
    /// By a program that the kernel calls for each of them.
    Program {
        program: OwnedFd,
        map: MapData,
    },
    Copies(BatchMap<u64, SocketSeats>),
}

impl SeatedSockets {
    /// Of the programs in the kernel, to which it adds one.
    ///
    /// # Errors
    ///
    /// If a map cannot be opened.
    pub fn open(loaded: &mut Loaded) -> anyhow::Result<Self> {
        if let Err(error) = loaded.ensure(PROGRAM) {
            let error = error.to_string();
            let error = error.lines().next().unwrap_or_default();
            tracing::info!("what sockets hold of limits is known from copies: {error}");
            return Ok(Self(Way::Copies(BatchMap::new(&loaded.map(COPIES)?)?)));
        }
        Ok(Self(Way::Program {
            program: loaded.program(PROGRAM)?.try_clone_to_owned()?,
            map: loaded.map(MAP)?,
        }))
    }

    /// Whether only copies are known, which stay where a socket's end was missed.
    pub fn are_copies(&self) -> bool {
        matches!(self.0, Way::Copies(_))
    }

    /// Calls a function with what each socket holds that has been translated to a Service whose connections
    /// are counted.
    ///
    /// # Errors
    ///
    /// The kernel's, of which none is expected; or if there are more of them than copies.
    pub fn for_each(&self, each: &mut dyn FnMut(&SocketSeats)) -> io::Result<()> {
        match &self.0 {
            // Processes may have very many, so they are not kept.
            Way::Program { program, map } => {
                let mut written = iterate(program.as_fd(), map.fd().as_fd())?;
                let mut record = [0; size_of::<SocketSeats>()];
                while !written.fill_buf()?.is_empty() {
                    written.read_exact(&mut record)?;
                    // SAFETY: as many bytes as a record has, of which any are valid.
                    each(&unsafe { record.as_ptr().cast::<SocketSeats>().read_unaligned() });
                }
            }
            Way::Copies(copies) => {
                let found = copies.entries().map_err(io::Error::other)?;
                if found.len() >= copies.max_entries() as usize {
                    let full = format!("map {COPIES} is full: {} sockets hold seats", found.len());
                    return Err(io::Error::other(full));
                }
                found.iter().for_each(|(_, held)| each(held));
            }
        }
        Ok(())
    }
}
