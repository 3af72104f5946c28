//! BPF links: programs attached to a device or cgroup, held by a file descriptor or a pin.
//!
//! aya has links too. But it cannot replace the program of a cgroup link, does not say which device
//! a link is on, and, where no link can be created, falls back to attachments that cannot be
//! pinned.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::Path,
};

use aya_obj::generated::{
    BPF_F_AFTER, BPF_F_BEFORE, XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE, bpf_attach_type, bpf_cmd,
    bpf_link_info, bpf_link_type,
};

use super::{bpf, c_path, empty_attr, object_info, open_pin};

/// Where a program can be attached.
#[derive(Clone, Copy, Debug)]
pub enum AttachPoint<'fd> {
    /// In the driver of a device.
    XdpNative { ifindex: u32 },
    /// In the stack, before everything else that sees packets of the device.
    XdpGeneric { ifindex: u32 },
    /// When a device receives, before other TCX programs and all clsact filters.
    TcxIngressFirst { ifindex: u32 },
    /// Before a device sends, after all other TCX programs.
    TcxEgressLast { ifindex: u32 },
    /// At a system call of the processes in a cgroup and below it.
    Cgroup {
        cgroup: BorrowedFd<'fd>,
        hook: bpf_attach_type,
    },
}

/// A program that is attached until the last descriptor is closed and the last pin removed.
#[derive(Debug)]
pub struct Link(OwnedFd);

/// What the kernel says about a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    pub id: u32,
    pub program_id: u32,
    pub target: LinkTarget,
}

/// What a link's program is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkTarget {
    /// Interface index; 0 once the device is gone.
    Device(u32),
    /// Cgroup id, which is the inode number of its directory; 0 once the cgroup is gone.
    Cgroup(u64),
    /// Of a kind of link that node-lb does not create.
    Other,
}

impl Link {
    /// Attaches a program.
    ///
    /// # Errors
    ///
    /// The kernel's. Of note for XDP: `EOPNOTSUPP` (the driver has no XDP), `EBUSY` or `EEXIST`
    /// (another program is there), `ERANGE` (the MTU is too large), `ENODEV` (no such device).
    pub fn create(program: BorrowedFd<'_>, point: AttachPoint<'_>) -> io::Result<Self> {
        use AttachPoint::*;
        let (target, attach_type, flags) = match point {
            XdpNative { ifindex } => (ifindex, bpf_attach_type::BPF_XDP, XDP_FLAGS_DRV_MODE),
            XdpGeneric { ifindex } => (ifindex, bpf_attach_type::BPF_XDP, XDP_FLAGS_SKB_MODE),
            TcxIngressFirst { ifindex } => {
                (ifindex, bpf_attach_type::BPF_TCX_INGRESS, BPF_F_BEFORE)
            }
            TcxEgressLast { ifindex } => (ifindex, bpf_attach_type::BPF_TCX_EGRESS, BPF_F_AFTER),
            Cgroup { cgroup, hook } => (raw(cgroup), hook, 0),
        };

        let mut attr = empty_attr();
        attr.link_create.__bindgen_anon_1.prog_fd = raw(program);
        attr.link_create.__bindgen_anon_2.target_ifindex = target;
        attr.link_create.attach_type = attach_type as u32;
        attr.link_create.flags = flags;
        let fd = bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr)?;
        // SAFETY: the kernel just gave us this descriptor, nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Opens a pinned link.
    ///
    /// # Errors
    ///
    /// `NotFound` if nothing is pinned there.
    pub fn open(path: &Path) -> io::Result<Self> {
        open_pin(path).map(Self)
    }

    /// Keeps the program attached after the descriptor is closed.
    ///
    /// # Errors
    ///
    /// The kernel's: `EEXIST` if something is pinned there already, `EPERM` if the path is not on a
    /// BPF file system.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        let path = c_path(path)?;
        let mut attr = empty_attr();
        attr.__bindgen_anon_4.pathname = path.as_ptr() as u64;
        attr.__bindgen_anon_4.bpf_fd = raw(self.0.as_fd());
        bpf(bpf_cmd::BPF_OBJ_PIN, &mut attr)?;
        Ok(())
    }

    /// Puts another program in the place of the present one, between two packets.
    ///
    /// # Errors
    ///
    /// `ENOLINK` if the device or cgroup is gone.
    pub fn replace(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        let mut attr = empty_attr();
        attr.link_update.link_fd = raw(self.0.as_fd());
        attr.link_update.__bindgen_anon_1.new_prog_fd = raw(program);
        bpf(bpf_cmd::BPF_LINK_UPDATE, &mut attr)?;
        Ok(())
    }

    /// Detaches the program for good. Closing the last descriptor and removing the last pin does
    /// this too, but at some later time.
    ///
    /// # Errors
    ///
    /// The kernel's. It is no error if the device or cgroup is gone.
    pub fn detach(&self) -> io::Result<()> {
        let mut attr = empty_attr();
        attr.link_detach.link_fd = raw(self.0.as_fd());
        bpf(bpf_cmd::BPF_LINK_DETACH, &mut attr)?;
        Ok(())
    }

    /// Asks the kernel what the link is attached to.
    ///
    /// # Errors
    ///
    /// The kernel's; none is expected.
    pub fn info(&self) -> io::Result<LinkInfo> {
        // SAFETY: the kernel's struct for links, of integers and unions of integers.
        let info: bpf_link_info = unsafe { object_info(self.0.as_fd()) }?;
        Ok(LinkInfo {
            id: info.id,
            program_id: info.prog_id,
            target: LinkTarget::of(&info),
        })
    }
}

impl LinkTarget {
    fn of(info: &bpf_link_info) -> Self {
        const XDP: u32 = bpf_link_type::BPF_LINK_TYPE_XDP as u32;
        const TCX: u32 = bpf_link_type::BPF_LINK_TYPE_TCX as u32;
        const CGROUP: u32 = bpf_link_type::BPF_LINK_TYPE_CGROUP as u32;
        let details = &info.__bindgen_anon_1;
        match info.type_ {
            // SAFETY: `type_` says which variant the kernel wrote; all are plain integers.
            XDP => Self::Device(unsafe { details.xdp.ifindex }),
            // SAFETY: the type says which part of the union the kernel has filled in.
            TCX => Self::Device(unsafe { details.tcx.ifindex }),
            // SAFETY: the type says which part of the union the kernel has filled in.
            CGROUP => Self::Cgroup(unsafe { details.cgroup.cgroup_id }),
            _ => Self::Other,
        }
    }
}

/// A descriptor in the form of `bpf_attr`. Descriptors are never negative.
fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd() as u32
}
