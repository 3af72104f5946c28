//! SCTP's checksum (CRC32c; RFC 9260, 6.8 and appendix A): incremental updates.
//!
//! A CRC is linear: it changes by the CRC of what is changed, whatever the other bytes are. So other
//! ports cost a product of two polynomials, and no pass over the packet. The addresses are not covered.
//!
//! Polynomials over the field of two elements are words here, with the coefficient of x^0 in the highest
//! bit. Products are remainders of the division by CRC32c's polynomial.

use crate::opaque::{forgotten, rolled};

/// CRC32c's polynomial without its highest power; so also x^32.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// x^0.
const ONE: u32 = 1 << 31;
/// x^8.
const BYTE: u32 = ONE >> 8;

/// Packets shorter than that, which most are, cost one product.
const BLOCK: usize = 2048;
/// x^8n at place n, for lengths below [`BLOCK`].
static BYTES: [u32; BLOCK] = powers(BYTE);
/// The same for multiples of [`BLOCK`].
static BLOCKS: [u32; (1 << 16) / BLOCK] = powers(product(powers::<BLOCK>(BYTE)[BLOCK - 1], BYTE));

/// The product of two polynomials. Without branches, which the verifier would follow in every round.
#[inline(always)]
fn times(mut a: u32, mut b: u32) -> u32 {
    // Newer verifiers look at what a mask of ones or zeros leaves of a number that they know, once for
    // each: in every round.
    let polynomial = forgotten(POLYNOMIAL, b.into());
    let mut product = 0;
    for _ in rolled(32) {
        (product, a, b) = step(product, a, b, polynomial);
    }
    product
}

/// A round of [`times`]: adds the lowest of the coefficients left.
#[inline(always)]
const fn step(product: u32, a: u32, b: u32, polynomial: u32) -> (u32, u32, u32) {
    (
        product ^ (b & 0_u32.wrapping_sub(a >> 31)),
        a << 1,
        (b >> 1) ^ (polynomial & 0_u32.wrapping_sub(b & 1)),
    )
}

/// The powers of a polynomial, from x^0 on.
const fn powers<const COUNT: usize>(of: u32) -> [u32; COUNT] {
    let mut powers = [ONE; COUNT];
    let mut place = 1;
    while place < COUNT {
        powers[place] = product(powers[place - 1], of);
        place += 1;
    }
    powers
}

/// [`times`] for constants.
const fn product(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut round = 0;
    while round < 32 {
        (product, a, b) = step(product, a, b, POLYNOMIAL);
        round += 1;
    }
    product
}

/// The checksum of a packet of `length` bytes, 65,535 at most, after its first four bytes have changed.
/// All words in memory order.
#[inline(always)]
pub fn changed(checksum: u32, old: u32, new: u32, length: u32) -> u32 {
    let length = length as usize;
    let mut change = times(BYTES[length % BLOCK], u32::from_le(old ^ new));
    let blocks = length / BLOCK % BLOCKS.len();
    if blocks != 0 {
        change = times(BLOCKS[blocks], change);
    }
    checksum ^ change.to_le()
}

/// The checksum of a packet with zeros in its place. All words in memory order.
#[inline(always)]
pub fn of(words: impl IntoIterator<Item = u32>) -> u32 {
    let register = words.into_iter().fold(u32::MAX, |register, word| {
        times(POLYNOMIAL, register ^ u32::from_le(word))
    });
    (!register).to_le()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksum as RFC 9260 describes it, bit by bit.
    fn plain(bytes: &[u8]) -> u32 {
        let mut register = u32::MAX;
        for byte in bytes {
            register ^= u32::from(*byte);
            for _ in 0..8 {
                register = (register >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(register & 1));
            }
        }
        !register
    }

    fn random(state: &mut u64) -> u32 {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (*state >> 32) as u32
    }

    #[test]
    fn known_checksums() {
        // RFC 3720, appendix B.4, which has the same polynomial.
        assert_eq!(plain(&[0; 32]), 0x8a91_36aa);
        assert_eq!(plain(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(plain(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn the_checksum_of_words_is_that_of_their_bytes() {
        let state = &mut 1;
        let words: [u32; 4] = std::array::from_fn(|_| random(state));
        let bytes = words.map(u32::to_ne_bytes).concat();
        assert_eq!(of(words), plain(&bytes).to_le());
    }

    #[test]
    fn changes_equal_a_new_pass_over_the_packet() {
        let state = &mut 2;
        let lengths = (12..3000).chain([4095, 4096, 9000, 32_768, 65_534, 65_535]);
        for length in lengths {
            let mut bytes: Vec<u8> = (0..length).map(|_| random(state) as u8).collect();
            let before = plain(&bytes).to_le();
            let old = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
            let new = match length % 3 {
                // One port only.
                0 => (old.to_le() ^ random(state) << 16).to_le(),
                _ => random(state),
            };
            bytes[..4].copy_from_slice(&new.to_ne_bytes());
            let after = changed(before, old, new, length);
            assert_eq!(after, plain(&bytes).to_le(), "{length} bytes");
        }
    }
}
