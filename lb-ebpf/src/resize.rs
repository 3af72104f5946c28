//! The copy of flows from the table of another size.

use aya_ebpf::bindings::__sk_buff;
use lb_common::{
    abi::{COPY_BATCH, copy_word},
    addr::{Family, Ip4, Ip6},
    pipeline::Copied,
    rolled,
};

use crate::maps::FamilyMaps;

/// Copies the flows of a batch of records, as the words of the context say, and leaves there what became of
/// them.
#[inline(always)]
pub fn copy_flows(skb: *mut __sk_buff) -> i32 {
    // SAFETY: the program's own context.
    let (first, family) = unsafe { ((*skb).cb[copy_word::FIRST], (*skb).cb[copy_word::FAMILY]) };
    let (copied, left) = match family == Family::V4 as u32 {
        true => batch::<Ip4>(first),
        false => batch::<Ip6>(first),
    };
    // SAFETY: as above.
    unsafe {
        (*skb).cb[copy_word::COPIED] = copied;
        (*skb).cb[copy_word::LEFT] = left;
    }
    0
}

/// Numbers of flows that are copied now, and that could not be.
#[inline(always)]
fn batch<A: FamilyMaps>(first: u32) -> (u32, u32) {
    let (mut copied, mut left) = (0, 0);
    for step in rolled(COPY_BATCH as usize) {
        let became = A::copy_slot(first.wrapping_add(step as u32));
        copied += u32::from(became == Copied::Copied as u64);
        left += u32::from(became == Copied::Left as u64);
    }
    (copied, left)
}
