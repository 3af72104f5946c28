//! The edge to the kernel: loading programs and maps, attaching to devices and cgroups, following the
//! node's devices.
//!
//! In order of use: [`preflight`] says whether this node can run the data plane at all; [`Pins`] finds
//! and locks what earlier agents left; [`load()`] loads programs around the pinned maps;
//! [`Attacher`] puts them in place of the earlier ones; [`devices`] says where.

pub mod attach;
pub mod bpf;
mod clsact;
pub mod devices;
pub mod hooks;
pub mod load;
pub mod pins;
pub mod preflight;

pub use attach::{AttachError, Attacher, Cgroup, XdpAttachment};
pub use hooks::{Direction, SocketHook, TcFlavor, XdpMode};
pub use load::{Loaded, OBJECT, Settings, load};
pub use pins::{Pins, cleanup};
