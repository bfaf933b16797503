//! The division of a member's limit among balancers.
//!
//! Each balancer computes all parts from the last reported demands, its own by its last report, too. So all
//! get nearly the same table without communication. The parts of a limit are, in this order:
//!
//! - one for each balancer, if the limit is at least twice their number;
//! - a tenth of the rest split evenly, so that a balancer without demand can begin;
//! - the remainder in proportion to demand.
//!
//! Parts are whole numbers: floors, and the remaining units go to the largest remainders. If a balancer has
//! more in flight than its new, smaller part, the others give up the difference until those requests have
//! ended.

use alloc::vec::Vec;

/// The demand of one balancer for a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct QuotaDemand {
    /// The number of the balancer, which breaks ties in the same way everywhere.
    pub(crate) balancer: u64,
    /// The mean number of its requests there and of those that wait for the member; not negative.
    pub(crate) demand: f64,
    /// Its requests in flight there.
    pub(crate) in_flight: u32,
}

/// Returns the first balancer's part of `limit`. `missing` lost balancers keep theirs.
pub(crate) fn limit_share(limit: u32, wants: &[QuotaDemand], missing: usize) -> u32 {
    let Some(own) = wants.first() else { return limit };
    let there = wants.len();
    let total = u64::from(limit) * there as u64 / (there + missing) as u64;
    let parts = apportion(total as f64, wants);
    let mine = parts.first().copied().unwrap_or_default();
    // The others' requests above their parts reduce the parts of the rest in proportion.
    let others = || parts.iter().zip(wants).skip(1);
    let over = |(part, want): (&u32, &QuotaDemand)| f64::from(want.in_flight.saturating_sub(*part));
    let excess: f64 = others().map(over).sum();
    if excess <= 0.0 || own.in_flight > mine {
        return mine;
    }
    let payers: u64 = u64::from(mine)
        + others()
            .filter(|(part, want)| want.in_flight <= **part)
            .map(|(part, _)| u64::from(*part))
            .sum::<u64>();
    let due = libm::ceil(excess * f64::from(mine) / payers.max(1) as f64);
    mine.saturating_sub(due as u32)
}

/// Returns the first balancer's part of a member's requests a second, by the same rule: above 0, at most 1.
pub(crate) fn rate_share(wants: &[QuotaDemand], missing: usize) -> f64 {
    let Some(own) = wants.first() else { return 1.0 };
    let (there, sum) = (wants.len() as f64, wants.iter().map(|want| want.demand).sum::<f64>());
    let wanted = if sum > 0.0 { own.demand / sum } else { 1.0 / there };
    (EVEN_SHARE / there + (1.0 - EVEN_SHARE) * wanted) * there / (there + missing as f64)
}

/// Returns whole numbers with the sum `total`.
fn apportion(total: f64, wants: &[QuotaDemand]) -> Vec<u32> {
    let first = u32::from(total >= 2.0 * wants.len() as f64);
    let total = total - f64::from(first) * wants.len() as f64;
    let sum: f64 = wants.iter().map(|want| want.demand).sum();
    let even = 1.0 / wants.len() as f64;
    let exact = |want: &QuotaDemand| {
        let wanted = if sum > 0.0 { want.demand / sum } else { even };
        total * (EVEN_SHARE * even + (1.0 - EVEN_SHARE) * wanted)
    };
    let mut parts: Vec<u32> = wants.iter().map(|want| exact(want) as u32).collect();
    let given: u64 = parts.iter().map(|part| u64::from(*part)).sum();
    let mut order: Vec<usize> = (0..wants.len()).collect();
    let rest = |place: usize| {
        let exact = exact(&wants[place]);
        exact - libm::floor(exact)
    };
    order.sort_by(|a, b| rest(*b).total_cmp(&rest(*a)).then(wants[*a].balancer.cmp(&wants[*b].balancer)));
    let left = (total as u64).saturating_sub(given);
    for place in order.into_iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
        parts[place] += 1;
    }
    parts.iter_mut().for_each(|part| *part += first);
    parts
}

/// The share of the limit that is split evenly, whatever the demand.
const EVEN_SHARE: f64 = 0.1;

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn want(who: u64, demand: f64, in_flight: u32) -> QuotaDemand {
        QuotaDemand { balancer: who, demand, in_flight }
    }

    /// Returns the part of each balancer, as each computes it.
    fn each(limit: u32, wants: &[QuotaDemand], missing: usize) -> Vec<u32> {
        let of = |own: usize| {
            let mut seen = vec![wants[own]];
            seen.extend(wants.iter().enumerate().filter(|(place, _)| *place != own).map(|(_, want)| *want));
            limit_share(limit, &seen, missing)
        };
        (0..wants.len()).map(of).collect()
    }

    #[test]
    fn portions_of_a_rate_come_to_all_of_it() {
        for demands in [&[0.0, 0.0, 0.0][..], &[1.0, 2.0, 7.0], &[5.0, 0.0], &[3.0]] {
            let wants: Vec<QuotaDemand> =
                demands.iter().zip(0..).map(|(demand, who)| want(who, *demand, 0)).collect();
            let each = |missing| {
                (0..wants.len()).map(move |own| {
                    let mut seen = wants.clone();
                    seen.rotate_left(own);
                    rate_share(&seen, missing)
                })
            };
            let all: f64 = each.clone()(0).sum();
            assert!((all - 1.0).abs() < 1e-9, "{demands:?}: {all}");
            assert!(each.clone()(0).all(|part| part > 0.0));
            let kept: f64 = each(1).sum();
            let (there, all) = (demands.len() as f64, demands.len() as f64 + 1.0);
            assert!((kept - there / all).abs() < 1e-9, "one that is lost keeps its part");
        }
    }

    #[test]
    fn parts_come_to_the_limit_and_follow_demand() {
        for limit in [1, 2, 3, 7, 10, 64, 1000] {
            for demands in [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [9.0, 1.0, 0.0], [0.3, 100.0, 7.5]] {
                let wants: Vec<QuotaDemand> =
                    (0..).zip(demands).map(|(who, demand)| want(who, demand, 0)).collect();
                let parts = each(limit, &wants, 0);
                assert_eq!(parts.iter().sum::<u32>(), limit, "{limit} {demands:?}: {parts:?}");
            }
        }
        let parts = each(100, &[want(1, 30.0, 0), want(2, 10.0, 0), want(3, 0.0, 0)], 0);
        assert_eq!(parts, [70, 26, 4]);
    }

    #[test]
    fn who_is_cut_off_has_its_part_of_all() {
        assert_eq!(limit_share(90, &[want(1, 50.0, 0)], 2), 30);
        assert_eq!(each(90, &[want(1, 5.0, 0), want(2, 5.0, 0)], 1), [30, 30]);
        assert_eq!(limit_share(90, &[want(1, 50.0, 0)], 0), 90);
    }

    #[test]
    fn what_one_has_too_much_others_do_without() {
        // The first had all and has just received reports of two others.
        let wants = [want(1, 40.0, 90), want(2, 40.0, 0), want(3, 40.0, 0)];
        let parts = each(90, &wants, 0);
        assert_eq!(parts[0], 30);
        assert_eq!(parts[1] + parts[2], 0, "{parts:?}");
        let wants = [want(1, 40.0, 50), want(2, 40.0, 0), want(3, 40.0, 0)];
        let parts = each(90, &wants, 0);
        assert_eq!(50 + parts[1] + parts[2], 90, "{parts:?}");
    }
}
