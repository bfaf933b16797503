//! The member that reports the least load. Members that report a quarter more than the average shed sessions,
//! so that loads stay close together.
//!
//! It is the strategy of TAO's on-demand experiment (Othman, O'Ryan, Schmidt 2001, figure 9): "ensures that
//! load differences fall within a certain tolerance". Its prototype allowed 1 + 1.5/n times the average of n
//! replicas, a quarter for six of them. `reported` makes the choice.

use super::reported::{self, DAMPENING, PER_BALANCE_LOAD, tolerance};
use super::{Knobs, PLAIN, Strategy};
use crate::Rule;

pub(super) static STRATEGY: Strategy = Strategy {
    name: "minimum_dispersion",
    about: "the member that reports the least load; one above the average by more than a quarter sheds its sessions",
    knobs: &[
        tolerance("loads up to this many times the least, or the average, count as equal to it", 1.25),
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
    Rule::Mean(knobs.at(0))
}
