//! Records that other versions' programs have written, or written to: see [`flow_flag`].
//!
//! Their connections go on. What this version keeps and others do not, above all sequence numbers,
//! is learnt from the next packets.

use super::{
    Flow, Record, flow_flag,
    record::{self, clear, set},
    tcp,
};
use crate::addr::Address;

/// Flags that have a meaning only in a record of this version. In others, the bits may be left from
/// an earlier record in the same place.
pub const OURS: u32 = flow_flag::FIN_ACKED
    | flow_flag::CLOSED_FIRST
    | flow_flag::WATCH
    | flow_flag::MISFIT
    | flow_flag::WITHHELD
    | flow_flag::GONE
    | flow_flag::LATE
    | flow_flag::SCALE
    // The other bits of a width are `LATE`'s and `OLD_XDP`'s.
    | 1 << flow_flag::WIDTH[1]
    | flow_flag::OLD_HOP
    | flow_flag::OLD_XDP;

impl<A> Flow<A> {
    /// Whether the fields after the addresses are another version's, but for `peer` and `service`.
    #[inline(always)]
    pub fn is_foreign(&self) -> bool {
        self.flags & (flow_flag::NUMBERED | flow_flag::OLD_HOP) != flow_flag::NUMBERED
    }
}

/// The flags that a foreign record gets in place of [`OURS`]. The next TCP segment is believed, as
/// after a long time in which none fitted; a UDP flow has nothing to fit.
#[inline(always)]
pub fn adopted(flags: u32) -> u32 {
    match flags & flow_flag::UDP {
        0 => flow_flag::NUMBERED | flow_flag::MISFIT,
        _ => flow_flag::NUMBERED | flow_flag::WATCH,
    }
}

/// Makes a foreign record ours, at tick `now`.
#[inline(always)]
pub fn adopt<A: Address>(record: Record<A>, now: u32) {
    let flow = record.as_ptr();
    // SAFETY: records stay valid, and all CPUs that do this at the same time write the same. The
    // flags come last and say that the fields are this version's.
    unsafe {
        (*flow).hop = 0;
        (*flow).next = 0;
        (*flow).acknowledged = 0;
        (*flow).window = 0;
        (*flow).mark = (now as u16).wrapping_sub(tcp::PATIENCE);
        (*flow).detail = 0;
    }
    let flags = record::flags(record);
    clear(record, OURS);
    set(record, adopted(flags));
}
