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
        2 * self.members.iter().filter(|mate| !mate.from_peers).count() >= self.members.len()
    }

    /// Returns the capacity of all members together, at most `most` (that of the balancer); `None` without
    /// members.
    pub(super) fn capacity_range(&self, most: f64) -> Option<CapacityRange> {
        if self.members.is_empty() {
            return None;
        }
        let [low, best, high] = self.range_of(|mate| (mate.low, mate.high)).map(|end| end.min(most));
        // As if known members were known exactly.
        let sure = |mate: &MemberCapacity| {
            if mate.from_peers { (mate.low, mate.high) } else { (mate.capacity, mate.capacity) }
        };
        let [least, _, greatest] = self.range_of(sure).map(|end| end.min(most));
        let proven = self.is_known() && high <= PROVEN * low && greatest <= GUESSED * least;
        Some(CapacityRange { low, best, high, proven })
    }

    /// Returns the lower end, the best estimate and the upper end for all members, given the ends of each.
    ///
    /// Known members are measured the same way, so their errors add up. The upper ends of unknown members err
    /// independently, except for the mean of their peers: variances add up. Lower ends are no estimates, and
    /// add up.
    fn range_of(&self, of: impl Fn(&MemberCapacity) -> (f64, f64)) -> [f64; 3] {
        if !self.by_load {
            let first = |end: &dyn Fn(&MemberCapacity) -> f64| {
                self.members.iter().map(|mate| end(mate) / mate.part.max(1e-12)).fold(f64::INFINITY, f64::min)
            };
            return [first(&|mate| of(mate).0), first(&|mate| mate.capacity), first(&|mate| of(mate).1)];
        }
        let low = self.members.iter().map(|mate| of(mate).0).sum();
        let best: f64 = self.members.iter().map(|mate| mate.capacity).sum();
        let more = |guess: bool| {
            self.members
                .iter()
                .filter(move |mate| mate.from_peers == guess)
                .map(|mate| of(mate).1 - mate.capacity)
        };
        let (known, guessed): (f64, f64) = (more(false).sum(), more(true).sum());
        if !(known + guessed).is_finite() {
            return [low, best, f64::INFINITY];
        }
        let apart: f64 = more(true).map(|more| more * more).sum();
        let variance =
            known * known + (1.0 - self.shared_variance) * apart + self.shared_variance * guessed * guessed;
        [low, best, best + libm::sqrt(variance)]
    }

    /// Returns the stations of the requests.
    pub(super) fn stations(&self) -> Vec<Station> {
        if self.members.is_empty() {
            return Vec::new();
        }
        if self.by_load {
            let sum = |of: fn(&MemberCapacity) -> f64| self.members.iter().map(of).sum::<f64>();
            let capacity = sum(|mate| mate.capacity);
            let shared = 2 * self.members.iter().filter(|mate| mate.shared).count() >= self.members.len();
            let base = sum(|mate| mate.base * mate.capacity) / capacity;
            return vec![Station { capacity, servers: sum(|mate| mate.servers), base, shared, part: 1.0 }];
        }
        let station = |mate: &MemberCapacity| Station {
            capacity: mate.capacity,
            servers: mate.servers,
            base: mate.base,
            shared: mate.shared,
            part: mate.part,
        };
        let mut stations: Vec<Station> = self.members.iter().map(station).collect();
        if stations.len() > MOST {
            stations = thinned(stations);
        }
        stations
    }

    /// Returns the group without its strongest member; `None` if it would be empty.
    pub(super) fn minus_one(&self) -> Option<Self> {
        let by_capacity = |one: &usize, other: &usize| {
            self.members[*one].capacity.total_cmp(&self.members[*other].capacity)
        };
        let largest = (0..self.members.len()).max_by(by_capacity)?;
        let mut mates = self.members.clone();
        let left = 1.0 - mates.remove(largest).part;
        let equal = 1.0 / mates.len() as f64;
        mates.iter_mut().for_each(|mate| mate.part = if left > 0.0 { mate.part / left } else { equal });
        (!mates.is_empty()).then_some(Self { members: mates, ..*self })
    }

    /// Returns the group with one more member like the median one; `None` if it is empty.
    pub(super) fn plus_one(&self) -> Option<Self> {
        let mut mates = self.members.clone();
        mates.sort_by(|one, other| one.capacity.total_cmp(&other.capacity));
        let median = *mates.get(mates.len() / 2)?;
        let all = 1.0 + median.part;
        mates.push(median);
        mates.iter_mut().for_each(|mate| mate.part /= all);
        Some(Self { members: mates, ..*self })
    }
}

/// Returns the parts of a whole in proportion to weights; equal parts without weights.
pub(super) fn shares(weights: &[f64]) -> Vec<f64> {
    let all: f64 = weights.iter().sum();
    let equal = 1.0 / weights.len().max(1) as f64;
    weights.iter().map(|weight| if all > 0.0 { weight / all } else { equal }).collect()
}

/// Returns the parts by the requests of each member, for strategies without fixed shares.
///
/// Chance alone makes the greatest of many parts greater than it is, the more so the fewer requests there
/// were. So parts are shrunk towards those of the weights by the part of their difference that chance
/// explains (James and Stein 1961; by the chi-squared of all of them).
pub(super) fn shares_by_requests(counts: &[f64], weights: &[f64]) -> Vec<f64> {
    let expected = shares(weights);
    let all: f64 = counts.iter().sum();
    if all <= 0.0 {
        return expected;
    }
    let off = |(count, share): (&f64, &f64)| {
        let off = count - all * share;
        off * off / (all * share).max(1e-9)
    };
    let squares: f64 = counts.iter().zip(&expected).map(off).sum();
    let chance = (counts.len() as f64 - 1.0).max(0.0);
    let real = if squares > chance { 1.0 - chance / squares } else { 0.0 };
    counts.iter().zip(&expected).map(|(count, share)| share + real * (count / all - share)).collect()
}

/// Returns a few stations that represent all, the fullest as it is.
fn thinned(mut stations: Vec<Station>) -> Vec<Station> {
    let fullness = |station: &Station| station.part / station.capacity;
    stations.sort_by(|one, other| fullness(other).total_cmp(&fullness(one)));
    let each = stations.len().div_ceil(MOST);
    let merge = |some: &[Station]| {
        let part = some.iter().map(|station| station.part).sum();
        // Like the fullest of them.
        Station { capacity: some[0].capacity / some[0].part.max(1e-12) * part, part, ..some[0] }
    };
    let mut kept = vec![stations[0]];
    // Its capacity for more requests comes with more servers of the same kind.
    kept.extend(stations[1..].chunks(each).map(|some| Station { servers: some[0].servers, ..merge(some) }));
    kept
}

/// Returns the load above which the group is saturated.
pub(super) fn saturation(stations: &[Station]) -> Option<f64> {
    Some(curve::saturation(stations)).filter(|load| load.is_finite() && *load > 0.0)
}

/// The greatest ratio of the ends of a number: as if known members were known exactly, and with their errors.
const GUESSED: f64 = 2.0;
const PROVEN: f64 = 3.0;

/// The maximum number of stations, which bounds the work for each.
const MOST: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn mate(capacity: f64, part: f64) -> MemberCapacity {
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

    fn crew(by_load: bool) -> GroupCapacity {
        GroupCapacity {
            members: vec![mate(100.0, 0.25), mate(200.0, 0.25), mate(100.0, 0.5)],
            by_load,
            shared_variance: 0.5,
        }
    }

    #[test]
    fn who_goes_by_load_uses_all_and_who_does_not_ends_with_the_first() {
        assert_eq!(saturation(&crew(true).stations()), Some(400.0));
        assert_eq!(saturation(&crew(false).stations()), Some(200.0));
        assert_eq!(saturation(&GroupCapacity::default().stations()), None);
    }

    #[test]
    fn a_number_is_narrow_and_mostly_measured() {
        let reach = |mates: &[MemberCapacity], by_load| {
            GroupCapacity { members: mates.to_vec(), by_load, shared_variance: 0.5 }
                .capacity_range(f64::INFINITY)
                .unwrap()
        };
        let vague =
            |capacity| MemberCapacity { low: 0.8 * capacity, high: 1.5 * capacity, ..mate(capacity, 0.5) };
        let guess = |low, high| MemberCapacity { low, high, from_peers: true, ..mate(100.0, 0.5) };
        // Members measured the same way err together.
        let known = reach(&[vague(100.0); 2], true);
        assert_eq!(known, CapacityRange { low: 160.0, best: 200.0, high: 300.0, proven: true });
        let wide = MemberCapacity { high: 400.0, ..vague(100.0) };
        assert!(!reach(&[wide; 2], true).proven);
        // Guesses partly do not.
        let found = reach(&[mate(100.0, 0.5), guess(50.0, 200.0)], true);
        assert_eq!(found, CapacityRange { low: 150.0, best: 200.0, high: 300.0, proven: true });
        let found =
            reach(&[mate(100.0, 0.5), mate(100.0, 0.5), guess(50.0, 200.0), guess(50.0, 200.0)], true);
        assert!(found.low == 300.0 && found.high > 570.0 && found.high < 600.0 && found.proven, "{found:?}");
        // The guessed part must not exceed the measured one, nor cover most members.
        assert!(!reach(&[mate(100.0, 0.5), guess(20.0, 300.0)], true).proven);
        assert!(!reach(&[mate(100.0, 0.5), guess(90.0, 110.0), guess(90.0, 110.0)], true).proven);
        let nothing = MemberCapacity { high: f64::INFINITY, ..guess(20.0, 0.0) };
        let found = reach(&[mate(100.0, 0.5), nothing], true);
        assert!(found.low == 120.0 && found.high.is_infinite() && !found.proven, "{found:?}");
        // With turns the first full member counts, which may be the one that was seen to do least.
        let found = reach(&[mate(100.0, 0.5), guess(20.0, 300.0)], false);
        assert_eq!(found, CapacityRange { low: 40.0, best: 200.0, high: 200.0, proven: false });
        let found = reach(&[mate(100.0, 0.5), guess(120.0, 300.0)], false);
        assert_eq!(found, CapacityRange { low: 200.0, best: 200.0, high: 200.0, proven: true });
        // The balancer bounds the members.
        let crew = GroupCapacity {
            members: vec![guess(20.0, f64::INFINITY); 2],
            by_load: true,
            shared_variance: 0.5,
        };
        assert_eq!(
            crew.capacity_range(70.0),
            Some(CapacityRange { low: 40.0, best: 70.0, high: 70.0, proven: false })
        );
        assert_eq!(GroupCapacity::default().capacity_range(70.0), None);
    }

    #[test]
    fn parts_differ_by_more_than_chance_or_not_at_all() {
        assert_eq!(shares(&[1.0, 3.0]), [0.25, 0.75]);
        assert_eq!(shares(&[0.0, 0.0]), [0.5, 0.5]);
        // Nine and a half, give or take three.
        let found = shares_by_requests(&[9.0, 12.0, 7.0, 10.0], &[1.0; 4]);
        assert!(found.iter().all(|part| (part - 0.25).abs() < 1e-9), "{found:?}");
        // Far from the weights.
        let found = shares_by_requests(&[9000.0, 1000.0], &[1.0, 1.0]);
        assert!((found[0] - 0.9).abs() < 0.001 && (found[1] - 0.1).abs() < 0.001, "{found:?}");
        assert_eq!(shares_by_requests(&[0.0, 0.0], &[1.0, 3.0]), [0.25, 0.75]);
        let found = shares_by_requests(&[50.0, 0.0], &[0.0, 1.0]);
        assert!(found[0] > 0.99, "{found:?}");
    }

    #[test]
    fn one_less_and_one_more() {
        let less = crew(true).minus_one().unwrap();
        assert_eq!(saturation(&less.stations()), Some(200.0));
        let less = crew(false).minus_one().unwrap();
        assert!((saturation(&less.stations()).unwrap() - 150.0).abs() < 1e-9);
        assert_eq!(saturation(&crew(true).plus_one().unwrap().stations()), Some(500.0));
        let one = GroupCapacity { members: vec![mate(100.0, 1.0)], by_load: true, shared_variance: 0.5 };
        assert!(one.minus_one().is_none() && GroupCapacity::default().plus_one().is_none());
        assert!(GroupCapacity::default().minus_one().is_none());
    }

    #[test]
    fn many_members_become_few_stations() {
        let part = 1.0 / 200.0;
        let mut mates = vec![mate(100.0, part); 200];
        mates[77].capacity = 50.0;
        let stations = GroupCapacity { members: mates, by_load: false, shared_variance: 0.5 }.stations();
        assert!(stations.len() <= MOST + 1);
        assert!((stations.iter().map(|one| one.part).sum::<f64>() - 1.0).abs() < 1e-9);
        assert!((saturation(&stations).unwrap() - 10_000.0).abs() < 1e-6);
    }
}
