//! Says in plain words why programs could not be attached.

use std::{io, path::PathBuf};

use thiserror::Error;

use crate::pins::{LinkPin, PinError};

/// A program that could not be attached.
#[derive(Debug, Error)]
pub enum AttachError {
    #[error("device {ifindex} is gone")]
    DeviceGone { ifindex: u32 },
    #[error("cannot attach {hook} to {target}: {source}")]
    Refused {
        hook: String,
        target: String,
        source: io::Error,
    },
    #[error("cannot open or make pin {}: {source}", path.display())]
    Pin { path: PathBuf, source: io::Error },
    #[error("cannot open cgroup {}: {source}", path.display())]
    Cgroup { path: PathBuf, source: io::Error },
    #[error("cannot read or remove TC filters: {0}")]
    Filters(io::Error),
    #[error(transparent)]
    Pins(#[from] PinError),
}

/// The meaning of the kernel's refusal to attach what `pin` names.
pub(super) fn refused(pin: LinkPin, source: io::Error) -> AttachError {
    let (hook, target) = match pin {
        LinkPin::Xdp { ifindex, .. } | LinkPin::Tcx { ifindex, .. }
            if is_gone(ifindex, &source) =>
        {
            return AttachError::DeviceGone { ifindex };
        }
        LinkPin::Xdp { mode, ifindex } => (format!("{mode} XDP"), device(ifindex)),
        LinkPin::Tcx { direction, ifindex } => (format!("TC {direction}"), device(ifindex)),
        LinkPin::Socket(hook) => (hook.to_string(), "the cgroup".to_owned()),
    };
    AttachError::Refused {
        hook,
        target,
        source,
    }
}

/// Whether a refusal means that the device does not exist. XDP has no error of its own for that.
fn is_gone(ifindex: u32, refusal: &io::Error) -> bool {
    match refusal.raw_os_error() {
        Some(libc::ENODEV) => true,
        Some(libc::EINVAL) => name(ifindex).is_none(),
        _ => false,
    }
}

/// A device for people: its name, if it still has one, and its index.
fn device(ifindex: u32) -> String {
    match name(ifindex) {
        Some(name) => format!("device {name} ({ifindex})"),
        None => format!("device {ifindex}"),
    }
}

fn name(ifindex: u32) -> Option<String> {
    let name = nix::net::if_::if_indextoname(ifindex).ok()?;
    // For a device that does not exist, nix returns an empty name.
    (!name.is_empty()).then(|| name.to_string_lossy().into_owned())
}

/// The meaning of the kernel's refusal of an XDP program.
pub(super) fn xdp_refusal(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => "the driver does not support it".to_owned(),
        Some(libc::EBUSY | libc::EEXIST) => "another XDP program is attached".to_owned(),
        Some(libc::ERANGE) => "the MTU is too large for it".to_owned(),
        Some(libc::EINVAL) => {
            "the device does not allow it in its present state (a port of a bond or bridge, too few \
             queues, or large receive offload)"
                .to_owned()
        }
        _ => error.to_string(),
    }
}

/// All reasons in one line, if there are any.
pub(super) fn joined(refusals: Vec<String>) -> Option<String> {
    (!refusals.is_empty()).then(|| refusals.join("; "))
}
