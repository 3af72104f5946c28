//! Runs a TC program that is not attached to anything.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

use aya_obj::generated::bpf_cmd;

use super::{bpf, empty_attr};

/// The words of a program's context (`cb`) by which it communicates.
pub type Words = [u32; WORDS];

const WORDS: usize = 5;

/// Words of `struct __sk_buff`, and the places of fields in it.
const CONTEXT: usize = 48;
const IFINDEX: usize = 10;
const CB: usize = 12;

/// Runs a program on a frame that seems to have come by this device; 0 means none. Returns the words that
/// it leaves.
///
/// # Errors
///
/// If the kernel does not run it: the device may be gone.
pub fn run_classifier(
    program: BorrowedFd<'_>,
    frame: &[u8],
    ifindex: u32,
    words: Words,
) -> io::Result<Words> {
    let mut context = [0_u32; CONTEXT];
    context[IFINDEX] = ifindex;
    context[CB..CB + WORDS].copy_from_slice(&words);
    let mut after = context;
    let mut attr = empty_attr();
    // SAFETY: the union is zeroed, so that every view of it is valid.
    let test = unsafe { &mut attr.test };
    test.prog_fd = program.as_raw_fd() as u32;
    test.data_in = frame.as_ptr() as u64;
    test.data_size_in = frame.len() as u32;
    test.repeat = 1;
    test.ctx_in = context.as_ptr() as u64;
    test.ctx_size_in = size_of_val(&context) as u32;
    test.ctx_out = after.as_mut_ptr() as u64;
    test.ctx_size_out = size_of_val(&after) as u32;
    bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr)?;
    Ok(std::array::from_fn(|word| after[CB + word]))
}
