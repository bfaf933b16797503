//! A random member, with a chance equal to its share of the capacity. Members that report more than a
//! multiple of the average load shed sessions.
//!
//! TAO's LoadAverage: new sessions are placed without regard to loads, and alerts correct the imbalance. TAO
//! alerts from 1.8 times the average on, but never at twice the average or more; here there is no such upper
//! end.

use super::reported::{DAMPENING, tolerance};
use super::{DEFAULTS, Strategy, StrategyParams, alias};
use crate::{AlertRule, PickRequest, PickerState, Plan};

pub(super) static STRATEGY: Strategy = Strategy {
    name: "load_average",
    about: "a member by chance; one that reports far more than the average sheds its sessions",
    params: &[
        tolerance("a member sheds its sessions above this many times the average load", 1.8),
        DAMPENING,
    ],
    shares: true,
    prepare: alias::prepare,
    alert_rule,
    choose,
    ..DEFAULTS
};

fn alert_rule(params: &StrategyParams) -> AlertRule {
    AlertRule::Mean(params.at(0))
}

fn choose(plan: &Plan, _: &mut PickerState, request: &PickRequest) -> usize {
    alias::draw(plan, request.random_bits)
}
