//! A group of plain members for simulations of sessions: only a strategy and capacities.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_brain::{GroupSpec, MemberSpec, Strategy, StrategyParams, WhenAllDown};

pub(crate) fn group(
    strategy: &'static Strategy,
    knobs: StrategyParams,
    capacities: impl Iterator<Item = f64>,
) -> GroupSpec {
    let member = |(index, capacity): (usize, f64)| {
        let name = format!("10.0.0.{index}:80");
        MemberSpec {
            address: name.parse().expect("an address"),
            name: Arc::from(name),
            capacity,
            limit: u32::MAX,
            leaving: false,
            checked: false,
        }
    };
    GroupSpec {
        name: Arc::from("web"),
        strategy,
        params: knobs,
        members: capacities.enumerate().map(member).collect(),
        health: None,
        outlier: None,
        slow_start: Duration::ZERO,
        when_all_down: WhenAllDown::Reject,
        admission: None,
        objective: None,
        aperture: None,
    }
}
