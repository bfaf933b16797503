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
pub(crate) fn limit_share(limit: u32, demands: &[QuotaDemand], missing: usize) -> u32 {
    let Some(own_demand) = demands.first() else { return limit };
    let present = demands.len();
    let total = u64::from(limit) * present as u64 / (present + missing) as u64;
    let shares = apportion(total as f64, demands);
    let own_share = shares.first().copied().unwrap_or_default();
    // The others' requests above their parts reduce the parts of the rest in proportion.
    let others = || shares.iter().zip(demands).skip(1);
    let excess_of =
        |(share, demand): (&u32, &QuotaDemand)| f64::from(demand.in_flight.saturating_sub(*share));
    let excess: f64 = others().map(excess_of).sum();
    if excess <= 0.0 || own_demand.in_flight > own_share {
        return own_share;
    }
    let payer_total: u64 = u64::from(own_share)
        + others()
            .filter(|(share, demand)| demand.in_flight <= **share)
            .map(|(share, _)| u64::from(*share))
            .sum::<u64>();
    let payment = libm::ceil(excess * f64::from(own_share) / payer_total.max(1) as f64);
    own_share.saturating_sub(payment as u32)
}

/// Returns the first balancer's part of a member's requests a second, by the same rule: above 0, at most 1.
pub(crate) fn rate_share(demands: &[QuotaDemand], missing: usize) -> f64 {
    let Some(own_demand) = demands.first() else { return 1.0 };
    let (present, sum) = (demands.len() as f64, demands.iter().map(|demand| demand.demand).sum::<f64>());
    let demand_share = if sum > 0.0 { own_demand.demand / sum } else { 1.0 / present };
    (EVEN_SHARE / present + (1.0 - EVEN_SHARE) * demand_share) * present / (present + missing as f64)
}

/// Returns whole numbers with the sum `total`.
fn apportion(total: f64, demands: &[QuotaDemand]) -> Vec<u32> {
    let minimum = u32::from(total >= 2.0 * demands.len() as f64);
    let total = total - f64::from(minimum) * demands.len() as f64;
    let sum: f64 = demands.iter().map(|demand| demand.demand).sum();
    let even_share = 1.0 / demands.len() as f64;
    let exact_share = |demand: &QuotaDemand| {
        let demand_share = if sum > 0.0 { demand.demand / sum } else { even_share };
        total * (EVEN_SHARE * even_share + (1.0 - EVEN_SHARE) * demand_share)
    };
    let mut shares: Vec<u32> = demands.iter().map(|demand| exact_share(demand) as u32).collect();
    let assigned: u64 = shares.iter().map(|share| u64::from(*share)).sum();
    let mut order: Vec<usize> = (0..demands.len()).collect();
    let remainder = |index: usize| {
        let share = exact_share(&demands[index]);
        share - libm::floor(share)
    };
    order.sort_by(|a, b| {
        remainder(*b).total_cmp(&remainder(*a)).then(demands[*a].balancer.cmp(&demands[*b].balancer))
    });
    let unassigned = (total as u64).saturating_sub(assigned);
    for index in order.into_iter().take(usize::try_from(unassigned).unwrap_or(usize::MAX)) {
        shares[index] += 1;
    }
    shares.iter_mut().for_each(|share| *share += minimum);
    shares
}

/// The share of the limit that is split evenly, whatever the demand.
const EVEN_SHARE: f64 = 0.1;

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn demand_of(balancer: u64, demand: f64, in_flight: u32) -> QuotaDemand {
        QuotaDemand { balancer, demand, in_flight }
    }

    /// Returns the part of each balancer, as each computes it.
    fn all_shares(limit: u32, demands: &[QuotaDemand], missing: usize) -> Vec<u32> {
        let share_of = |own_index: usize| {
            let mut seen_demands = vec![demands[own_index]];
            seen_demands.extend(
                demands
                    .iter()
                    .enumerate()
                    .filter(|(index, _)| *index != own_index)
                    .map(|(_, other_demand)| *other_demand),
            );
            limit_share(limit, &seen_demands, missing)
        };
        (0..demands.len()).map(share_of).collect()
    }

    #[test]
    fn portions_of_a_rate_come_to_all_of_it() {
        for demands in [&[0.0, 0.0, 0.0][..], &[1.0, 2.0, 7.0], &[5.0, 0.0], &[3.0]] {
            let quota_demands: Vec<QuotaDemand> =
                demands.iter().zip(0..).map(|(demand, balancer)| demand_of(balancer, *demand, 0)).collect();
            let shares = |missing| {
                (0..quota_demands.len()).map(move |own_index| {
                    let mut seen_demands = quota_demands.clone();
                    seen_demands.rotate_left(own_index);
                    rate_share(&seen_demands, missing)
                })
            };
            let total: f64 = shares.clone()(0).sum();
            assert!((total - 1.0).abs() < 1e-9, "{demands:?}: {total}");
            assert!(shares.clone()(0).all(|share| share > 0.0));
            let kept_share: f64 = shares(1).sum();
            let (present, expected_count) = (demands.len() as f64, demands.len() as f64 + 1.0);
            assert!((kept_share - present / expected_count).abs() < 1e-9, "one that is lost keeps its part");
        }
    }

    #[test]
    fn parts_come_to_the_limit_and_follow_demand() {
        for limit in [1, 2, 3, 7, 10, 64, 1000] {
            for demands in [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [9.0, 1.0, 0.0], [0.3, 100.0, 7.5]] {
                let quota_demands: Vec<QuotaDemand> =
                    (0..).zip(demands).map(|(balancer, demand)| demand_of(balancer, demand, 0)).collect();
                let shares = all_shares(limit, &quota_demands, 0);
                assert_eq!(shares.iter().sum::<u32>(), limit, "{limit} {demands:?}: {shares:?}");
            }
        }
        let shares =
            all_shares(100, &[demand_of(1, 30.0, 0), demand_of(2, 10.0, 0), demand_of(3, 0.0, 0)], 0);
        assert_eq!(shares, [70, 26, 4]);
    }

    #[test]
    fn who_is_cut_off_has_its_part_of_all() {
        assert_eq!(limit_share(90, &[demand_of(1, 50.0, 0)], 2), 30);
        assert_eq!(all_shares(90, &[demand_of(1, 5.0, 0), demand_of(2, 5.0, 0)], 1), [30, 30]);
        assert_eq!(limit_share(90, &[demand_of(1, 50.0, 0)], 0), 90);
    }

    #[test]
    fn what_one_has_too_much_others_do_without() {
        // The first had all and has just received reports of two others.
        let demands = [demand_of(1, 40.0, 90), demand_of(2, 40.0, 0), demand_of(3, 40.0, 0)];
        let shares = all_shares(90, &demands, 0);
        assert_eq!(shares[0], 30);
        assert_eq!(shares[1] + shares[2], 0, "{shares:?}");
        let demands = [demand_of(1, 40.0, 50), demand_of(2, 40.0, 0), demand_of(3, 40.0, 0)];
        let shares = all_shares(90, &demands, 0);
        assert_eq!(50 + shares[1] + shares[2], 90, "{shares:?}");
    }
}
