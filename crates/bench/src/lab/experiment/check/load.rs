//! Checks of the load: its kind, its groups of clients, and the limits of each protocol.

use std::ops::Range;

use super::super::{BalancerKind, BalancerSpec, ClientGroup, Experiment, Factor, FaultAction, LoadProtocol};
use super::RATE;
use crate::lab::metric::Metric;
use crate::lab::plan::ExperimentPoint;

/// The maximum number of clients in groups: each has a thread.
const SESSIONS: usize = 64;

/// Returns all errors with their places.
pub(super) fn check(experiment: &Experiment, varied: &[Factor]) -> Vec<(Range<usize>, String)> {
    let load = &experiment.load;
    let mut wrong = Vec::new();
    let given = [
        load.rate.is_some() || varied.contains(&Factor::Rate),
        load.share.is_some() || varied.contains(&Factor::Share),
        load.concurrency.is_some() || varied.contains(&Factor::Concurrency),
        !load.clients.is_empty() && !load.is_by_share(),
    ];
    let kinds = given.iter().filter(|given| **given).count();
    if kinds != 1 || load.is_by_share() && !given[2] {
        let message = "the load needs exactly one of `rate`, `share` and `concurrency`, in [load] or as a \
                       factor, or \
                       [[load.clients]], which may have shares of the `concurrency`";
        wrong.push((0..0, message.to_owned()));
    }
    let first = load.clients.first().map(toml::Spanned::get_ref);
    for group in &load.clients {
        if let Some(why) = first.and_then(|first| fault(first, group.get_ref())) {
            wrong.push((group.span(), why));
        }
    }
    let shares: f64 = load.groups().filter_map(|group| group.share).sum();
    if load.is_by_share() && (shares - 1.0).abs() > 1e-9 {
        wrong.push((0..0, format!("the shares of [[load.clients]] are 1 together, not {shares}")));
    }
    let most = |levels: &[super::FactorLevel]| {
        levels.iter().filter_map(super::FactorLevel::number).fold(0.0, f64::max)
    };
    let concurrency = experiment
        .factors
        .iter()
        .filter(|vary| *vary.vary.get_ref() == Factor::Concurrency)
        .map(|vary| most(vary.full.get_ref()).max(most(vary.quick.get_ref())))
        .fold(load.concurrency.unwrap_or(0) as f64, f64::max);
    let counted = load.groups().filter_map(|group| group.count).fold(0, usize::saturating_add);
    let clients = if load.is_by_share() { concurrency } else { counted as f64 };
    if clients > SESSIONS as f64 {
        wrong.push((0..0, format!("[[load.clients]] are {SESSIONS} in all at most, not {clients}")));
    }
    if !load.clients.is_empty() && !load.keep_alive {
        let message = "[[load.clients]] keep their connection: `keep_alive` cannot be false";
        wrong.push((0..0, message.to_owned()));
    }
    if experiment.needs_session_moves() && !given[2] && load.clients.is_empty() {
        let name = Metric::Moves.name();
        wrong.push((0..0, format!("`{name}` needs sessions: `concurrency` or [[load.clients]]")));
    }
    if load.workload.is_some() && load.body.is_some() {
        wrong.push((0..0, "[load] a `workload` has no `body`: what a log has are GETs".to_owned()));
    }
    if let Some(protocol) = &load.protocol
        && varied.contains(&Factor::Protocol)
    {
        wrong.push((protocol.span(), "`protocol` is a factor already".to_owned()));
    }
    wrong
}

/// Returns the error of a group, compared with the first one.
fn fault(first: &ClientGroup, group: &ClientGroup) -> Option<String> {
    let say = |why: &str| Some(format!("[[load.clients]] {why}"));
    if group.count.is_some() == group.share.is_some() || group.count == Some(0) {
        return say("need either a `count` from 1 on or a `share`");
    }
    if group.share.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
        return say("`share` is a number above 0, up to 1");
    }
    if group.rate.is_some_and(|rate| !(rate > 0.0 && rate <= RATE)) {
        return Some(format!("[[load.clients]] `rate` is a number above 0, up to {RATE}"));
    }
    if group.rate.is_some() && group.think.is_some() {
        return say("have either a `rate` or a time to `think`");
    }
    if group.share.is_some() && group.rate.is_some() {
        return say(
            "with a `share` of the concurrency have no `rate`: they send when they have been answered",
        );
    }
    if group.share.is_some() != first.share.is_some() || group.rate.is_some() != first.rate.is_some() {
        return say("are all of one kind: by `count` or by `share`, with a `rate` or without");
    }
    None
}

/// Checks that the point's protocol supports everything in the experiment.
pub(super) fn check_protocol(experiment: &Experiment, point: &ExperimentPoint) -> Result<(), String> {
    let several = point.instances.is_some_and(|count| count > 1);
    if point.side_cars && several {
        return Err("side-cars report to one balancer: `instances` cannot be more".to_owned());
    }
    let outer: &BalancerSpec = &point.balancer;
    let side_cars = experiment.members.groups().iter().any(|members| members.side_car);
    if side_cars && !matches!(outer.kind, BalancerKind::Plimsoll | BalancerKind::None) {
        return Err(format!("side-cars report to plimsoll, not to {}", outer.kind.name()));
    }
    if point.side_cars && experiment.faults.iter().any(|fault| fault.act == FaultAction::Add) {
        return Err("a member with a side-car cannot be added".to_owned());
    }
    if outer.lottery_query().is_some() {
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
    let said = |what: &str| Err(format!("{what} cannot be had over iiop"));
    if !matches!(outer.kind, BalancerKind::Plimsoll | BalancerKind::None) {
        return said(outer.kind.name());
    }
    let load = &experiment.load;
    if load.body.is_some() || load.workload.is_some() || !load.keep_alive {
        return said("`body`, a `workload` and a connection for each request");
    }
    let members = experiment.members.groups();
    if members.iter().any(|members| members.meter || members.swaps.is_some() || members.body.is_some()) {
        return said("`meter`, `swaps` and `body` of [members]");
    }
    let acts = [FaultAction::Slow, FaultAction::Fail, FaultAction::Start];
    if experiment.faults.iter().any(|fault| acts.contains(&fault.act)) {
        return said("faults that talk to the member (`slow`, `fail`, `start`)");
    }
    Ok(())
}
