//! The members of a group together: the stations of its requests, also with changed members.
//!
//! If the strategy sends less to members with more load, a request that would wait at one member goes to
//! another. The members together are then one station with the servers of all. Otherwise each member is a
//! station of its own with its part of the requests, and the group is saturated when the first of them is.

use alloc::vec;
use alloc::vec::Vec;

use super::curve::{self, Station};

/// A member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MemberCapacity {
    /// The requests a second, and the ends of the interval; the upper one may be infinite.
    pub(super) capacity: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// `true` if the upper end comes from its peers rather than from its own requests.
    pub(super) from_peers: bool,
    pub(super) servers: f64,
    pub(super) shared: bool,
    /// The seconds of a request alone.
    pub(super) base: f64,
    /// Its part of the requests; the parts of all members add up to 1.
    pub(super) part: f64,
}

/// The usable members.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupCapacity {
    pub(super) members: Vec<MemberCapacity>,
    /// Whether the strategy sends less to members with more load.
    pub(super) by_load: bool,
    /// The part of the variance of guesses that all of them share.
    pub(super) shared_variance: f64,
}

/// The requests a second that members can serve together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CapacityRange {
    pub(super) low: f64,
    pub(super) best: f64,
    /// The upper end, infinite if nothing bounds it.
    pub(super) high: f64,
    /// `true` if it is narrow enough to be shown as a number rather than as a range.
    pub(super) proven: bool,
}

impl GroupCapacity {
    /// Returns `true` if at least half of the members are known.
    pub(super) fn is_known(&self) -> bool {
        2 * self.members.iter().filter(|member| !member.from_peers).count() >= self.members.len()
    }

    /// Returns the capacity of all members together, at most `most` (that of the balancer); `None` without
    /// members.
    pub(super) fn capacity_range(&self, max_capacity: f64) -> Option<CapacityRange> {
        if self.members.is_empty() {
            return None;
        }
        let [low, best, high] =
            self.range_of(|member| (member.low, member.high)).map(|bound| bound.min(max_capacity));
        // As if known members were known exactly.
        let likely_range = |member: &MemberCapacity| {
            if member.from_peers { (member.low, member.high) } else { (member.capacity, member.capacity) }
        };
        let [min_likely, _, max_likely] = self.range_of(likely_range).map(|bound| bound.min(max_capacity));
        let proven =
            self.is_known() && high <= MAX_PROVEN_RATIO * low && max_likely <= MAX_LIKELY_RATIO * min_likely;
        Some(CapacityRange { low, best, high, proven })
    }

    /// Returns the lower end, the best estimate and the upper end for all members, given the ends of each.
    ///
    /// Known members are measured the same way, so their errors add up. The upper ends of unknown members err
    /// independently, except for the mean of their peers: variances add up. Lower ends are no estimates, and
    /// add up.
    fn range_of(&self, range: impl Fn(&MemberCapacity) -> (f64, f64)) -> [f64; 3] {
        if !self.by_load {
            let first_full = |bound: &dyn Fn(&MemberCapacity) -> f64| {
                self.members
                    .iter()
                    .map(|member| bound(member) / member.part.max(1e-12))
                    .fold(f64::INFINITY, f64::min)
            };
            return [
                first_full(&|mate| range(mate).0),
                first_full(&|mate| mate.capacity),
                first_full(&|mate| range(mate).1),
            ];
        }
        let low = self.members.iter().map(|member| range(member).0).sum();
        let best: f64 = self.members.iter().map(|member| member.capacity).sum();
        let excess = |from_peers: bool| {
            self.members
                .iter()
                .filter(move |member| member.from_peers == from_peers)
                .map(|member| range(member).1 - member.capacity)
        };
        let (known_excess, guessed_excess): (f64, f64) = (excess(false).sum(), excess(true).sum());
        if !(known_excess + guessed_excess).is_finite() {
            return [low, best, f64::INFINITY];
        }
        let independent_variance: f64 = excess(true).map(|excess| excess * excess).sum();
        let variance = known_excess * known_excess
            + (1.0 - self.shared_variance) * independent_variance
            + self.shared_variance * guessed_excess * guessed_excess;
        [low, best, best + libm::sqrt(variance)]
    }

    /// Returns the stations of the requests.
    pub(super) fn stations(&self) -> Vec<Station> {
        if self.members.is_empty() {
            return Vec::new();
        }
        if self.by_load {
            let sum = |value: fn(&MemberCapacity) -> f64| self.members.iter().map(value).sum::<f64>();
            let capacity = sum(|member| member.capacity);
            let shared = 2 * self.members.iter().filter(|member| member.shared).count() >= self.members.len();
            let base = sum(|member| member.base * member.capacity) / capacity;
            return vec![Station {
                capacity,
                servers: sum(|member| member.servers),
                base,
                shared,
                part: 1.0,
            }];
        }
        let station = |member: &MemberCapacity| Station {
            capacity: member.capacity,
            servers: member.servers,
            base: member.base,
            shared: member.shared,
            part: member.part,
        };
        let mut stations: Vec<Station> = self.members.iter().map(station).collect();
        if stations.len() > MAX_STATIONS {
            stations = merge_stations(stations);
        }
        stations
    }

    /// Returns the group without its strongest member; `None` if it would be empty.
    pub(super) fn minus_one(&self) -> Option<Self> {
        let by_capacity = |left: &usize, right: &usize| {
            self.members[*left].capacity.total_cmp(&self.members[*right].capacity)
        };
        let largest = (0..self.members.len()).max_by(by_capacity)?;
        let mut members = self.members.clone();
        let remaining_share = 1.0 - members.remove(largest).part;
        let equal = 1.0 / members.len() as f64;
        members.iter_mut().for_each(|member| {
            member.part = if remaining_share > 0.0 { member.part / remaining_share } else { equal }
        });
        (!members.is_empty()).then_some(Self { members, ..*self })
    }

    /// Returns the group with one more member like the median one; `None` if it is empty.
    pub(super) fn plus_one(&self) -> Option<Self> {
        let mut members = self.members.clone();
        members.sort_by(|left, right| left.capacity.total_cmp(&right.capacity));
        let median = *members.get(members.len() / 2)?;
        let total_share = 1.0 + median.part;
        members.push(median);
        members.iter_mut().for_each(|member| member.part /= total_share);
        Some(Self { members, ..*self })
    }
}

/// Returns the parts of a whole in proportion to weights; equal parts without weights.
pub(super) fn shares(weights: &[f64]) -> Vec<f64> {
    let total_weight: f64 = weights.iter().sum();
    let equal = 1.0 / weights.len().max(1) as f64;
    weights.iter().map(|weight| if total_weight > 0.0 { weight / total_weight } else { equal }).collect()
}

/// Returns the parts by the requests of each member, for strategies without fixed shares.
///
/// Chance alone makes the greatest of many parts greater than it is, the more so the fewer requests there
/// were. So parts are shrunk towards those of the weights by the part of their difference that chance
/// explains (James and Stein 1961; by the chi-squared of all of them).
pub(super) fn shares_by_requests(counts: &[f64], weights: &[f64]) -> Vec<f64> {
    let expected = shares(weights);
    let total_count: f64 = counts.iter().sum();
    if total_count <= 0.0 {
        return expected;
    }
    let squared_deviation = |(count, share): (&f64, &f64)| {
        let deviation = count - total_count * share;
        deviation * deviation / (total_count * share).max(1e-9)
    };
    let squares: f64 = counts.iter().zip(&expected).map(squared_deviation).sum();
    let expected_squares = (counts.len() as f64 - 1.0).max(0.0);
    let real_share = if squares > expected_squares { 1.0 - expected_squares / squares } else { 0.0 };
    counts
        .iter()
        .zip(&expected)
        .map(|(count, share)| share + real_share * (count / total_count - share))
        .collect()
}

/// Returns a few stations that represent all, the fullest as it is.
fn merge_stations(mut stations: Vec<Station>) -> Vec<Station> {
    let fullness = |station: &Station| station.part / station.capacity;
    stations.sort_by(|left, right| fullness(right).total_cmp(&fullness(left)));
    let group_len = stations.len().div_ceil(MAX_STATIONS);
    let merge = |group: &[Station]| {
        let part = group.iter().map(|station| station.part).sum();
        // Like the fullest of them.
        Station { capacity: group[0].capacity / group[0].part.max(1e-12) * part, part, ..group[0] }
    };
    let mut merged = vec![stations[0]];
    // Its capacity for more requests comes with more servers of the same kind.
    merged.extend(
        stations[1..].chunks(group_len).map(|group| Station { servers: group[0].servers, ..merge(group) }),
    );
    merged
}

/// Returns the load above which the group is saturated.
pub(super) fn saturation(stations: &[Station]) -> Option<f64> {
    Some(curve::saturation(stations)).filter(|load| load.is_finite() && *load > 0.0)
}

/// The greatest ratio of the ends of a number: as if known members were known exactly, and with their errors.
const MAX_LIKELY_RATIO: f64 = 2.0;
const MAX_PROVEN_RATIO: f64 = 3.0;

/// The maximum number of stations, which bounds the work for each.
const MAX_STATIONS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn member(capacity: f64, part: f64) -> MemberCapacity {
        MemberCapacity {
            capacity,
            low: capacity,
            high: capacity,
            from_peers: false,
            servers: 2.0,
            shared: true,
            base: 0.02,
            part,
        }
    }

    fn group(by_load: bool) -> GroupCapacity {
        GroupCapacity {
            members: vec![member(100.0, 0.25), member(200.0, 0.25), member(100.0, 0.5)],
            by_load,
            shared_variance: 0.5,
        }
    }

    #[test]
    fn who_goes_by_load_uses_all_and_who_does_not_ends_with_the_first() {
        assert_eq!(saturation(&group(true).stations()), Some(400.0));
        assert_eq!(saturation(&group(false).stations()), Some(200.0));
        assert_eq!(saturation(&GroupCapacity::default().stations()), None);
    }

    #[test]
    fn a_number_is_narrow_and_mostly_measured() {
        let capacity_range = |members: &[MemberCapacity], by_load| {
            GroupCapacity { members: members.to_vec(), by_load, shared_variance: 0.5 }
                .capacity_range(f64::INFINITY)
                .unwrap()
        };
        let uncertain_member =
            |capacity| MemberCapacity { low: 0.8 * capacity, high: 1.5 * capacity, ..member(capacity, 0.5) };
        let guessed_member = |low, high| MemberCapacity { low, high, from_peers: true, ..member(100.0, 0.5) };
        // Members measured the same way err together.
        let range = capacity_range(&[uncertain_member(100.0); 2], true);
        assert_eq!(range, CapacityRange { low: 160.0, best: 200.0, high: 300.0, proven: true });
        let wide_member = MemberCapacity { high: 400.0, ..uncertain_member(100.0) };
        assert!(!capacity_range(&[wide_member; 2], true).proven);
        // Guesses partly do not.
        let range = capacity_range(&[member(100.0, 0.5), guessed_member(50.0, 200.0)], true);
        assert_eq!(range, CapacityRange { low: 150.0, best: 200.0, high: 300.0, proven: true });
        let range = capacity_range(
            &[
                member(100.0, 0.5),
                member(100.0, 0.5),
                guessed_member(50.0, 200.0),
                guessed_member(50.0, 200.0),
            ],
            true,
        );
        assert!(range.low == 300.0 && range.high > 570.0 && range.high < 600.0 && range.proven, "{range:?}");
        // The guessed part must not exceed the measured one, nor cover most members.
        assert!(!capacity_range(&[member(100.0, 0.5), guessed_member(20.0, 300.0)], true).proven);
        assert!(
            !capacity_range(
                &[member(100.0, 0.5), guessed_member(90.0, 110.0), guessed_member(90.0, 110.0)],
                true
            )
            .proven
        );
        let unbounded_member = MemberCapacity { high: f64::INFINITY, ..guessed_member(20.0, 0.0) };
        let range = capacity_range(&[member(100.0, 0.5), unbounded_member], true);
        assert!(range.low == 120.0 && range.high.is_infinite() && !range.proven, "{range:?}");
        // With turns the first full member counts, which may be the one that was seen to do least.
        let range = capacity_range(&[member(100.0, 0.5), guessed_member(20.0, 300.0)], false);
        assert_eq!(range, CapacityRange { low: 40.0, best: 200.0, high: 200.0, proven: false });
        let range = capacity_range(&[member(100.0, 0.5), guessed_member(120.0, 300.0)], false);
        assert_eq!(range, CapacityRange { low: 200.0, best: 200.0, high: 200.0, proven: true });
        // The balancer bounds the members.
        let group = GroupCapacity {
            members: vec![guessed_member(20.0, f64::INFINITY); 2],
            by_load: true,
            shared_variance: 0.5,
        };
        assert_eq!(
            group.capacity_range(70.0),
            Some(CapacityRange { low: 40.0, best: 70.0, high: 70.0, proven: false })
        );
        assert_eq!(GroupCapacity::default().capacity_range(70.0), None);
    }

    #[test]
    fn parts_differ_by_more_than_chance_or_not_at_all() {
        assert_eq!(shares(&[1.0, 3.0]), [0.25, 0.75]);
        assert_eq!(shares(&[0.0, 0.0]), [0.5, 0.5]);
        // Nine and a half, give or take three.
        let found_shares = shares_by_requests(&[9.0, 12.0, 7.0, 10.0], &[1.0; 4]);
        assert!(found_shares.iter().all(|part| (part - 0.25).abs() < 1e-9), "{found_shares:?}");
        // Far from the weights.
        let found_shares = shares_by_requests(&[9000.0, 1000.0], &[1.0, 1.0]);
        assert!(
            (found_shares[0] - 0.9).abs() < 0.001 && (found_shares[1] - 0.1).abs() < 0.001,
            "{found_shares:?}"
        );
        assert_eq!(shares_by_requests(&[0.0, 0.0], &[1.0, 3.0]), [0.25, 0.75]);
        let found_shares = shares_by_requests(&[50.0, 0.0], &[0.0, 1.0]);
        assert!(found_shares[0] > 0.99, "{found_shares:?}");
    }

    #[test]
    fn one_less_and_one_more() {
        let smaller_group = group(true).minus_one().unwrap();
        assert_eq!(saturation(&smaller_group.stations()), Some(200.0));
        let smaller_group = group(false).minus_one().unwrap();
        assert!((saturation(&smaller_group.stations()).unwrap() - 150.0).abs() < 1e-9);
        assert_eq!(saturation(&group(true).plus_one().unwrap().stations()), Some(500.0));
        let single_member =
            GroupCapacity { members: vec![member(100.0, 1.0)], by_load: true, shared_variance: 0.5 };
        assert!(single_member.minus_one().is_none() && GroupCapacity::default().plus_one().is_none());
        assert!(GroupCapacity::default().minus_one().is_none());
    }

    #[test]
    fn many_members_become_few_stations() {
        let part = 1.0 / 200.0;
        let mut members = vec![member(100.0, part); 200];
        members[77].capacity = 50.0;
        let stations = GroupCapacity { members, by_load: false, shared_variance: 0.5 }.stations();
        assert!(stations.len() <= MAX_STATIONS + 1);
        assert!((stations.iter().map(|station| station.part).sum::<f64>() - 1.0).abs() < 1e-9);
        assert!((saturation(&stations).unwrap() - 10_000.0).abs() < 1e-6);
    }
}
