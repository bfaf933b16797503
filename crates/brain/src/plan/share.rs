//! The current share of the requests of each member of a plan, for clients that choose for themselves (xDS).
//!
//! A strategy by weights has prepared its shares, and they are read from its table. A strategy by requests in
//! flight has none: it is run on copies of the members' counts, for as many requests as all members have now.
//! Each request is added where it goes, and none ends. So a member with fewer requests than the others gets
//! more of them, and two members in balance stay in balance. The copies are dropped: no shared state is
//! written.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use super::{Choice, Plan, StrategyTable};
use crate::{Member, PickRequest, PickerState, Time, mix};

impl Plan {
    /// Returns the share of each member, in the order of [`Plan::members`]: 0 to 1 each, 1 together; empty
    /// without members. The sessions that a member under alert is to shed are not subtracted
    /// ([`ShedDecision`](crate::ShedDecision)).
    ///
    /// `hand` is the state of the asking core and is not changed. The same arguments give the same shares.
    /// The run time is linear in the members, and quadratic for strategies by requests in flight, up to 512
    /// members. Beyond that, the shares are the weights.
    pub fn shares(&self, picker: &PickerState, random_bits: u64, now: Time) -> Vec<f64> {
        let mut shares =
            self.table_shares().unwrap_or_else(|| self.simulated_shares(picker, random_bits, now));
        if !normalise(&mut shares) {
            shares = self.weights();
            normalise(&mut shares);
        }
        shares
    }

    /// Returns `true` if requests in flight change the shares without a new plan.
    pub fn shares_vary_with_load(&self) -> bool {
        self.table_shares().is_none()
    }

    /// Returns the shares if the prepared data determines them.
    fn table_shares(&self) -> Option<Vec<f64>> {
        if self.strategy.prefers_less_load {
            return None;
        }
        let mut shares = vec![0.0; self.members.len()];
        let mut add = |member: u32, share: f64| {
            if let Some(total) = shares.get_mut(member as usize) {
                *total += share;
            }
        };
        match &self.table {
            StrategyTable::Schedule(schedule) if !schedule.is_empty() => {
                schedule.iter().for_each(|member| add(*member, 1.0))
            }
            StrategyTable::Alias(columns) => {
                for (column, (own_share, alias)) in (0..).zip(columns) {
                    let own_share = f64::from(*own_share) / TWO_32;
                    add(column, own_share);
                    add(*alias, 1.0 - own_share);
                }
            }
            StrategyTable::Seeds { .. } | StrategyTable::Slots(_) => return Some(self.weights()),
            StrategyTable::Schedule(_) | StrategyTable::None => return None,
        }
        Some(shares)
    }

    fn weights(&self) -> Vec<f64> {
        self.members.iter().map(|member| member.weight).collect()
    }

    /// Returns the shares by simulated choices, where each choice depends on the earlier ones.
    fn simulated_shares(&self, picker: &PickerState, random_bits: u64, now: Time) -> Vec<f64> {
        let count = self.members.len();
        if count > MAX_SIMULATED_MEMBERS {
            return self.weights();
        }
        let mut shares = vec![0.0; count];
        let in_flight: usize = self.members.iter().map(|member| member.in_flight() as usize).sum();
        // A multiple of the member count, so that equal members get equally many.
        let requests = in_flight
            .clamp(MIN_PER_MEMBER * count, MAX_REQUESTS.max(MIN_PER_MEMBER * count))
            .div_ceil(count.max(1))
            * count;
        let rounds = (MAX_CHOICES / requests.max(1)).clamp(1, MAX_ROUNDS);
        for round in 0..rounds as u64 {
            let simulated_plan = self.with_copied_vitals();
            let mut picker = picker.clone();
            let random_base = mix(random_bits ^ round);
            for request in 0..requests as u64 {
                // Evenly spread numbers (Weyl 1916), which vary less than independent draws.
                let random_bits = random_base.wrapping_add(request.wrapping_mul(GOLDEN));
                let pick_request = PickRequest { turn: request, random_bits, now, ..PickRequest::default() };
                let Choice::Member(index) = simulated_plan.choose(&mut picker, &pick_request, &[]) else {
                    break;
                };
                simulated_plan.members[index].vitals.begin();
                shares[index] += 1.0;
            }
        }
        if shares.iter().all(|share| *share == 0.0) { self.weights() } else { shares }
    }

    /// Returns the plan with counts of its own.
    fn with_copied_vitals(&self) -> Self {
        let with_own_vitals =
            |member: &Member| Member { vitals: Arc::new(member.vitals.copy()), ..member.clone() };
        Self { members: self.members.iter().map(with_own_vitals).collect(), ..self.clone() }
    }
}

/// Scales the shares to a sum of 1; returns `false` if that is impossible.
fn normalise(shares: &mut [f64]) -> bool {
    let sum: f64 = shares.iter().sum();
    let is_valid = sum.is_finite() && sum > 0.0;
    if is_valid {
        shares.iter_mut().for_each(|share| *share /= sum);
    }
    is_valid || shares.is_empty()
}

/// The unit of the chances in an alias table: 2^32.
const TWO_32: f64 = 4_294_967_296.0;

/// The number of members above which no choice is simulated.
const MAX_SIMULATED_MEMBERS: usize = 512;
/// The approximate number of choices in all rounds, and the maximum number of rounds, which reduce the effect
/// of chance.
const MAX_CHOICES: usize = 2048;
const MAX_ROUNDS: usize = 32;
/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// The requests of a round: at least `LEAST` for each member; at most `MOST`, unless the least is more.
const MIN_PER_MEMBER: usize = 4;
const MAX_REQUESTS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::members;
    use crate::strategy::{self, ALL};
    use crate::{StrategyParams, Vitals};

    fn plan(name: &str, members: Vec<Member>) -> Plan {
        let strategy = strategy::find(name).expect("a strategy of this name");
        Plan::new(strategy, StrategyParams::defaults(strategy), members)
    }

    fn shares(plan: &Plan) -> Vec<f64> {
        plan.shares(&PickerState::default(), 7, Time(1_000_000_000))
    }

    fn members_with(in_flight: &[u32]) -> Vec<Member> {
        let mut members = members(&vec![1.0; in_flight.len()]);
        for (member, in_flight) in members.iter_mut().zip(in_flight) {
            member.vitals = Arc::new(Vitals::with_in_flight(*in_flight));
        }
        members
    }

    #[test]
    fn shares_of_every_strategy_add_up_and_touch_nothing() {
        for strategy in ALL {
            for loads in [&[][..], &[3], &[0, 9, 2]] {
                let members = members_with(loads);
                let plan = plan(strategy.name, members.clone());
                let shares = shares(&plan);
                assert_eq!(shares.len(), loads.len());
                let sum: f64 = shares.iter().sum();
                assert!(loads.is_empty() || (sum - 1.0).abs() < 1e-9, "{}: {shares:?}", strategy.name);
                assert!(
                    shares.iter().all(|share| (0.0..=1.0).contains(share)),
                    "{}: {shares:?}",
                    strategy.name
                );
                let in_flight_after: Vec<u32> = members.iter().map(Member::in_flight).collect();
                assert_eq!(in_flight_after, loads, "{}", strategy.name);
            }
        }
    }

    #[test]
    fn weights_are_met_to_the_point() {
        for name in ["weighted_round_robin", "random", "maglev", "rendezvous", "load_average"] {
            let shares = shares(&plan(name, members(&[1.0, 3.0, 4.0])));
            for (share, expected) in shares.iter().zip([0.125, 0.375, 0.5]) {
                assert!((share - expected).abs() < 1e-6, "{name}: {shares:?}");
            }
        }
        assert_eq!(shares(&plan("round_robin", members(&[1.0, 3.0]))), [0.5, 0.5]);
    }

    #[test]
    fn whoever_has_less_in_flight_gets_more() {
        for name in ["least_connections", "least_request", "adaptive"] {
            let shares = shares(&plan(name, members_with(&[300, 100, 200])));
            assert!(shares[1] > shares[2] && shares[2] > shares[0], "{name}: {shares:?}");
        }
        // As many requests on top as all have: up to twice the mean each.
        let shares = shares(&plan("least_connections", members_with(&[300, 100, 200])));
        assert!((shares[1] - 0.5).abs() < 0.01 && (shares[0] - 1.0 / 6.0).abs() < 0.01, "{shares:?}");
    }
}
