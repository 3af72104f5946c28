//! What translated sockets hold of limits, which each socket has by itself: only a program can list it.

use std::{
    io::{self, BufRead as _, Read as _},
    os::fd::{AsFd as _, OwnedFd},
};

use aya::maps::MapData;
use lb_common::abi::SocketSeats;

use crate::{Loaded, bpf::iterate};

/// Name of the program that lists it.
const PROGRAM: &str = "list_seats";
/// What the program is called for, as the kernel names it: each value of a map that belongs to a socket.
pub(crate) const SUBJECT: &str = "bpf_sk_storage_map";
const MAP: &str = "SOCKET_SEATS";

/// The sockets that hold seats.
#[derive(Debug)]
pub struct SeatedSockets {
    program: OwnedFd,
    map: MapData,
}

impl SeatedSockets {
    /// Of the programs in the kernel, to which it adds one.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the program, or the map cannot be opened.
    pub fn open(loaded: &mut Loaded) -> anyhow::Result<Self> {
        loaded.ensure(PROGRAM)?;
        Ok(Self {
            program: loaded.program(PROGRAM)?.try_clone_to_owned()?,
            map: loaded.map(MAP)?,
        })
    }

    /// Calls a function with what each socket holds that has been translated to a Service whose connections
    /// are counted. Processes may have very many, so they are not kept.
    ///
    /// # Errors
    ///
    /// The kernel's; none is expected.
    pub fn for_each(&self, each: &mut dyn FnMut(&SocketSeats)) -> io::Result<()> {
        let mut written = iterate(self.program.as_fd(), self.map.fd().as_fd())?;
        let mut record = [0; size_of::<SocketSeats>()];
        while !written.fill_buf()?.is_empty() {
            written.read_exact(&mut record)?;
            // SAFETY: as many bytes as a record has, of which any are valid.
            each(&unsafe { record.as_ptr().cast::<SocketSeats>().read_unaligned() });
        }
        Ok(())
    }
}
