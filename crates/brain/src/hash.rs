//! Hashes and mixed bits: the same on every machine, in every process and in every release.
//!
//! The mixer is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
//! generators, OOPSLA 2014, with the constants of Stafford's variant 13): a bijection in which each input bit
//! flips each output bit with a chance of about one half. The hash of bytes chains it over words of eight.
//!
//! Neither is keyed: a client that chooses its own key can choose its member. The limit of a member and the
//! bounded load of `rendezvous` protect it from such a client, not the hash.

/// Spreads `bits` over all 64 bits, one to one.
pub const fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(STEP);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Returns the hash of a byte string, for [`PickRequest::key`](crate::PickRequest::key) and
/// [`Member::seed`](crate::Member::seed).
pub fn hash(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut state = mix(bytes.len() as u64);
    for word in words {
        state = mix(state ^ u64::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        state = mix(state ^ u64::from_le_bytes(word));
    }
    state
}

/// Returns a number strictly between 0 and 1 from the upper 52 bits.
pub(crate) fn unit(bits: u64) -> f64 {
    ((bits >> 12) as i64 as f64 + 0.5) / (1_u64 << 52) as f64
}

/// The odd number nearest to 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks fixed values, because members keep their keys across releases only as long as these stand.
    #[test]
    fn values_are_forever() {
        // The first outputs of SplitMix64 from the seeds 0 and 1234567, as published with it.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(1_234_567), 6_457_827_717_110_365_317);
        assert_eq!(hash(b""), mix(0));
        assert_eq!(hash(b"10.0.0.1:80"), 0xbaa0_69e1_9805_9227);
    }

    #[test]
    fn neighbours_differ() {
        for (a, b) in [("a", "b"), ("a", "a\0"), ("", "\0"), ("10.0.0.1:80", "10.0.0.1:81")] {
            let distance = (hash(a.as_bytes()) ^ hash(b.as_bytes())).count_ones();
            assert!((12..=52).contains(&distance), "{a:?} and {b:?} differ in {distance} bits");
        }
    }

    #[test]
    fn units_stay_inside() {
        assert!(unit(0) > 0.0 && unit(u64::MAX) < 1.0);
    }
}
