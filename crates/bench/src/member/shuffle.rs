//! Real work of a known size: the member swaps received integers at random, a given number of times, and
//! sends them back.
//!
//! This is the task of Ristov, Cvetkov and Gusev ("Implementation of a Scalable L3B Balancer"): 300 integers
//! and 10,000 swaps, much work for few bytes. Integers are 32 bits wide; their byte order does not matter, as
//! they are moved whole.

use crate::rng::SplitMix64;

/// The bytes of an integer.
const INTEGER_BYTES: usize = 4;

/// Swaps two integers of `bytes`, chosen at random, `swaps` times. Bytes beyond the last whole integer stay
/// in place; without an integer nothing happens.
pub fn shuffle(bytes: &mut [u8], swaps: u32, rng: &mut SplitMix64) {
    let count = (bytes.len() / INTEGER_BYTES) as u64;
    if count == 0 {
        return;
    }
    // With fewer than 2^32 integers the product of an index's share and the count does not overflow.
    let pick_offset = |bits: u64| (((bits & 0xffff_ffff) * count) >> 32) as usize * INTEGER_BYTES;
    for _ in 0..swaps {
        let bits = rng.bits();
        let (first, second) = (pick_offset(bits), pick_offset(bits >> 32));
        for byte in 0..INTEGER_BYTES {
            bytes.swap(first + byte, second + byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_integers_come_back_in_another_order() {
        let mut integers: Vec<u32> = (0..300).map(|n: u32| n.wrapping_mul(0x0101_0101)).collect();
        let mut bytes: Vec<u8> = integers.iter().flat_map(|n| n.to_le_bytes()).collect();
        let original = bytes.clone();
        shuffle(&mut bytes, 10_000, &mut SplitMix64::new(1));
        assert_ne!(bytes, original);
        let mut shuffled: Vec<u32> =
            bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        shuffled.sort_unstable();
        integers.sort_unstable();
        assert_eq!(shuffled, integers);
    }

    #[test]
    fn every_place_is_as_likely() {
        let mut first_counts = [0u32; 10];
        let mut rng = SplitMix64::new(2);
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = (0..10u8).flat_map(|n| [n; 4]).collect();
            shuffle(&mut bytes, 40, &mut rng);
            first_counts[usize::from(bytes[0])] += 1;
        }
        assert!(first_counts.iter().all(|count| (1800..2200).contains(count)), "{first_counts:?}");
    }

    #[test]
    fn odd_lengths_are_no_trouble() {
        for length in 0..9 {
            let mut bytes: Vec<u8> = (0..length).collect();
            shuffle(&mut bytes, 100, &mut SplitMix64::new(1));
            assert_eq!(bytes.len(), usize::from(length));
        }
    }
}
