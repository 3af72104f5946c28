//! Bounds-checked access to a packet's bytes, the same source for the kernel and for tests.

use crate::opaque::opaque;

/// The bytes from the first header to the end of what may be read directly.
///
/// A packet is a view: after anything that may move the bytes (a helper that changes the packet, a
/// resize) a new one has to be taken from the frame.
#[derive(Clone, Copy)]
pub struct Packet {
    data: usize,
    end: usize,
}

impl Packet {
    /// A view of the bytes between two addresses.
    ///
    /// # Safety
    ///
    /// `data..end` must be readable and writable for as long as the view is used, and nothing else
    /// may access it meanwhile.
    #[inline(always)]
    pub unsafe fn new(data: usize, end: usize) -> Self {
        Self { data, end }
    }

    /// Number of bytes in view.
    #[inline(always)]
    pub fn len(&self) -> usize {
        // Opaque: the verifier lets whole pointers be subtracted, not their lower halves.
        opaque(self.end - self.data)
    }

    /// Whether nothing is in view.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.end == self.data
    }

    /// Reads a `T` at byte `offset`, or `None` past the end. Bytes come in memory (network) order.
    #[inline(always)]
    pub fn load<T: Plain>(&self, offset: usize) -> Option<T> {
        let p = self.at::<T>(offset)?;
        // SAFETY: `at` checked the bounds; BPF loads need no alignment, so one plain load will do.
        #[cfg(target_arch = "bpf")]
        return Some(unsafe { *p });
        // SAFETY: `at` checked the bounds, and `T` is valid for any bytes.
        #[cfg(not(target_arch = "bpf"))]
        return Some(unsafe { p.read_unaligned() });
    }

    /// Writes a `T` at byte `offset`; `None` past the end, with nothing written.
    #[inline(always)]
    pub fn store<T: Plain>(&self, offset: usize, value: T) -> Option<()> {
        let p = self.at::<T>(offset)?;
        // SAFETY: `at` checked the bounds, and nothing else accesses the packet.
        #[cfg(target_arch = "bpf")]
        unsafe {
            *p = value;
        }
        // SAFETY: `at` checked the bounds, and nobody else has the packet.
        #[cfg(not(target_arch = "bpf"))]
        unsafe {
            p.write_unaligned(value);
        }
        Some(())
    }

    #[inline(always)]
    fn at<T>(&self, offset: usize) -> Option<*mut T> {
        let p = opaque(self.data + offset);
        if p + size_of::<T>() > self.end {
            return None;
        }
        Some(p as *mut T)
    }
}

/// Types for which any bytes are a valid value and which have no padding.
///
/// # Safety
///
/// Exactly that.
pub unsafe trait Plain: Copy {}

// SAFETY: no padding, and any bytes are a value.
unsafe impl Plain for u8 {}
// SAFETY: no padding, and any bytes are a value.
unsafe impl Plain for u16 {}
// SAFETY: no padding, and any bytes are a value.
unsafe impl Plain for u32 {}
// SAFETY: no padding, and any bytes are a value.
unsafe impl Plain for u64 {}
// SAFETY: no padding, and any bytes are a value.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_stops_at_the_end() {
        let mut bytes = [1u8, 2, 3, 4, 5];
        let start = bytes.as_mut_ptr() as usize;
        // SAFETY: the array outlives the view and is not used while the view is.
        let packet = unsafe { Packet::new(start, start + bytes.len()) };
        assert_eq!(packet.load::<[u8; 4]>(1), Some([2, 3, 4, 5]));
        assert_eq!(packet.load::<u32>(2), None);
        assert_eq!(packet.store(4, 9u8), Some(()));
        assert_eq!(packet.store(4, 9u16), None);
        assert_eq!(packet.load::<u8>(4), Some(9));
        assert_eq!(packet.load::<u8>(5), None);
    }
}
