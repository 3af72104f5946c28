//! What translated sockets hold of limits, which each socket has by itself: only a program can list it.

use std::{
    io,
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

    /// What each socket holds that has been translated to a Service whose connections are counted.
    ///
    /// # Errors
    ///
    /// The kernel's; none is expected.
    pub fn all(&self) -> io::Result<Vec<SocketSeats>> {
        let written = iterate(self.program.as_fd(), self.map.fd().as_fd())?;
        let (records, _) = written.as_chunks::<{ size_of::<SocketSeats>() }>();
        // SAFETY: as many bytes as a record has, of which any are valid.
        let read =
            |bytes: &[u8; _]| unsafe { bytes.as_ptr().cast::<SocketSeats>().read_unaligned() };
        Ok(records.iter().map(read).collect())
    }
}
