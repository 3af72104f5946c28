//! Next hops, each stored once for all flows that share it, so that a record needs four bytes for
//! it.
//!
//! `HOPS` is a set-associative cache. An entry's version changes with its content and with every
//! generation, and a flow keeps the version that it looked up: comparing two numbers shows whether
//! an entry was overwritten or is out of date. No clean-up is needed, and no agent has to run.

use core::ptr::NonNull;

use crate::{atomic, entries, opaque::rolled, packet::Plain};

/// Entries that one next hop may be in.
const WAYS: usize = 4;
/// Ticks that an entry stays untouched after it was looked up, even if its place is wanted: much
/// longer than any program runs that has just read its version.
const UNTOUCHED: u32 = 8;
/// Ticks between generations, as a number of bits to shift by: routes that change without an agent
/// to notice are followed within this time.
const GENERATION_SHIFT: u32 = 6;
/// Bit of [`Hop::version`] that says that the entry is being written.
const WRITING: u32 = 1;

/// Element of `HOPS`: where packets leave to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hop {
    /// Raised with each change; odd while the entry is being written, 0 if it never was.
    pub version: u32,
    /// [`generation`] that it was last looked up in.
    pub generation: u32,
    /// Tick of that.
    pub looked_up: u32,
    /// Interface index.
    pub ifindex: u32,
    pub ethernet: Ethernet,
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// [`hop_flag`]s.
    pub flags: u16,
}

/// Bits of [`Hop::flags`].
pub mod hop_flag {
    /// It can be reached from XDP.
    pub const XDP: u16 = 1 << 0;
}

/// Destination and source address of an Ethernet header.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ethernet {
    pub to: [u8; 6],
    pub from: [u8; 6],
}

// SAFETY: twelve octets, no padding.
unsafe impl Plain for Ethernet {}

/// The memory of the cache.
///
/// # Safety
///
/// Pointers must stay valid, and be aligned as [`Hop`] asks for.
pub unsafe trait Hops {
    /// Number of entries less one; the number is a power of two.
    fn hop_mask(&self) -> u32 {
        entries::HOPS as u32 - 1
    }
    /// The entry at an index.
    fn hop(&self, index: u32) -> Option<NonNull<Hop>>;
}

/// How long a next hop is valid: until routes or neighbours change, which the agent counts in
/// `announced`, and for a limited time in any case.
#[inline(always)]
pub fn generation(announced: u32, ticks: u32) -> u32 {
    announced.wrapping_add(ticks >> GENERATION_SHIFT)
}

impl Hop {
    /// Whether a flow that keeps it as `kept` may still use it.
    #[inline(always)]
    pub fn holds(&self, kept: u32, generation: u32) -> bool {
        kept >> 16 != 0 && self.version & 0xffff == kept >> 16 && self.generation == generation
    }

    #[inline(always)]
    fn leads_as(&self, other: &Self) -> bool {
        self.ifindex == other.ifindex
            && self.ethernet == other.ethernet
            && self.mtu == other.mtu
            && self.flags == other.flags
    }
}

/// Index of the entry that a flow keeps.
#[inline(always)]
pub fn index(kept: u32) -> u32 {
    kept & 0xffff
}

/// Stores a next hop that was looked up at tick `now`, and returns the value for
/// [`super::Flow::hop`]. `None` if every entry that it may use is taken at the moment.
#[inline(always)]
pub fn keep<H: Hops>(hops: &H, found: &Hop, generation: u32, now: u32) -> Option<u32> {
    let start = spread(found);
    let mut free = u32::MAX;
    for way in rolled(WAYS) {
        let index = start.wrapping_add(way as u32) & hops.hop_mask();
        let entry = hops.hop(index)?;
        let version = read_version(entry);
        // SAFETY: entries stay valid. If this one is overwritten meanwhile, its version is raised,
        // and then what is returned here is not used.
        let hop = unsafe { entry.as_ref() };
        if version & WRITING != 0 {
            continue;
        }
        if version != 0 && hop.leads_as(found) {
            if hop.generation != generation {
                return write(entry, version, found, generation, now)
                    .map(|version| index | version << 16);
            }
            return Some(index | version << 16);
        }
        let unused = now.wrapping_sub(hop.looked_up) > UNTOUCHED && hop.generation != generation;
        if free == u32::MAX && (version == 0 || unused) {
            free = index;
        }
    }
    let entry = hops.hop(free)?;
    write(entry, read_version(entry), found, generation, now).map(|version| free | version << 16)
}

#[inline(always)]
fn read_version(entry: NonNull<Hop>) -> u32 {
    // SAFETY: entries stay valid; versions are only accessed atomically or volatilely.
    unsafe { (&raw const (*entry.as_ptr()).version).read_volatile() }
}

/// Writes an entry if its version is still `seen`. Returns its new version.
#[inline(always)]
fn write(entry: NonNull<Hop>, seen: u32, found: &Hop, generation: u32, now: u32) -> Option<u32> {
    if seen & WRITING != 0 {
        return None;
    }
    let hop = entry.as_ptr();
    // SAFETY: entries stay valid; the word is only reached through atomics.
    let version = unsafe { &raw mut (*hop).version };
    // SAFETY: a valid, aligned word; its owner writes the rest.
    unsafe {
        if !atomic::compare_and_swap(version, seen, seen | WRITING) {
            return None;
        }
        (*hop).generation = generation;
        (*hop).looked_up = now;
        (*hop).ifindex = found.ifindex;
        (*hop).ethernet = found.ethernet;
        (*hop).mtu = found.mtu;
        (*hop).flags = found.flags;
    }
    // Zero in the lower half, which is what flows keep, means never.
    let next = match seen.wrapping_add(2) {
        next if next as u16 == 0 => next.wrapping_add(2),
        next => next,
    };
    // SAFETY: this CPU has marked the word, so no other one publishes it.
    unsafe { atomic::publish(version, next) };
    Some(next)
}

/// Where a next hop's entries begin.
#[inline(always)]
fn spread(hop: &Hop) -> u32 {
    let [.., a, b, c, d] = hop.ethernet.to;
    (u32::from_ne_bytes([a, b, c, d]) ^ hop.ifindex.rotate_left(16)).wrapping_mul(0x9e37_79b1) >> 12
}
