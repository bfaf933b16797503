//! The member that reports the least load. Members that report a quarter more than the average shed sessions,
//! so that loads stay close together.
//!
//! It is the strategy of TAO's on-demand experiment (Othman, O'Ryan, Schmidt 2001, figure 9): "ensures that
//! load differences fall within a certain tolerance". Its prototype allowed 1 + 1.5/n times the average of n
//! replicas, a quarter for six of them. `reported` makes the choice.

use super::reported::{self, DAMPENING, PER_BALANCE_LOAD, tolerance};
use super::{DEFAULTS, Strategy, StrategyParams};
use crate::AlertRule;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "minimum_dispersion",
    about: "the member that reports the least load; one above the average by more than a quarter sheds its \
        sessions",
    params: &[
        tolerance("loads up to this many times the least, or the average, count as equal to it", 1.25),
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
    AlertRule::Mean(params.at(0))
}
