//! Attaches programs to devices and cgroups so that they survive the agent, and replaces them so
//! that no packet is missed.
//!
//! The first start attaches a program and pins its link. Later starts find the pin and exchange the
//! program in the link, which takes effect between two packets. What others attached is never
//! touched.

use std::{
    fs::File,
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::fs::MetadataExt as _,
    },
    path::Path,
    sync::Arc,
};

use super::{
    bpf::{AttachPoint, Link, LinkTarget, program_id},
    clsact,
    hooks::{Direction, SocketHook, TcFlavor, XdpMode},
    pins::{LinkPin, Pins},
};

mod refusal;

pub use refusal::AttachError;
use refusal::{joined, refused, xdp_refusal};

/// The state of XDP on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpAttachment {
    pub mode: XdpMode,
    /// Whether an earlier agent's program was replaced.
    pub replaced: bool,
    /// Why it is not the mode that was asked for. The caller should log it.
    pub reason: Option<String>,
}

/// Attaches programs and keeps them attached under an agent's pins.
#[derive(Debug)]
pub struct Attacher<'a> {
    pins: &'a Pins,
    tc: TcFlavor,
}

impl<'a> Attacher<'a> {
    /// An attacher that pins links in `pins` and attaches TC programs by `tc`.
    pub fn new(pins: &'a Pins, tc: TcFlavor) -> Self {
        Self { pins, tc }
    }

    /// Attaches an XDP program to a device: native, else generic, else not at all, but in no mode
    /// better than `best`. If a program of ours is already attached, it is replaced in its mode,
    /// even if a better one is possible now: a change of the mode would let packets pass.
    ///
    /// # Errors
    ///
    /// If the device is gone, or the link cannot be pinned. If the device, or another program
    /// there, does not allow a mode, that is no error but a [`XdpAttachment::reason`].
    pub fn xdp(
        &self,
        ifindex: u32,
        program: BorrowedFd<'_>,
        best: XdpMode,
    ) -> Result<XdpAttachment, AttachError> {
        let mut refusals = Vec::new();
        for mode in [XdpMode::Native, XdpMode::Generic] {
            let pin = LinkPin::Xdp { mode, ifindex };
            if mode > best {
                self.pins.remove_link(pin)?;
            } else if self.replace(pin, LinkTarget::Device(ifindex), program)? {
                let reason = (mode < best).then(|| {
                    format!("{mode} since an earlier start; changing it would let packets pass")
                });
                return Ok(XdpAttachment {
                    mode,
                    replaced: true,
                    reason,
                });
            }
        }

        for mode in [XdpMode::Native, XdpMode::Generic] {
            let point = match mode {
                _ if mode > best => continue,
                XdpMode::Native => AttachPoint::XdpNative { ifindex },
                _ => AttachPoint::XdpGeneric { ifindex },
            };
            match self.create(LinkPin::Xdp { mode, ifindex }, point, program) {
                Ok(()) => {
                    return Ok(XdpAttachment {
                        mode,
                        replaced: false,
                        reason: joined(refusals),
                    });
                }
                Err(AttachError::Refused { source, .. }) => {
                    refusals.push(format!("{mode}: {}", xdp_refusal(&source)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(XdpAttachment {
            mode: XdpMode::Off,
            replaced: false,
            reason: joined(refusals),
        })
    }

    /// Attaches a TC program to a device, or replaces the one there. Returns whether it replaced.
    ///
    /// # Errors
    ///
    /// If the device is gone, or the kernel refuses.
    pub fn tc(
        &self,
        ifindex: u32,
        direction: Direction,
        program: BorrowedFd<'_>,
    ) -> Result<bool, AttachError> {
        let pin = LinkPin::Tcx { direction, ifindex };
        if self.tc == TcFlavor::Clsact {
            return clsact::attach(ifindex, direction, program, direction.filter())
                .map_err(|source| refused(pin, source));
        }
        if self.replace(pin, LinkTarget::Device(ifindex), program)? {
            return Ok(true);
        }
        let point = match direction {
            Direction::Ingress => AttachPoint::TcxIngressFirst { ifindex },
            Direction::Egress => AttachPoint::TcxEgressLast { ifindex },
        };
        self.create(pin, point, program).map(|()| false)
    }

    /// Attaches a program to a socket hook of a cgroup, or replaces the one there. Returns whether
    /// it replaced.
    ///
    /// # Errors
    ///
    /// If the kernel refuses, as it does if another program is attached that does not allow further
    /// ones.
    pub fn socket(
        &self,
        cgroup: &Cgroup,
        hook: SocketHook,
        program: BorrowedFd<'_>,
    ) -> Result<bool, AttachError> {
        let pin = LinkPin::Socket(hook);
        if self.replace(pin, LinkTarget::Cgroup(cgroup.id), program)? {
            return Ok(true);
        }
        let point = AttachPoint::Cgroup {
            cgroup: cgroup.directory.as_fd(),
            hook: hook.attach_type(),
        };
        self.create(pin, point, program).map(|()| false)
    }

    /// Whether this XDP program is attached to a device, in this mode.
    ///
    /// # Errors
    ///
    /// If the kernel does not tell.
    pub fn has_xdp(
        &self,
        ifindex: u32,
        mode: XdpMode,
        program: BorrowedFd<'_>,
    ) -> Result<bool, AttachError> {
        let pin = LinkPin::Xdp { mode, ifindex };
        self.holds(pin, LinkTarget::Device(ifindex), program)
    }

    /// Whether this TC program is attached to a device.
    ///
    /// # Errors
    ///
    /// If the kernel does not tell.
    pub fn has_tc(
        &self,
        ifindex: u32,
        direction: Direction,
        program: BorrowedFd<'_>,
    ) -> Result<bool, AttachError> {
        let pin = LinkPin::Tcx { direction, ifindex };
        if self.tc == TcFlavor::Clsact {
            let id = program_id(program).map_err(|source| refused(pin, source))?;
            let attached = clsact::program(ifindex, direction).map_err(AttachError::Filters)?;
            return Ok(attached == Some(id));
        }
        self.holds(pin, LinkTarget::Device(ifindex), program)
    }

    /// Whether this program is attached to a socket hook of a cgroup.
    ///
    /// # Errors
    ///
    /// If the kernel does not tell.
    pub fn has_socket(
        &self,
        cgroup: &Cgroup,
        hook: SocketHook,
        program: BorrowedFd<'_>,
    ) -> Result<bool, AttachError> {
        self.holds(
            LinkPin::Socket(hook),
            LinkTarget::Cgroup(cgroup.id),
            program,
        )
    }

    /// Whether a link is on `target`, with this program.
    fn holds(
        &self,
        pin: LinkPin,
        target: LinkTarget,
        program: BorrowedFd<'_>,
    ) -> Result<bool, AttachError> {
        let id = program_id(program).map_err(|source| refused(pin, source))?;
        let Some(link) = self.open(pin)? else {
            return Ok(false);
        };
        let info = link.info().map_err(|source| refused(pin, source))?;
        Ok(info.target == target && info.program_id == id)
    }

    /// Detaches everything from a device, which may be gone already.
    ///
    /// # Errors
    ///
    /// If pins or filters cannot be removed.
    pub fn detach_device(&self, ifindex: u32) -> Result<(), AttachError> {
        self.forget_device(ifindex)?;
        if self.tc == TcFlavor::Clsact {
            clsact::remove(ifindex).map_err(AttachError::Filters)?;
        }
        Ok(())
    }

    /// Removes the pins of a device that is gone, and with it its programs.
    ///
    /// # Errors
    ///
    /// If a pin cannot be removed.
    pub fn forget_device(&self, ifindex: u32) -> Result<(), AttachError> {
        self.detach_xdp(ifindex)?;
        for direction in [Direction::Ingress, Direction::Egress] {
            self.pins.remove_link(LinkPin::Tcx { direction, ifindex })?;
        }
        Ok(())
    }

    /// Detaches XDP from a device that has got another role.
    ///
    /// # Errors
    ///
    /// If a pin cannot be removed.
    pub fn detach_xdp(&self, ifindex: u32) -> Result<(), AttachError> {
        for mode in [XdpMode::Native, XdpMode::Generic] {
            self.pins.remove_link(LinkPin::Xdp { mode, ifindex })?;
        }
        Ok(())
    }

    /// Detaches the programs from all socket hooks.
    ///
    /// # Errors
    ///
    /// If a pin cannot be removed.
    pub fn detach_sockets(&self) -> Result<(), AttachError> {
        for hook in SocketHook::ALL {
            self.pins.remove_link(LinkPin::Socket(hook))?;
        }
        Ok(())
    }

    /// Removes what earlier agents left on devices that are gone or no longer wanted. Returns the
    /// removed pins. To be called once the wanted devices have their programs.
    ///
    /// # Errors
    ///
    /// If pins or filters cannot be read or removed.
    pub fn sweep(&self, wanted: impl Fn(u32) -> bool) -> Result<Vec<LinkPin>, AttachError> {
        let mut removed = Vec::new();
        for pin in self.pins.links()? {
            let (LinkPin::Xdp { ifindex, .. } | LinkPin::Tcx { ifindex, .. }) = pin else {
                continue;
            };
            let alive = || self.target(pin) == Some(LinkTarget::Device(ifindex));
            if !(wanted(ifindex) && alive()) {
                self.pins.remove_link(pin)?;
                removed.push(pin);
            }
        }
        if self.tc == TcFlavor::Clsact {
            clsact::remove_except(wanted).map_err(AttachError::Filters)?;
        }
        Ok(removed)
    }

    /// Exchanges the program of a pinned link, if there is one and it is on `target`. A link on
    /// something else is removed: an interface index may be reused, and a cgroup created again.
    fn replace(
        &self,
        pin: LinkPin,
        target: LinkTarget,
        program: BorrowedFd<'_>,
    ) -> Result<bool, AttachError> {
        let Some(link) = self.open(pin)? else {
            return Ok(false);
        };
        let current = link.info().map_err(|source| refused(pin, source))?.target;
        if current != target {
            self.pins.remove_link(pin)?;
            return Ok(false);
        }
        match link.replace(program) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => {
                self.pins.remove_link(pin)?;
                Ok(false)
            }
            Err(source) => Err(refused(pin, source)),
        }
    }

    fn create(
        &self,
        pin: LinkPin,
        point: AttachPoint<'_>,
        program: BorrowedFd<'_>,
    ) -> Result<(), AttachError> {
        let link = Link::create(program, point).map_err(|source| refused(pin, source))?;
        self.pins.keep_link(pin, link).map_err(|source| {
            let path = self.pins.link(pin);
            AttachError::Pin { path, source }
        })
    }

    fn open(&self, pin: LinkPin) -> Result<Option<Arc<Link>>, AttachError> {
        let link = self.pins.open_link(pin);
        link.map_err(|source| AttachError::Pin {
            path: self.pins.link(pin),
            source,
        })
    }

    fn target(&self, pin: LinkPin) -> Option<LinkTarget> {
        Some(self.open(pin).ok()??.info().ok()?.target)
    }
}

/// A cgroup: sockets of its processes are translated.
#[derive(Debug)]
pub struct Cgroup {
    directory: File,
    id: u64,
}

impl Cgroup {
    /// Opens a directory of a cgroup2 hierarchy. Its root stands for all processes.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, AttachError> {
        let failed = |source| AttachError::Cgroup {
            path: path.to_owned(),
            source,
        };
        let directory = File::open(path).map_err(failed)?;
        // A cgroup's id is its directory's inode number.
        let id = directory.metadata().map_err(failed)?.ino();
        Ok(Self { directory, id })
    }
}
