//! A map from texts to small values, made once and read without allocation.
//!
//! It is open-addressed with linear probing and at most half full. The hash is neither keyed nor the one of
//! [`crate::hash`]: requests add nothing to the table, so a cheaper hash of whole words will do.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// A text of the map under the seed of its host.
#[derive(Clone, Debug)]
pub(super) struct IndexedText<V> {
    pub(super) seed: u64,
    pub(super) text: Box<str>,
    pub(super) value: V,
}

/// The map, with `ANY_CASE` of texts in lower case that are looked up in any case.
#[derive(Clone, Debug)]
pub(super) struct TextIndex<V, const ANY_CASE: bool> {
    slots: Box<[HashSlot]>,
    texts: Vec<IndexedText<V>>,
}

/// The hash of a text, and its index plus 1; 0 for a free slot.
#[derive(Clone, Copy, Debug, Default)]
struct HashSlot {
    hash: u64,
    number: u32,
}

impl<V: Copy, const ANY_CASE: bool> TextIndex<V, ANY_CASE> {
    /// Returns a map of texts that differ, or whose seeds differ.
    pub(super) fn new(texts: Vec<IndexedText<V>>) -> Self {
        let capacity = if texts.is_empty() { 0 } else { (2 * texts.len()).next_power_of_two() };
        let mut slots = vec![HashSlot::default(); capacity].into_boxed_slice();
        for (number, indexed) in (1..).zip(&texts) {
            let hash = hash_words::<ANY_CASE>(indexed.seed, indexed.text.as_bytes());
            let mut place = hash as usize & (capacity - 1);
            while slots[place].number != 0 {
                place = (place + 1) & (capacity - 1);
            }
            slots[place] = HashSlot { hash, number };
        }
        Self { slots, texts }
    }

    /// Returns the value of a text under a seed.
    pub(super) fn find(&self, seed: u64, text: &[u8]) -> Option<V> {
        let last_place = self.slots.len().checked_sub(1)?;
        let hash = hash_words::<ANY_CASE>(seed, text);
        let mut place = hash as usize & last_place;
        loop {
            let slot = self.slots.get(place)?;
            let number = slot.number.checked_sub(1)?;
            if slot.hash == hash {
                let indexed = &self.texts[number as usize];
                let stored = indexed.text.as_bytes();
                let is_equal = stored == text || ANY_CASE && stored.eq_ignore_ascii_case(text);
                if is_equal && indexed.seed == seed {
                    return Some(indexed.value);
                }
            }
            place = (place + 1) & last_place;
        }
    }
}

/// The seed of all hosts.
pub(super) const HOST_SEED: u64 = 0;

/// Returns the hash of a text; with `ANY_CASE` the same for upper and lower case.
#[inline]
fn hash_words<const ANY_CASE: bool>(seed: u64, text: &[u8]) -> u64 {
    let mut state = (seed ^ text.len() as u64).wrapping_mul(FACTOR);
    let mut add = |word: u64| {
        // The bit in which upper and lower case differ.
        let word = if ANY_CASE { word | 0x2020_2020_2020_2020 } else { word };
        let product = (state ^ word).wrapping_mul(FACTOR);
        state = product ^ (product >> 29);
    };
    let (words, rest) = text.as_chunks::<8>();
    for word in words {
        add(u64::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        let short = || rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        // The last eight bytes overlap the word before.
        add(text.last_chunk().map_or_else(short, |last| u64::from_le_bytes(*last)));
    }
    state ^ (state >> 32)
}

/// The odd number nearest to 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn texts_of_each_length_are_found_and_their_neighbours_are_not() {
        let text = |length: usize, last: char| format!("{}{last}", "abc.".repeat(20).split_at(length).0);
        let indexed = |length: usize| IndexedText {
            seed: HOST_SEED,
            text: text(length, 'x').into_boxed_str(),
            value: length,
        };
        let hosts = TextIndex::<usize, true>::new((0..80).map(indexed).collect());
        let paths = TextIndex::<usize, false>::new((0..80).map(indexed).collect());
        for length in 0..80 {
            let upper_case = text(length, 'X').to_ascii_uppercase();
            assert_eq!(hosts.find(HOST_SEED, text(length, 'x').as_bytes()), Some(length));
            assert_eq!(hosts.find(HOST_SEED, upper_case.as_bytes()), Some(length));
            assert_eq!(paths.find(HOST_SEED, text(length, 'x').as_bytes()), Some(length));
            assert_eq!(hosts.find(HOST_SEED, text(length, 'y').as_bytes()), None);
            assert_eq!(paths.find(HOST_SEED, text(length, 'X').as_bytes()), None);
            assert_eq!(paths.find(1, text(length, 'x').as_bytes()), None);
        }
        assert_eq!(TextIndex::<u32, true>::new(Vec::new()).find(HOST_SEED, b""), None);
    }

    /// Checks characters that share a hash because they differ in the same bit as upper and lower case.
    #[test]
    fn other_characters_do_not_count_as_another_case() {
        let indexed = IndexedText { seed: HOST_SEED, text: "a`{.test".into(), value: () };
        let hosts = TextIndex::<(), true>::new(vec![indexed]);
        assert_eq!(hosts.find(HOST_SEED, b"A`{.TEST"), Some(()));
        assert_eq!(hosts.find(HOST_SEED, b"a@[.test"), None);
        assert_eq!(hosts.find(HOST_SEED, b"a`{\x0etest"), None);
    }
}
