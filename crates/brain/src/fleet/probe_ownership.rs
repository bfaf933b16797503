//! The assignment of health checks: of the balancers that serve a member, those with the best numbers drawn
//! from both names check it (rendezvous hashing, Thaler and Ravishankar, 1998). All get the same result
//! without communication. When a balancer joins or leaves, only its own members change hands.

use crate::mix;

/// Returns `true` if `own` is one of the `probers` that check `member`, which `others` serve, too.
pub(crate) fn is_prober(member: u64, own_id: u64, others: impl Iterator<Item = u64>, probers: usize) -> bool {
    let score = |balancer: u64| (mix(mix(member) ^ balancer), balancer);
    let own_score = score(own_id);
    others.filter(|other| score(*other) < own_score).count() < probers.max(1)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn probers_of(member: u64, balancers: &[u64], probers: usize) -> Vec<u64> {
        let others_of = |own_id: u64| balancers.iter().copied().filter(move |other| *other != own_id);
        balancers
            .iter()
            .copied()
            .filter(|own_id| is_prober(member, *own_id, others_of(*own_id), probers))
            .collect()
    }

    #[test]
    fn each_member_has_as_many_checkers_as_asked_for_and_they_share_the_work() {
        let balancers: Vec<u64> = (1..=5).map(mix).collect();
        for probers in [1, 2, 7] {
            let mut load = [0; 5];
            for member in 0..1000 {
                let member_probers = probers_of(member, &balancers, probers);
                assert_eq!(member_probers.len(), probers.min(5));
                for prober in member_probers {
                    load[balancers.iter().position(|balancer| *balancer == prober).unwrap()] += 1;
                }
            }
            let fair_load = 1000 * probers.min(5) / 5;
            assert!(load.iter().all(|load| load * 5 > fair_load * 4 && load * 4 < fair_load * 5), "{load:?}");
        }
    }

    #[test]
    fn only_those_of_one_that_goes_change_hands() {
        let balancers: Vec<u64> = (1..=5).map(mix).collect();
        for member in 0..1000 {
            let (probers_before, probers_after) =
                (probers_of(member, &balancers, 1), probers_of(member, &balancers[1..], 1));
            assert!(probers_before == probers_after || probers_before == [balancers[0]]);
        }
    }
}
