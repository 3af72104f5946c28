//! Which flow a connection belongs to, as a number by which hands of queues are dealt.

use sha2::{Digest as _, Sha256};
use siphasher::sip::SipHasher24;

/// Hashes flows, that is pairs of a flow schema's name and a distinguisher.
#[derive(Clone, Copy, Debug)]
pub enum FlowHasher {
    /// As APF: the first eight octets, little-endian, of the SHA-256 of name and distinguisher with
    /// a zero octet between them.
    Exact,
    /// SipHash of the same octets with a secret key. Sources choose their addresses: if they could
    /// compute hashes, they could collide with a victim in all its queues.
    Salted([u8; 16]),
}

impl FlowHasher {
    /// The hash of a flow.
    pub fn hash(&self, flow_schema: &str, distinguisher: &[u8]) -> u64 {
        match self {
            Self::Exact => {
                let mut digest = Sha256::new();
                digest.update(flow_schema);
                digest.update([0]);
                digest.update(distinguisher);
                let digest = digest.finalize();
                u64::from_le_bytes(std::array::from_fn(|index| digest[index]))
            }
            Self::Salted(key) => {
                use std::hash::Hasher as _;
                let mut hasher = SipHasher24::new_with_key(key);
                hasher.write(flow_schema.as_bytes());
                hasher.write(&[0]);
                hasher.write(distinguisher);
                hasher.finish()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_depend_on_the_salt_and_on_where_the_name_ends() {
        let [first, second] = [1, 2].map(|octet| FlowHasher::Salted([octet; 16]));
        assert_eq!(first.hash("a", b"b"), first.hash("a", b"b"));
        assert_ne!(first.hash("a", b"b"), second.hash("a", b"b"));
        assert_ne!(first.hash("ab", b""), first.hash("a", b"b"));
    }
}
