//! The BPF file system, and the XDP program that wires need at their far end.

use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

/// Where every BPF tool expects the BPF file system.
pub const MOUNT_POINT: &str = "/sys/fs/bpf";

/// Mounts the BPF file system unless it is mounted already. The mount outlives the lab: it
/// belongs to the machine.
pub fn ensure_mounted() -> Result<()> {
    let found = statfs(MOUNT_POINT).with_context(|| format!("cannot stat {MOUNT_POINT}"))?;
    if found.filesystem_type() == BPF_FS_MAGIC {
        return Ok(());
    }
    mount(
        Some("bpf"),
        MOUNT_POINT,
        Some("bpf"),
        MsFlags::empty(),
        Some("mode=0700"),
    )
    .with_context(|| format!("cannot mount the BPF file system at {MOUNT_POINT}"))
}

/// Loads an XDP program that passes every packet, and pins it at `path`.
///
/// A veth drops what native `XDP_TX` sends it unless its far end runs an XDP program as well; this
/// one makes the far end ready for that and changes nothing else.
pub fn pin_xdp_pass(path: &Path) -> Result<()> {
    let program = load_xdp_pass().context("cannot load the XDP pass program")?;
    pin(&program, path).with_context(|| format!("cannot pin a program at {}", path.display()))
}

fn load_xdp_pass() -> io::Result<OwnedFd> {
    const XDP_PASS: i32 = 2;
    let program = [
        Instruction {
            code: 0xb7,
            registers: 0,
            offset: 0,
            immediate: XDP_PASS,
        }, // r0 = XDP_PASS
        Instruction {
            code: 0x95,
            registers: 0,
            offset: 0,
            immediate: 0,
        }, // exit
    ];
    let license = c"Dual MIT/GPL";
    // SAFETY: all-zero bytes are a valid value for this struct of integers and byte arrays.
    let mut attr: ProgLoad = unsafe { zeroed() };
    attr.prog_type = 6; // BPF_PROG_TYPE_XDP
    attr.insn_cnt = program.len() as u32;
    attr.insns = program.as_ptr() as u64;
    attr.license = license.as_ptr() as u64;
    attr.prog_flags = 1 << 5; // BPF_F_XDP_HAS_FRAGS, or jumbo MTUs are refused
    attr.prog_name[..8].copy_from_slice(b"lab_pass");

    let fd = bpf(5, &attr)?; // BPF_PROG_LOAD
    // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn pin(program: &OwnedFd, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attr = ObjPin {
        pathname: path.as_ptr() as u64,
        bpf_fd: program.as_raw_fd() as u32,
        file_flags: 0,
    };
    bpf(6, &attr).map(drop) // BPF_OBJ_PIN
}

fn bpf<T>(command: libc::c_int, attr: &T) -> io::Result<i32> {
    // SAFETY: `attr` is a prefix of `union bpf_attr` of the given size, and the memory its
    // addresses name outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr, size_of::<T>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as i32)
}

/// `struct bpf_insn`.
#[repr(C)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// The part of `union bpf_attr` that BPF_PROG_LOAD needs.
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
}

/// The part of `union bpf_attr` that BPF_OBJ_PIN needs.
#[repr(C)]
struct ObjPin {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}
