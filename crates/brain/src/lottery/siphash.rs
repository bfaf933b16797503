//! SipHash-2-4 (Aumasson and Bernstein, SipHash: a fast short-input PRF, 2012): a request id that a certain
//! member wins cannot be chosen without the key.

use core::fmt;

/// The key of a cluster's lottery. Never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SipHashKey([u64; 2]);

impl SipHashKey {
    /// Returns the key of 16 secret bytes.
    pub fn new(bytes: [u8; 16]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        Self([u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])])
    }

    /// Returns SipHash-2-4 of `bytes`.
    pub fn hash(&self, bytes: &[u8]) -> u64 {
        let mut state = self.initial_state();
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            state.absorb(u64::from_le_bytes(*word));
        }
        let mut last_word = [0; 8];
        last_word[..rest.len()].copy_from_slice(rest);
        // At most seven bytes are left; the eighth is the length modulo 256.
        last_word[7] = bytes.len() as u8;
        state.finish(u64::from_le_bytes(last_word))
    }

    /// Returns the state before the first word.
    pub(super) fn initial_state(&self) -> SipHashState {
        let [k0, k1] = self.0;
        SipHashState([
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ])
    }
}

impl fmt::Debug for SipHashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// An unfinished hash. A copy can be finished in many ways at the cost of its last word.
#[derive(Clone, Copy)]
pub(super) struct SipHashState([u64; 4]);

impl SipHashState {
    pub(super) fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.round();
        self.0[0] ^= word;
    }

    /// Finishes the hash. `last`: up to seven remaining bytes, and the total length in the highest byte.
    pub(super) fn finish(mut self, last_word: u64) -> u64 {
        self.absorb(last_word);
        self.0[2] ^= 0xff;
        for _ in 0..4 {
            self.round();
        }
        self.0[0] ^ self.0[1] ^ self.0[2] ^ self.0[3]
    }

    fn round(&mut self) {
        let [a, b, c, d] = &mut self.0;
        *a = a.wrapping_add(*b);
        *b = b.rotate_left(13) ^ *a;
        *a = a.rotate_left(32);
        *c = c.wrapping_add(*d);
        *d = d.rotate_left(16) ^ *c;
        *a = a.wrapping_add(*d);
        *d = d.rotate_left(21) ^ *a;
        *c = c.wrapping_add(*b);
        *b = b.rotate_left(17) ^ *c;
        *c = c.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::vec::Vec;

    use super::*;

    fn key() -> SipHashKey {
        SipHashKey::new(core::array::from_fn(|index| index as u8))
    }

    /// Checks the first vectors published with the function: key 00 01 .. 0f, input empty, 00, 00 01, ...
    #[test]
    fn it_is_the_published_function() {
        let vectors: [[u8; 8]; 16] = [
            [0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72],
            [0xfd, 0x67, 0xdc, 0x93, 0xc5, 0x39, 0xf8, 0x74],
            [0x5a, 0x4f, 0xa9, 0xd9, 0x09, 0x80, 0x6c, 0x0d],
            [0x2d, 0x7e, 0xfb, 0xd7, 0x96, 0x66, 0x67, 0x85],
            [0xb7, 0x87, 0x71, 0x27, 0xe0, 0x94, 0x27, 0xcf],
            [0x8d, 0xa6, 0x99, 0xcd, 0x64, 0x55, 0x76, 0x18],
            [0xce, 0xe3, 0xfe, 0x58, 0x6e, 0x46, 0xc9, 0xcb],
            [0x37, 0xd1, 0x01, 0x8b, 0xf5, 0x00, 0x02, 0xab],
            [0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93],
            [0xb0, 0xe4, 0xa9, 0x0b, 0xdf, 0x82, 0x00, 0x9e],
            [0xf3, 0xb9, 0xdd, 0x94, 0xc5, 0xbb, 0x5d, 0x7a],
            [0xa7, 0xad, 0x6b, 0x22, 0x46, 0x2f, 0xb3, 0xf4],
            [0xfb, 0xe5, 0x0e, 0x86, 0xbc, 0x8f, 0x1e, 0x75],
            [0x90, 0x3d, 0x84, 0xc0, 0x27, 0x56, 0xea, 0x14],
            [0xee, 0xf2, 0x7a, 0x8e, 0x90, 0xca, 0x23, 0xf7],
            [0xe5, 0x45, 0xbe, 0x49, 0x61, 0xca, 0x29, 0xa1],
        ];
        let input: Vec<u8> = (0..16).collect();
        for (length, vector) in vectors.iter().enumerate() {
            assert_eq!(key().hash(&input[..length]), u64::from_le_bytes(*vector), "{length} bytes");
        }
    }

    #[test]
    fn a_key_is_not_printed() {
        assert_eq!(format!("{:?}", key()), "Key(..)");
    }
}
