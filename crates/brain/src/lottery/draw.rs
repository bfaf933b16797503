//! The draw: the server of a request, the same on every machine with the same weights.
//!
//! It is weighted rendezvous. Each member j draws h_j, uniform between 0 and 1, from the request. Its score
//! is w_j / -log2(h_j), and the order of the scores is the ranking (Thaler and Ravishankar, 1998;
//! Schindelhauer and Schomaker, 2005). Each wins as often as its weight demands; a change of one weight moves
//! only requests from or to that member; and the second member is known without another draw.
//!
//! All numbers are whole. The logarithm comes from a table of 257 entries in units of 2^-24, interpolated,
//! with an error of at most 2.8e-6. Scores are compared by cross-multiplication, which is exact. h_j is
//! SipHash-2-4 of request id, service and member number in this order, each as on the wire (big-endian): 14
//! bytes, of which the first eight are hashed once for all members.
//!
//! Only the first `k` by *capacity* over -log2(h) take part, with the same h. Capacities hardly ever change,
//! so all agree on the candidates, whatever their information about loads. As a weight is never far from its
//! capacity, these nearly always contain the winner by weight.

use super::siphash::{SipHashKey, SipHashState};
use super::weight_codec;

/// The maximum number of candidates of a request.
pub const CANDIDATES: usize = 8;

/// A member in the candidate set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawCandidate {
    /// Its number.
    pub member: u16,
    /// Its capacity beside the others, in any unit; 0 takes no part.
    pub capacity: u16,
    /// Its present weight, on the scale of [`weight_codec`]; 0 takes no part.
    pub weight: u16,
}

/// A candidate and its draw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScoredCandidate {
    /// The number of the member.
    pub member: u16,
    capacity: u16,
    /// The decoded weight: below 2^33.
    weight: u64,
    /// -log2(h), in 2^-24: 1 to 2^30.
    cost: u64,
}

impl ScoredCandidate {
    /// Returns `true` if it precedes `other` by weight.
    fn precedes_by_weight(&self, other: &Self) -> bool {
        has_higher_score((self.weight, self.cost, self.member), (other.weight, other.cost, other.member))
    }

    /// Returns `true` if it precedes `other` by capacity, on which all agree.
    fn precedes_by_capacity(&self, other: &Self) -> bool {
        let score = |candidate: &Self| (u64::from(candidate.capacity), candidate.cost, candidate.member);
        has_higher_score(score(self), score(other))
    }
}

/// Returns `true` if a's score is greater, for (weight, cost, member).
fn has_higher_score(a: (u64, u64, u16), b: (u64, u64, u16)) -> bool {
    // Below 2^33 times 2^30.
    let (left, right) = (a.0 * b.1, b.0 * a.1);
    left > right || (left == right && (a.1, a.2) < (b.1, b.2))
}

/// The candidates of a request, the winner first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CandidateRanking {
    candidates: [ScoredCandidate; CANDIDATES],
    count: usize,
}

impl CandidateRanking {
    /// Returns the candidates in order.
    pub fn candidates(&self) -> &[ScoredCandidate] {
        self.candidates.get(..self.count).unwrap_or(&[])
    }

    /// Returns the rank of a member, 0 for the winner.
    pub fn rank(&self, member: u16) -> Option<usize> {
        self.candidates().iter().position(|candidate| candidate.member == member)
    }

    /// Inserts `place` by `order` and returns its position. If there are more than `most`, the last one is
    /// dropped.
    fn insert(
        &mut self,
        candidate: ScoredCandidate,
        max_len: usize,
        precedes: fn(&ScoredCandidate, &ScoredCandidate) -> bool,
    ) -> Option<usize> {
        let index =
            self.candidates().iter().position(|other| precedes(&candidate, other)).unwrap_or(self.count);
        if index >= max_len {
            return None;
        }
        self.count = (self.count + 1).min(max_len);
        // `at` < `most` <= CANDIDATES, and `count` > `at`.
        self.candidates[index..self.count].rotate_right(1);
        self.candidates[index] = candidate;
        Some(index)
    }
}

/// Returns the `k` candidates (at most [`CANDIDATES`]) of request `id` for `service`, in order.
pub fn rank(
    key: &SipHashKey,
    id: u64,
    service: u32,
    candidates: impl IntoIterator<Item = DrawCandidate>,
    k: usize,
) -> CandidateRanking {
    let mut state = key.initial_state();
    state.absorb(u64::from_le_bytes(id.to_be_bytes()));
    let max_candidates = k.min(CANDIDATES);
    let (mut by_capacity, mut hashes) = (CandidateRanking::default(), [0; CANDIDATES]);
    // Once there are enough: a member whose hash is below `bar`, with no more capacity than the last of them,
    // certainly comes after that one, so that most need no logarithm. The margin is a part in 256, because
    // neighbours may have the same cost.
    let (mut max_skipped_hash, mut min_capacity) = (0, 0);
    for candidate in candidates {
        if candidate.capacity == 0 || candidate.weight == 0 {
            continue;
        }
        let hash = hash(state, service, candidate.member);
        if hash < max_skipped_hash && candidate.capacity <= min_capacity {
            continue;
        }
        let DrawCandidate { member, capacity, weight } = candidate;
        // Decoded once it is needed.
        let scored = ScoredCandidate { member, capacity, weight: u64::from(weight), cost: cost(hash) };
        if let Some(index) = by_capacity.insert(scored, max_candidates, ScoredCandidate::precedes_by_capacity)
        {
            hashes[index..by_capacity.count].rotate_right(1);
            hashes[index] = hash;
            if by_capacity.count == max_candidates {
                let last = hashes[max_candidates - 1];
                (max_skipped_hash, min_capacity) =
                    (last - (last >> 8), by_capacity.candidates[max_candidates - 1].capacity);
            }
        }
    }
    let mut ranking = CandidateRanking::default();
    for scored in by_capacity.candidates() {
        // It is still the code of an entrant.
        let weight = weight_codec::decode(scored.weight as u16);
        ranking.insert(
            ScoredCandidate { weight, ..*scored },
            max_candidates,
            ScoredCandidate::precedes_by_weight,
        );
    }
    ranking
}

/// Returns the hash with the last six of the fourteen bytes, and their number.
fn hash(state: SipHashState, service: u32, member: u16) -> u64 {
    let [a, b, c, d] = service.to_be_bytes();
    let [e, f] = member.to_be_bytes();
    state.finish(u64::from_le_bytes([a, b, c, d, e, f, 0, 14]))
}

/// Returns -log2(hash / 2^64) in units of 2^-24: 1 to 2^30.
fn cost(hash: u64) -> u64 {
    let hash = hash | 1;
    let zeros = hash.leading_zeros();
    // 1.xxx in binary: eight bits choose the entry, the next 24 go between it and the following one.
    let mantissa = hash << zeros;
    let index = (mantissa >> 55 & 0xff) as usize;
    let (low, high) = (u64::from(LOG[index]), u64::from(LOG[index + 1]));
    let log = low + (((high - low) * (mantissa >> 31 & 0xff_ffff)) >> 24);
    (((u64::from(zeros) + 1) << 24) - log).max(1)
}

/// log2(1 + i / 256) in units of 2^-24, for i from 0 to 256.
static LOG: [u32; 257] = log_table();

/// Computes the table bit after bit: the square of a number has twice its logarithm.
const fn log_table() -> [u32; 257] {
    let mut table = [0; 257];
    let mut index = 0;
    while index <= 256 {
        // Between 1 and 2, in units of 2^-62.
        let mut number = (256 + index as u128) << 54;
        let mut log = 0_u64;
        if index == 256 {
            log = 1 << 28;
        }
        let mut bit = 0;
        while bit < 28 && index < 256 {
            number = (number * number) >> 62;
            log <<= 1;
            if number >> 63 != 0 {
                log |= 1;
                number >>= 1;
            }
            bit += 1;
        }
        table[index] = ((log + 8) >> 4) as u32;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::mix;

    fn key() -> SipHashKey {
        SipHashKey::new(*b"of sixteen bytes")
    }

    fn candidates_of(weights: &[u16]) -> Vec<DrawCandidate> {
        (1..)
            .zip(weights)
            .map(|(member, weight)| DrawCandidate {
                member,
                capacity: *weight,
                weight: weight_codec::encode(f64::from(*weight)),
            })
            .collect()
    }

    #[test]
    fn the_logarithm_is_as_good_as_it_says() {
        let (mut max_error, mut min_cost, mut max_cost) = (0.0_f64, u64::MAX, 0);
        for input in 0..200_000_u64 {
            let hash = mix(input) >> (input % 40);
            let exact = 64.0 - libm::log2((hash | 1) as f64);
            let approximate = cost(hash);
            max_error = max_error.max((approximate as f64 / f64::from(1 << 24) - exact).abs());
            (min_cost, max_cost) = (min_cost.min(approximate), max_cost.max(approximate));
        }
        assert!(max_error < 2.9e-6, "{max_error:e}");
        assert!(
            (cost(u64::MAX), cost(0), cost(1 << 63)) == (1, 64 << 24, 1 << 24)
                && min_cost > 0
                && max_cost <= 1 << 30
        );
        assert!((1..=256).all(|index| LOG[index] > LOG[index - 1]));
    }

    /// Checks fixed values, because daemons of different releases agree only as long as these stand.
    #[test]
    fn values_are_forever() {
        let candidates = candidates_of(&[1, 2, 4, 8, 2, 1, 2, 4, 8, 2]);
        let ranked_members = |id| {
            rank(&key(), id, 80, candidates.clone(), 4)
                .candidates()
                .iter()
                .map(|scored| scored.member)
                .collect::<Vec<_>>()
        };
        assert_eq!(LOG[..4], GOLDEN_LOG);
        assert_eq!((0..6).map(ranked_members).collect::<Vec<_>>(), GOLDEN);
        let ranking = rank(&key(), 0x0102_0304_0506_0708, 0x0a0b_0c0d, candidates_of(&[1]), 1);
        assert_eq!(
            ranking.candidates()[0].cost,
            cost(key().hash(&[1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 0, 1]))
        );
    }

    /// Checks that a member without a computed logarithm would not have been a candidate.
    #[test]
    fn who_is_passed_over_would_not_have_been_a_candidate() {
        for seed in 0..3_000_u64 {
            let count = 1 + mix(seed) % 120;
            let same_capacity = seed % 3 == 0;
            let candidates: Vec<DrawCandidate> = (0..count)
                .map(|member| {
                    let bits = mix(seed << 8 | member);
                    let capacity = if same_capacity { 4 } else { 1 + (bits >> 20) as u16 % 300 };
                    DrawCandidate {
                        member: 1 + member as u16,
                        capacity,
                        weight: weight_codec::encode(f64::from(1 + (bits as u16 % 900))),
                    }
                })
                .collect();
            let k = 1 + (seed % 8) as usize;
            let mut state = key().initial_state();
            state.absorb(u64::from_le_bytes(seed.to_be_bytes()));
            let mut expected: Vec<ScoredCandidate> = candidates
                .iter()
                .map(|candidate| ScoredCandidate {
                    member: candidate.member,
                    capacity: candidate.capacity,
                    weight: weight_codec::decode(candidate.weight),
                    cost: cost(hash(state, 80, candidate.member)),
                })
                .collect();
            let order = |precedes: fn(&ScoredCandidate, &ScoredCandidate) -> bool| {
                move |a: &ScoredCandidate, b: &ScoredCandidate| {
                    if precedes(a, b) { core::cmp::Ordering::Less } else { core::cmp::Ordering::Greater }
                }
            };
            expected.sort_by(order(ScoredCandidate::precedes_by_capacity));
            expected.truncate(k);
            expected.sort_by(order(ScoredCandidate::precedes_by_weight));
            assert_eq!(rank(&key(), seed, 80, candidates, k).candidates(), expected, "{seed}");
        }
    }

    const GOLDEN_LOG: [u32; 4] = [0, 94_364, 188_362, 281_996];
    /// The results of another program, which takes the logarithms in floating point.
    const GOLDEN: [[u16; 4]; 6] =
        [[9, 3, 4, 1], [8, 4, 7, 9], [9, 4, 8, 7], [9, 8, 7, 2], [10, 8, 2, 9], [9, 8, 4, 1]];

    #[test]
    fn shares_are_weights() {
        for k in [4, 8] {
            let weights = [1, 2, 4, 8, 2, 3, 5, 1];
            let candidates = candidates_of(&weights);
            let draws = 100_000;
            let mut wins = vec![0_u32; weights.len()];
            for seed in 0..draws {
                let ranking = rank(&key(), mix(seed), 7, candidates.clone(), k);
                wins[usize::from(ranking.candidates()[0].member) - 1] += 1;
            }
            let sum: u64 = candidates.iter().map(|candidate| weight_codec::decode(candidate.weight)).sum();
            let chi: f64 = wins
                .iter()
                .zip(&candidates)
                .map(|(wins, candidate)| {
                    let expected = draws as f64 * weight_codec::decode(candidate.weight) as f64 / sum as f64;
                    (f64::from(*wins) - expected).powi(2) / expected
                })
                .sum();
            // Seven degrees of freedom: above this with one key in a thousand.
            assert!(chi < 24.3, "k = {k}: {chi} from {wins:?}");
        }
    }

    #[test]
    fn a_changed_weight_moves_only_requests_of_that_member() {
        let original = candidates_of(&[4, 4, 4, 4, 4, 4]);
        let mut changed = original.clone();
        changed[2].weight -= 16;
        let (mut moved_from_changed, mut other_moves) = (0, 0);
        for seed in 0..20_000 {
            let winner = |candidates: &[DrawCandidate]| {
                rank(&key(), mix(seed), 7, candidates.to_vec(), 6).candidates()[0].member
            };
            match (winner(&original), winner(&changed)) {
                (3, new_winner) => moved_from_changed += u32::from(new_winner != 3),
                (old_winner, new_winner) => other_moves += u32::from(old_winner != new_winner),
            }
        }
        assert_eq!(other_moves, 0, "a lower weight takes from nobody else");
        // From a share of 1/6 to one of 1/11.
        assert!(
            (f64::from(moved_from_changed) / 20_000.0 - (1.0 / 6.0 - 1.0 / 11.0)).abs() < 0.006,
            "{moved_from_changed}"
        );
    }

    #[test]
    fn the_first_by_capacity_are_nearly_always_enough() {
        let mut candidates = candidates_of(&[2; 50]);
        for (candidate, seed) in candidates.iter_mut().zip(0_u64..) {
            candidate.weight = weight_codec::encode(2.0 * (0.5 + crate::hash::unit(mix(seed))));
        }
        let differing = (0..5_000)
            .filter(|seed| {
                let winner = |k| {
                    // All 50 cannot be ranked: the winner of all is the best of the winners of tens.
                    let mut best: Option<ScoredCandidate> = None;
                    for chunk in candidates.chunks(if k == 8 { 8 } else { 50 }) {
                        for scored in rank(&key(), mix(*seed), 7, chunk.to_vec(), k).candidates() {
                            if best.is_none_or(|best| scored.precedes_by_weight(&best)) {
                                best = Some(*scored);
                            }
                        }
                    }
                    best.map(|scored| scored.member)
                };
                winner(4) != winner(8)
            })
            .count();
        assert!(differing < 250, "{differing} of 5000");
    }

    #[test]
    fn nobody_without_weight_or_capacity_is_drawn() {
        let candidates = [(1, 0, 128), (2, 5, 0), (3, 1, 1), (4, u16::MAX, u16::MAX)]
            .map(|(member, capacity, weight)| DrawCandidate { member, capacity, weight });
        for seed in 0..100 {
            let ranking = rank(&key(), mix(seed), 7, candidates, 4);
            assert!(
                ranking.candidates().len() == 2 && ranking.rank(1).is_none() && ranking.rank(2).is_none()
            );
        }
        assert!(rank(&key(), 1, 1, [], 4).candidates().is_empty());
        assert!(rank(&key(), 1, 1, candidates, 0).candidates().is_empty());
        assert_eq!(rank(&key(), 1, 1, candidates_of(&[1; 100]), 99).candidates().len(), CANDIDATES);
    }
}
