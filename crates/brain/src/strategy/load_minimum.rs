//! The member that reports the least load. Members that report much more than the least shed sessions.
//!
//! TAO's LoadMinimum: an alert where a load is above the average and above 1.4 times the minimum. TAO never
//! alerts at twice the minimum or more, where it is needed most; here there is no such upper end. `reported`
//! makes the choice.

use super::reported::{self, DAMPENING, PER_BALANCE_LOAD, tolerance};
use super::{DEFAULTS, Strategy, StrategyParams};
use crate::AlertRule;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "load_minimum",
    about: "the member that reports the least load; one that reports far more than the least sheds its \
        sessions",
    params: &[
        tolerance(
            "loads up to this many times the least count as equal to it; above it and the average a member \
             sheds",
            1.4,
        ),
        DAMPENING,
        PER_BALANCE_LOAD,
    ],
    reads_load: true,
    prefers_less_load: true,
    shares: true,
    prepare: reported::prepare,
    alert_rule,
    choose: reported::choose,
    second_choice: reported::second_choice,
    refusal_message: reported::overload_message,
    explain: reported::explain,
    ..DEFAULTS
};

fn alert_rule(params: &StrategyParams) -> AlertRule {
    AlertRule::Least(params.at(0))
}
