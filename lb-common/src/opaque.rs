//! Numbers that the compiler knows nothing about, though the verifier does.

/// Returns its argument.
///
/// On addresses it keeps LLVM from turning a bounds check into a form that the verifier does not
/// accept; on loop counters it keeps LLVM from unrolling, which would not fit the stack.
#[inline(always)]
pub fn opaque(p: usize) -> usize {
    #[cfg(target_arch = "bpf")]
    {
        let q;
        // SAFETY: a move between registers.
        unsafe {
            core::arch::asm!(
                "{q} = {p}",
                p = in(reg) p,
                q = lateout(reg) q,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        q
    }
    #[cfg(not(target_arch = "bpf"))]
    p
}

/// Zero, which the compiler and the processor have to wait for `value` to know.
#[inline(always)]
pub fn zero_after(value: u32) -> usize {
    #[cfg(target_arch = "bpf")]
    {
        let zero;
        // Every verifier knows what this comes to, as it must to let a pointer be moved by it.
        // SAFETY: arithmetic in a register.
        unsafe {
            core::arch::asm!(
                "{zero} = {value}",
                "{zero} &= 0",
                value = in(reg) u64::from(value),
                zero = lateout(reg) zero,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        zero
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        let _ = value;
        0
    }
}

/// Returns its argument, computed here and now: LLVM would rather keep the many words of a sum over
/// IPv6 addresses on the stack until it needs the sum.
#[inline(always)]
pub fn computed(value: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    {
        let mut value = value;
        // SAFETY: a move of a register to itself.
        unsafe { core::arch::asm!("{q} = {q}", q = inout(reg) value, options(nostack)) };
        value
    }
    #[cfg(not(target_arch = "bpf"))]
    value
}

/// Returns its argument by way of memory, `room`: the verifier forgets which of many ways led to
/// it, and looks at what follows once instead of once for each.
#[inline(always)]
pub fn settled<T: Copy>(value: T, room: &mut T) -> T {
    // SAFETY: a reference; volatile, or LLVM would leave memory out.
    unsafe {
        (&raw mut *room).write_volatile(value);
        (&raw const *room).read_volatile()
    }
}

/// Returns `value`, of which the verifier knows nothing afterwards but that it is a number. So it looks
/// once at what follows a search that may end in many places, instead of once for each. It must know
/// nothing of `any` either.
#[inline(always)]
pub fn forgotten(value: u32, any: u64) -> u32 {
    value ^ (computed(any) ^ computed(any)) as u32
}

/// All ones if `value` is negative, else none, computed without a branch: in a loop the verifier
/// would look at everything behind it once for each way there.
#[inline(always)]
pub fn mask_if_negative(value: i64) -> u32 {
    computed((value >> 63) as u64) as u32
}

/// All ones unless `value` is zero, likewise.
#[inline(always)]
pub fn mask_unless_zero(value: u32) -> u64 {
    computed((-i64::from(value) >> 63) as u64)
}

/// `one` where `mask` has ones, `other` elsewhere.
#[inline(always)]
pub fn choose(mask: u32, one: u32, other: u32) -> u32 {
    other ^ (one ^ other) & mask
}

/// `0..end`, counted so that the loop stays a loop.
#[inline(always)]
pub fn rolled(end: usize) -> Rolled {
    Rolled { next: 0, end }
}

/// The iterator behind [`rolled`].
pub struct Rolled {
    next: usize,
    end: usize,
}

impl Iterator for Rolled {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        let current = self.next;
        if current >= self.end {
            return None;
        }
        self.next = opaque(current + 1);
        Some(current)
    }
}
