//! The edge to the kernel: loads programs and maps, attaches them to devices and cgroups, and
//! follows the node's devices. It also has a stand-in: the same maps in this process' [`memory`].
//! All `unsafe` code of the agent is in this crate.
//!
//! In order of use: [`preflight`] says whether this node can run the data plane at all; [`Pins`]
//! finds and locks what earlier agents left; [`load()`] loads programs around the pinned maps;
//! [`Attacher`] puts them in place of the earlier ones; [`devices`] says where; [`maps`] is what
//! plans are written to; [`trace`] has programs tell what they decide,
//! [`waiters`] hand over connections that wait for a seat, [`socket_seats`] tells what sockets hold, and a
//! [`replica`] of the programs is asked what they would do with a packet.

pub mod preflight;

pub mod load;
pub mod pins;
mod restore;

pub mod attach;
mod clsact;
pub mod hooks;
pub mod replica;
pub mod trace;

pub mod devices;

pub mod maps;
pub mod memory;
pub mod mirror;

mod clock;
pub mod heap;
pub mod socket_seats;
pub mod waiters;

pub mod bpf;
pub mod socket_option;

pub use attach::{AttachError, Attacher, Cgroup, XdpAttachment};
pub use clock::{Jiffies, TickRate, hz};
pub use hooks::{Direction, SocketHook, TcFlavor, XdpMode};
pub use load::{Loaded, OBJECT, Settings, load};
pub use pins::{Pins, cleanup};
pub use trace::Tracing;
