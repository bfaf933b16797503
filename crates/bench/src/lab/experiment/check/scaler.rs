//! Checks of autoscaled members, and of load curves.

use std::ops::Range;

use super::super::{BalancerKind, Experiment, Factor, LoadProtocol};
use crate::lab::experiment::FactorLevel;
use crate::lab::metric::Metric;

/// The metrics of autoscaled members.
const OWN: [Metric; 4] = [Metric::Members, Metric::Needed, Metric::Met, Metric::Cost];

/// Returns all errors with their places.
pub(super) fn check(experiment: &Experiment, varied: &[Factor]) -> Vec<(Range<usize>, String)> {
    let mut wrong = Vec::new();
    let mut say = |at: &Range<usize>, why: &str| wrong.push((at.clone(), why.to_owned()));
    let top = 0..0;
    let load = &experiment.load;
    let rated = load.rate.is_some() || varied.contains(&Factor::Rate);
    if !load.curve.is_empty() {
        let part = |value: f64, most: f64| (0.0..=most).contains(&value);
        if !rated || !load.clients.is_empty() {
            say(
                &top,
                "[load] a `curve` is of a `rate`, in [load] or as a factor, and of no [[load.clients]]",
            );
        }
        if load.curve.iter().any(|(at, value)| !part(*at, 1.0) || !part(*value, MOST)) {
            say(
                &top,
                "[load] a `curve` has pairs of a part of the time, from 0 to 1, and of the rate, from 0 to \
                 1000",
            );
        }
        if load.curve.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
            say(&top, "[load] the times of a `curve` grow from pair to pair");
        }
    }
    let asked = experiment.figures.iter().flat_map(|figure| figure.also.iter().chain([&figure.y])).copied();
    let claimed = experiment.claims.iter().map(|claim| claim.test.get_ref().metric());
    let own = asked.chain(claimed).find(|metric| OWN.contains(metric));
    let Some(scaler) = &experiment.scaler else {
        if let Some(metric) = own {
            say(
                &top,
                &format!("`{}` is of members that come and go, and there is no [scaler]", metric.name()),
            );
        }
        if varied.contains(&Factor::Scaler) {
            say(&top, "`scaler` is a factor, and there is no [scaler]");
        }
        return wrong;
    };
    let at = scaler.span();
    if let Some(why) = scaler.get_ref().error() {
        say(&at, why);
    }
    if !rated || !load.clients.is_empty() {
        say(&at, "[scaler] needs a `rate`, in [load] or as a factor, whose `curve` members follow");
    }
    if experiment.members.groups().len() > 1 || experiment.members.capacity(1).is_none() {
        say(
            &at,
            "[scaler] needs [members] that are all alike and have `cores` and a `service`, so that it is \
             known what one can do",
        );
    }
    let side_car =
        experiment.members.groups().iter().any(|members| members.side_car || members.session.is_some());
    let several = experiment.balancer.instances.is_some() || varied.contains(&Factor::Instances);
    if side_car || several || varied.contains(&Factor::Endpoints) || varied.contains(&Factor::Protocol) {
        say(
            &at,
            "[scaler] goes with one balancer, and with neither `endpoints`, `protocol`, side-cars nor \
             `session`",
        );
    }
    if !experiment.faults.is_empty() || experiment.network.namespaces || experiment.application.is_some() {
        say(&at, "[scaler] goes with neither faults, namespaces nor an application");
    }
    if experiment.needs_request_counts() {
        say(&at, "[scaler] `arrivals` and `dispersion` are of members that stay");
    }
    if experiment.protocol() != LoadProtocol::Http || !balancers(experiment) {
        say(&at, "[scaler] is plimsoll's, over http");
    }
    wrong
}

/// Returns `true` if every balancer is plimsoll.
fn balancers(experiment: &Experiment) -> bool {
    let levels = experiment.factors.iter().filter(|vary| *vary.vary.get_ref() == Factor::Balancer);
    let levels = levels.flat_map(|vary| vary.full.get_ref().iter().chain(vary.quick.get_ref()));
    let kind = |text: &str| text.parse().map(|balancer: super::BalancerSpec| balancer.kind);
    let ours = |level: &FactorLevel| {
        matches!(
            level,
            FactorLevel::Text(text) if kind(text) == Ok(BalancerKind::Plimsoll)
        )
    };
    let own =
        experiment.balancer.kind.as_ref().is_none_or(|balancer| balancer.kind == BalancerKind::Plimsoll);
    own && { levels }.all(ours)
}

/// The maximum part of the rate.
const MOST: f64 = 1000.0;
