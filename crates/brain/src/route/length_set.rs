//! A set of lengths, in two words.

/// The lengths of some texts: exact below [`LONG`], above it only the largest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LengthSet {
    /// A bit for each length, and one for all lengths from [`LONG`].
    bits: u64,
    /// The largest length.
    longest: usize,
}

impl LengthSet {
    pub(super) fn insert(&mut self, length: usize) {
        self.bits |= 1 << length.min(LONG);
        self.longest = self.longest.max(length);
    }

    /// Returns `false` if a length is not in the set.
    pub(super) fn contains(&self, length: usize) -> bool {
        self.bits >> length.min(LONG) & 1 != 0
    }

    /// Returns the largest length of at most `limit` that may be in the set.
    pub(super) fn largest_up_to(&self, limit: usize) -> Option<usize> {
        let limit = limit.min(self.longest);
        if limit >= LONG {
            return Some(limit);
        }
        let shorter = self.bits & (u64::MAX >> (LONG - limit));
        shorter.checked_ilog2().map(|bit| bit as usize)
    }
}

/// The first length that shares its bit with all longer ones.
const LONG: usize = u64::BITS as usize - 1;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    fn descend(set: &LengthSet, limit: usize) -> Vec<usize> {
        let mut lengths = vec![];
        let mut next = Some(limit);
        while let Some(length) = next.and_then(|limit| set.largest_up_to(limit)) {
            lengths.push(length);
            next = length.checked_sub(1);
        }
        lengths
    }

    #[test]
    fn lengths_come_from_the_longest_to_the_shortest() {
        let mut set = LengthSet::default();
        assert!(descend(&set, 1000).is_empty());
        for length in [0, 3, 17, 62] {
            set.insert(length);
        }
        assert_eq!(descend(&set, 1000), [62, 17, 3, 0]);
        assert_eq!(descend(&set, 61), [17, 3, 0]);
        assert_eq!(descend(&set, 0), [0]);
        assert!(set.contains(17) && !set.contains(18) && !set.contains(63) && !set.contains(1000));
    }

    #[test]
    fn long_lengths_are_all_tried() {
        let mut set = LengthSet::default();
        set.insert(65);
        set.insert(5);
        assert_eq!(descend(&set, 1000), [65, 64, 63, 5]);
        assert_eq!(descend(&set, 63), [63, 5]);
        assert_eq!(descend(&set, 62), [5]);
    }
}
