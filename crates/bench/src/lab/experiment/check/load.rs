//! Checks of the load: its kind, its groups of clients, and the limits of each protocol.

use std::ops::Range;

use super::super::{BalancerKind, BalancerSpec, ClientGroup, Experiment, Factor, FaultAction, LoadProtocol};
use super::MAX_RATE;
use crate::lab::metric::Metric;
use crate::lab::plan::ExperimentPoint;

/// The maximum number of clients in groups: each has a thread.
const MAX_GROUP_CLIENTS: usize = 64;

/// Returns all errors with their places.
pub(super) fn check(experiment: &Experiment, varied_factors: &[Factor]) -> Vec<(Range<usize>, String)> {
    let load = &experiment.load;
    let mut errors = Vec::new();
    let given_loads = [
        load.rate.is_some() || varied_factors.contains(&Factor::Rate),
        load.share.is_some() || varied_factors.contains(&Factor::Share),
        load.concurrency.is_some() || varied_factors.contains(&Factor::Concurrency),
        !load.clients.is_empty() && !load.is_by_share(),
    ];
    let load_count = given_loads.iter().filter(|is_given| **is_given).count();
    if load_count != 1 || load.is_by_share() && !given_loads[2] {
        let message = "the load needs exactly one of `rate`, `share` and `concurrency`, in [load] or as a \
                       factor, or \
                       [[load.clients]], which may have shares of the `concurrency`";
        errors.push((0..0, message.to_owned()));
    }
    let first = load.clients.first().map(toml::Spanned::get_ref);
    for group in &load.clients {
        if let Some(message) = first.and_then(|first| group_error(first, group.get_ref())) {
            errors.push((group.span(), message));
        }
    }
    let shares: f64 = load.groups().filter_map(|group| group.share).sum();
    if load.is_by_share() && (shares - 1.0).abs() > 1e-9 {
        errors.push((0..0, format!("the shares of [[load.clients]] are 1 together, not {shares}")));
    }
    let max_level = |levels: &[super::FactorLevel]| {
        levels.iter().filter_map(super::FactorLevel::number).fold(0.0, f64::max)
    };
    let concurrency = experiment
        .factors
        .iter()
        .filter(|varied_factor| *varied_factor.vary.get_ref() == Factor::Concurrency)
        .map(|varied_factor| {
            max_level(varied_factor.full.get_ref()).max(max_level(varied_factor.quick.get_ref()))
        })
        .fold(load.concurrency.unwrap_or(0) as f64, f64::max);
    let client_count = load.groups().filter_map(|group| group.count).fold(0, usize::saturating_add);
    let clients = if load.is_by_share() { concurrency } else { client_count as f64 };
    if clients > MAX_GROUP_CLIENTS as f64 {
        errors
            .push((0..0, format!("[[load.clients]] are {MAX_GROUP_CLIENTS} in all at most, not {clients}")));
    }
    if !load.clients.is_empty() && !load.keep_alive {
        let message = "[[load.clients]] keep their connection: `keep_alive` cannot be false";
        errors.push((0..0, message.to_owned()));
    }
    if experiment.needs_session_moves() && !given_loads[2] && load.clients.is_empty() {
        let name = Metric::Moves.name();
        errors.push((0..0, format!("`{name}` needs sessions: `concurrency` or [[load.clients]]")));
    }
    if load.workload.is_some() && load.body.is_some() {
        errors.push((0..0, "[load] a `workload` has no `body`: what a log has are GETs".to_owned()));
    }
    if let Some(protocol) = &load.protocol
        && varied_factors.contains(&Factor::Protocol)
    {
        errors.push((protocol.span(), "`protocol` is a factor already".to_owned()));
    }
    errors
}

/// Returns the error of a group, compared with the first one.
fn group_error(first: &ClientGroup, group: &ClientGroup) -> Option<String> {
    let error = |message: &str| Some(format!("[[load.clients]] {message}"));
    if group.count.is_some() == group.share.is_some() || group.count == Some(0) {
        return error("need either a `count` from 1 on or a `share`");
    }
    if group.share.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
        return error("`share` is a number above 0, up to 1");
    }
    if group.rate.is_some_and(|rate| !(rate > 0.0 && rate <= MAX_RATE)) {
        return Some(format!("[[load.clients]] `rate` is a number above 0, up to {MAX_RATE}"));
    }
    if group.rate.is_some() && group.think.is_some() {
        return error("have either a `rate` or a time to `think`");
    }
    if group.share.is_some() && group.rate.is_some() {
        return error(
            "with a `share` of the concurrency have no `rate`: they send when they have been answered",
        );
    }
    if group.share.is_some() != first.share.is_some() || group.rate.is_some() != first.rate.is_some() {
        return error("are all of one kind: by `count` or by `share`, with a `rate` or without");
    }
    None
}

/// Checks that the point's protocol supports everything in the experiment.
pub(super) fn check_protocol(experiment: &Experiment, point: &ExperimentPoint) -> Result<(), String> {
    let has_instances = point.instances.is_some_and(|count| count > 1);
    if point.side_cars && has_instances {
        return Err("side-cars report to one balancer: `instances` cannot be more".to_owned());
    }
    let balancer: &BalancerSpec = &point.balancer;
    let side_cars = experiment.members.groups().iter().any(|members| members.side_car);
    if side_cars && !matches!(balancer.kind, BalancerKind::Plimsoll | BalancerKind::None) {
        return Err(format!("side-cars report to plimsoll, not to {}", balancer.kind.name()));
    }
    if point.side_cars && experiment.faults.iter().any(|fault| fault.act == FaultAction::Add) {
        return Err("a member with a side-car cannot be added".to_owned());
    }
    if balancer.lottery_query().is_some() {
        if point.protocol != LoadProtocol::Http || point.side_cars {
            return Err("the lottery's clients here speak http, and its servers have no side-cars".to_owned());
        }
        if experiment.faults.iter().any(|fault| fault.act == FaultAction::Add) {
            return Err("a member with a daemon beside it cannot be added".to_owned());
        }
    }
    if point.protocol == LoadProtocol::Http {
        return Ok(());
    }
    let unsupported = |feature: &str| Err(format!("{feature} cannot be had over iiop"));
    if !matches!(balancer.kind, BalancerKind::Plimsoll | BalancerKind::None) {
        return unsupported(balancer.kind.name());
    }
    let load = &experiment.load;
    if load.body.is_some() || load.workload.is_some() || !load.keep_alive {
        return unsupported("`body`, a `workload` and a connection for each request");
    }
    let members = experiment.members.groups();
    if members.iter().any(|members| members.meter || members.swaps.is_some() || members.body.is_some()) {
        return unsupported("`meter`, `swaps` and `body` of [members]");
    }
    let http_actions = [FaultAction::Slow, FaultAction::Fail, FaultAction::Start];
    if experiment.faults.iter().any(|fault| http_actions.contains(&fault.act)) {
        return unsupported("faults that talk to the member (`slow`, `fail`, `start`)");
    }
    Ok(())
}
