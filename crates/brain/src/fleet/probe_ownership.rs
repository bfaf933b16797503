//! The assignment of health checks: of the balancers that serve a member, those with the best numbers drawn
//! from both names check it (rendezvous hashing, Thaler and Ravishankar, 1998). All get the same result
//! without communication. When a balancer joins or leaves, only its own members change hands.

use crate::mix;

/// Returns `true` if `own` is one of the `probers` that check `member`, which `others` serve, too.
pub(crate) fn is_prober(member: u64, own: u64, others: impl Iterator<Item = u64>, probers: usize) -> bool {
    let score = |who: u64| (mix(mix(member) ^ who), who);
    let own = score(own);
    others.filter(|other| score(*other) < own).count() < probers.max(1)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn checkers(member: u64, all: &[u64], probers: usize) -> Vec<u64> {
        let others = |own: u64| all.iter().copied().filter(move |other| *other != own);
        all.iter().copied().filter(|own| is_prober(member, *own, others(*own), probers)).collect()
    }

    #[test]
    fn each_member_has_as_many_checkers_as_asked_for_and_they_share_the_work() {
        let all: Vec<u64> = (1..=5).map(mix).collect();
        for probers in [1, 2, 7] {
            let mut load = [0; 5];
            for member in 0..1000 {
                let checkers = checkers(member, &all, probers);
                assert_eq!(checkers.len(), probers.min(5));
                for checker in checkers {
                    load[all.iter().position(|one| *one == checker).unwrap()] += 1;
                }
            }
            let fair = 1000 * probers.min(5) / 5;
            assert!(load.iter().all(|load| load * 5 > fair * 4 && load * 4 < fair * 5), "{load:?}");
        }
    }

    #[test]
    fn only_those_of_one_that_goes_change_hands() {
        let all: Vec<u64> = (1..=5).map(mix).collect();
        for member in 0..1000 {
            let (before, after) = (checkers(member, &all, 1), checkers(member, &all[1..], 1));
            assert!(before == after || before == [all[0]]);
        }
    }
}
