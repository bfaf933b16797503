//! The member that reports the least load. Members that report much more than the least shed sessions.
//!
//! TAO's LoadMinimum: an alert where a load is above the average and above 1.4 times the minimum. TAO never
//! alerts at twice the minimum or more, where it is needed most; here there is no such upper end. `reported`
//! makes the choice.

use super::reported::{self, DAMPENING, PER_BALANCE_LOAD, tolerance};
use super::{Knobs, PLAIN, Strategy};
use crate::Rule;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "load_minimum",
    about: "the member that reports the least load; one that reports far more than the least sheds its sessions",
    knobs: &[
        tolerance(
            "loads up to this many times the least count as equal to it; above it and the average a member sheds",
            1.4,
        ),
        DAMPENING,
        PER_BALANCE_LOAD,
    ],
    reads_load: true,
    heeds_load: true,
    shares: true,
    prepare: reported::prepare,
    rule,
    choose: reported::choose,
    second: reported::second,
    refuses: reported::refuses,
    explain: reported::explain,
    ..PLAIN
};

fn rule(knobs: &Knobs) -> Rule {
    Rule::Least(knobs.at(0))
}
