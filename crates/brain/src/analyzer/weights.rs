//! Weights from outside: the values of an operator's expression for the members.
//!
//! A new weight means a new plan, so one that differs by no more than a hundredth from the one in force is
//! ignored. A member without a value (its figures are missing or too old) gets the average of the others per
//! capacity, times its own capacity: it is neither starved nor flooded. If no member has a value, the
//! capacities count.

use alloc::vec::Vec;

use super::Analyzer;
use crate::{MemberId, Time, strategy};

impl Analyzer {
    /// Records the weights of members: `None` for an unknown one. Members that are not named keep theirs.
    ///
    /// Only a group whose strategy is [`strategy::EXPRESSION`] accepts them. A weight that is not a number or
    /// infinite counts as unknown, and a negative one as 0: an expression that falls with a load is below 0
    /// where the load is greatest.
    pub fn handle_weights(&mut self, weights: &[(MemberId, Option<f64>)], now: Time) {
        self.advance(now);
        if !self.uses_external_weights() {
            return;
        }
        let mut known_weights = Vec::new();
        let (mut sum, mut count) = (0.0, 0.0);
        for (member, weight) in weights {
            let Some(&index) = self.index_by_id.get(member) else { continue };
            let weight = weight.filter(|weight| weight.is_finite()).map(|weight| weight.max(0.0));
            if let Some(weight) = weight {
                sum += weight / self.spec.members[index].capacity;
                count += 1.0;
            }
            known_weights.push((index, weight));
        }
        let mean = if count > 0.0 { sum / count } else { 1.0 };
        for (index, weight) in known_weights {
            let capacity = self.spec.members[index].capacity;
            let entry = &mut self.entries[index];
            let new_weight = weight.unwrap_or(mean * capacity).min(MAX_WEIGHT);
            let previous_weight = entry.external_weight.unwrap_or(capacity);
            if (new_weight - previous_weight).abs() > previous_weight * TOLERANCE {
                entry.external_weight = Some(new_weight);
                self.stale = true;
            }
        }
    }

    /// Removes the weights of another strategy after a new configuration.
    pub(super) fn forget_weights(&mut self) {
        if !self.uses_external_weights() {
            self.entries.iter_mut().for_each(|entry| entry.external_weight = None);
        }
    }

    pub(super) fn uses_external_weights(&self) -> bool {
        self.spec.strategy.name == strategy::EXPRESSION.name
    }
}

/// The relative change of weight that does not justify a plan.
const TOLERANCE: f64 = 0.01;

/// The maximum of a weight, so that sums stay finite.
const MAX_WEIGHT: f64 = 1e12;

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec::Vec;
    use core::time::Duration;

    use crate::{
        Analyzer, GroupSpec, MemberId, MemberSpec, Strategy, StrategyParams, Time, WhenAllDown, strategy,
    };

    fn group(strategy: &'static Strategy) -> GroupSpec {
        let member = |number: u32| MemberSpec {
            name: alloc::format!("10.0.0.{number}:80").into(),
            address: ([10, 0, 0, number as u8], 80).into(),
            capacity: f64::from(number),
            limit: u32::MAX,
            leaving: false,
            checked: false,
        };
        GroupSpec {
            name: "web".into(),
            strategy,
            params: StrategyParams::defaults(strategy),
            members: (1..=3).map(member).collect(),
            health: None,
            outlier: None,
            slow_start: Duration::ZERO,
            when_all_down: WhenAllDown::Reject,
            admission: None,
            objective: None,
            aperture: None,
        }
    }

    fn weights(analyzer: &mut Analyzer) -> Option<Vec<f64>> {
        Some(analyzer.plan(Time(0))?.members().iter().map(|member| member.weight).collect())
    }

    fn apply_weights(analyzer: &mut Analyzer, weights: [Option<f64>; 3]) {
        let ids: Vec<MemberId> = analyzer.members().map(|(id, ..)| id).collect();
        let weights_by_id: Vec<_> = ids.into_iter().zip(weights).collect();
        analyzer.handle_weights(&weights_by_id, Time(0));
    }

    #[test]
    fn a_weight_from_outside_stands_for_the_capacity() {
        let mut analyzer = Analyzer::new(group(strategy::EXPRESSION), Time(0));
        assert_eq!(weights(&mut analyzer).unwrap(), [1.0, 2.0, 3.0], "capacities until there are any");
        apply_weights(&mut analyzer, [Some(5.0), Some(1.0), Some(0.0)]);
        assert_eq!(weights(&mut analyzer).unwrap(), [5.0, 1.0, f64::MIN_POSITIVE]);
        apply_weights(&mut analyzer, [Some(5.0), Some(1.0), Some(-1.0)]);
        assert!(weights(&mut analyzer).is_none(), "less than nothing is nothing");
        let status: Vec<_> = analyzer.status(Time(0)).into_iter().map(|(_, status)| status.weight).collect();
        assert_eq!(status[0], 5.0);
    }

    #[test]
    fn changes_of_a_hundredth_make_no_plan() {
        let mut analyzer = Analyzer::new(group(strategy::EXPRESSION), Time(0));
        apply_weights(&mut analyzer, [Some(100.0); 3]);
        assert!(weights(&mut analyzer).is_some());
        apply_weights(&mut analyzer, [Some(100.9), Some(99.1), Some(100.0)]);
        assert_eq!(weights(&mut analyzer), None);
        // Small steps do not add up unseen: each is compared with the weight in force.
        apply_weights(&mut analyzer, [Some(101.1), Some(99.1), Some(100.0)]);
        assert_eq!(weights(&mut analyzer).unwrap(), [101.1, 100.0, 100.0]);
    }

    #[test]
    fn a_silent_member_gets_what_the_others_have_for_their_capacity() {
        let mut analyzer = Analyzer::new(group(strategy::EXPRESSION), Time(0));
        apply_weights(&mut analyzer, [Some(10.0), Some(40.0), None]);
        assert_eq!(weights(&mut analyzer).unwrap(), [10.0, 40.0, 45.0]);
        apply_weights(&mut analyzer, [None, Some(f64::NAN), None]);
        assert_eq!(weights(&mut analyzer).unwrap(), [1.0, 2.0, 3.0], "capacities, if nobody says anything");
        apply_weights(&mut analyzer, [Some(f64::INFINITY), Some(f64::MAX), Some(1.0)]);
        assert!(weights(&mut analyzer).unwrap().iter().all(|weight| weight.is_finite()));
    }

    #[test]
    fn other_strategies_take_none_and_keep_none() {
        let round_robin = strategy::find("weighted_round_robin").unwrap();
        let mut analyzer = Analyzer::new(group(round_robin), Time(0));
        assert!(weights(&mut analyzer).is_some());
        apply_weights(&mut analyzer, [Some(9.0); 3]);
        assert_eq!(weights(&mut analyzer), None);
        analyzer.update(group(strategy::EXPRESSION), Time(0));
        apply_weights(&mut analyzer, [Some(9.0); 3]);
        assert_eq!(weights(&mut analyzer).unwrap(), [9.0; 3]);
        analyzer.update(group(round_robin), Time(0));
        assert_eq!(weights(&mut analyzer).unwrap(), [1.0, 2.0, 3.0]);
        assert_eq!(analyzer.spec().strategy.name.to_string(), "weighted_round_robin");
    }
}
