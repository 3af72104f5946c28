//! Reads what an iterator program writes of the values of a map.

use std::{
    fs::File,
    io::{self, BufReader},
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
};

use aya_obj::generated::{bpf_attach_type, bpf_cmd};

use super::{bpf, empty_attr};

/// Bytes to be read at once: as many as the kernel collects.
const READ: usize = 32 * 1024;

/// What an iterator program writes when it runs over a map once, which it does while that is read.
///
/// aya has iterators as well, but none over a map.
///
/// # Errors
///
/// The kernel's; none is expected.
pub fn iterate(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<BufReader<File>> {
    // The first member of `union bpf_iter_link_info`; the kernel takes the others for zero.
    let over = map.as_raw_fd() as u32;
    let mut attr = empty_attr();
    attr.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    attr.link_create.attach_type = bpf_attach_type::BPF_TRACE_ITER as u32;
    // SAFETY: the union is zeroed, so that every view of it is valid.
    let info = unsafe { &mut attr.link_create.__bindgen_anon_3.__bindgen_anon_1 };
    info.iter_info = &raw const over as u64;
    info.iter_info_len = size_of_val(&over) as u32;
    let link = descriptor(bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr)?);

    let mut attr = empty_attr();
    attr.iter_create.link_fd = link.as_raw_fd() as u32;
    let file = File::from(descriptor(bpf(bpf_cmd::BPF_ITER_CREATE, &mut attr)?));
    Ok(BufReader::with_capacity(READ, file))
}

fn descriptor(fd: i32) -> OwnedFd {
    // SAFETY: the kernel just gave us this descriptor, nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
