//! Copies flows from the table of another size.

use aya_ebpf::bindings::__sk_buff;
use lb_common::{
    abi::{COPY_BATCH, copy_word},
    addr::{Family, Ip4, Ip6},
    pipeline::Copied,
    rolled,
};

use crate::family::FamilyMaps;

/// Copies the flows of a batch of records, as the words of the context say, and writes the results
/// there.
#[inline(always)]
pub fn copy_flows(skb: *mut __sk_buff) -> i32 {
    // SAFETY: the program's own context.
    let (first, family) = unsafe { ((*skb).cb[copy_word::FIRST], (*skb).cb[copy_word::FAMILY]) };
    let (copied, left) = match family == Family::V4 as u32 {
        true => batch::<Ip4>(first),
        false => batch::<Ip6>(first),
    };
    // SAFETY: the program's own context.
    unsafe {
        (*skb).cb[copy_word::COPIED] = copied;
        (*skb).cb[copy_word::LEFT] = left;
    }
    0
}

/// Numbers of flows that are copied now, and that could not be.
#[inline(always)]
fn batch<A: FamilyMaps>(first: u32) -> (u32, u32) {
    // How often each outcome came, in 16 bits of its own. A branch for each would have the verifier
    // look at all other records for both of its ends.
    let mut counts = 0_u64;
    for step in rolled(COPY_BATCH as usize) {
        let became = A::copy_slot(first.wrapping_add(step as u32));
        counts += 1 << ((became & 3) * 16);
    }
    let count = |outcome: Copied| (counts >> (outcome as u32 * 16)) as u32 & 0xffff;
    (count(Copied::Copied), count(Copied::Left))
}
