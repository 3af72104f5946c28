//! What the benchmark and its harness, a program in the kernel, share.

/// The harness's only state, its `.bss`; the benchmark writes it between runs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Control {
    /// State of the random numbers that choose a key of the hash map.
    pub random: u64,
    /// Keys to choose from, less one; their number is a power of two.
    pub key_mask: u32,
    /// Number of the next packet.
    pub next: u32,
    /// Length of the trace, less one; the length is a power of two.
    pub trace_mask: u32,
    pub pad: u32,
}

/// Longest trace, in packets.
pub const TRACE: u32 = 1 << 21;

/// Element of `TRACE4` and `TRACE6`: what distinguishes a packet from the others of a run. All in
/// memory (network) order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Step<N> {
    /// The part of the network header that varies.
    pub network: N,
    /// Four bytes from the beginning of the transport's checksum on. SCTP's takes all of them.
    pub checksum: u32,
    /// Its offset in the frame.
    pub checksum_offset: u16,
    pub pad: u16,
}

/// Bytes 22 to 37 of an IPv4 frame: time to live, protocol, checksum, addresses, ports.
pub type Network4 = [u64; 2];

/// Of an IPv6 frame: the lower halves of its addresses; then payload length, next header and hop
/// limit in the lower half of a word, ports in the upper.
pub type Network6 = [u64; 3];

/// Entries of the hash map that is looked up for comparison.
pub const TABLE: u32 = 1 << 20;

/// Key and value of that map.
pub type Key = [u32; 4];

/// The Ethernet addresses that frames arrive with: 02:00:00:00:00:01, then :02.
pub const ETHERNET: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

// SAFETY: `repr(C)`, integers only, without implicit padding.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Control {}
// SAFETY: `repr(C)`, integers only, without implicit padding for the networks in use.
#[cfg(feature = "user")]
unsafe impl<N: aya::Pod> aya::Pod for Step<N> {}
