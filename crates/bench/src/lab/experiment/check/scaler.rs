//! Checks of autoscaled members, and of load curves.

use std::ops::Range;

use super::super::{BalancerKind, Experiment, Factor, LoadProtocol};
use crate::lab::experiment::FactorLevel;
use crate::lab::metric::Metric;

/// The metrics of autoscaled members.
const SCALER_METRICS: [Metric; 4] = [Metric::Members, Metric::Needed, Metric::Met, Metric::Cost];

/// Returns all errors with their places.
pub(super) fn check(experiment: &Experiment, varied_factors: &[Factor]) -> Vec<(Range<usize>, String)> {
    let mut errors = Vec::new();
    let mut report = |span: &Range<usize>, message: &str| errors.push((span.clone(), message.to_owned()));
    let file_start = 0..0;
    let load = &experiment.load;
    let has_rate = load.rate.is_some() || varied_factors.contains(&Factor::Rate);
    if !load.curve.is_empty() {
        let is_within = |value: f64, max: f64| (0.0..=max).contains(&value);
        if !has_rate || !load.clients.is_empty() {
            report(
                &file_start,
                "[load] a `curve` is of a `rate`, in [load] or as a factor, and of no [[load.clients]]",
            );
        }
        if load
            .curve
            .iter()
            .any(|(time, value)| !is_within(*time, 1.0) || !is_within(*value, MAX_RATE_FACTOR))
        {
            report(
                &file_start,
                "[load] a `curve` has pairs of a part of the time, from 0 to 1, and of the rate, from 0 to \
                 1000",
            );
        }
        if load.curve.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
            report(&file_start, "[load] the times of a `curve` grow from pair to pair");
        }
    }
    let figure_metrics =
        experiment.figures.iter().flat_map(|figure| figure.also.iter().chain([&figure.y])).copied();
    let claim_metrics = experiment.claims.iter().map(|claim| claim.test.get_ref().metric());
    let scaler_metric = figure_metrics.chain(claim_metrics).find(|metric| SCALER_METRICS.contains(metric));
    let Some(scaler) = &experiment.scaler else {
        if let Some(metric) = scaler_metric {
            report(
                &file_start,
                &format!("`{}` is of members that come and go, and there is no [scaler]", metric.name()),
            );
        }
        if varied_factors.contains(&Factor::Scaler) {
            report(&file_start, "`scaler` is a factor, and there is no [scaler]");
        }
        return errors;
    };
    let span = scaler.span();
    if let Some(message) = scaler.get_ref().error() {
        report(&span, message);
    }
    if !has_rate || !load.clients.is_empty() {
        report(&span, "[scaler] needs a `rate`, in [load] or as a factor, whose `curve` members follow");
    }
    if experiment.members.groups().len() > 1 || experiment.members.capacity(1).is_none() {
        report(
            &span,
            "[scaler] needs [members] that are all alike and have `cores` and a `service`, so that it is \
             known what one can do",
        );
    }
    let side_car =
        experiment.members.groups().iter().any(|members| members.side_car || members.session.is_some());
    let has_instances =
        experiment.balancer.instances.is_some() || varied_factors.contains(&Factor::Instances);
    if side_car
        || has_instances
        || varied_factors.contains(&Factor::Endpoints)
        || varied_factors.contains(&Factor::Protocol)
    {
        report(
            &span,
            "[scaler] goes with one balancer, and with neither `endpoints`, `protocol`, side-cars nor \
             `session`",
        );
    }
    if !experiment.faults.is_empty() || experiment.network.namespaces || experiment.application.is_some() {
        report(&span, "[scaler] goes with neither faults, namespaces nor an application");
    }
    if experiment.needs_request_counts() {
        report(&span, "[scaler] `arrivals` and `dispersion` are of members that stay");
    }
    if experiment.protocol() != LoadProtocol::Http || !only_plimsoll(experiment) {
        report(&span, "[scaler] is plimsoll's, over http");
    }
    errors
}

/// Returns `true` if every balancer is plimsoll.
fn only_plimsoll(experiment: &Experiment) -> bool {
    let levels =
        experiment.factors.iter().filter(|varied_factor| *varied_factor.vary.get_ref() == Factor::Balancer);
    let levels = levels
        .flat_map(|varied_factor| varied_factor.full.get_ref().iter().chain(varied_factor.quick.get_ref()));
    let kind = |text: &str| text.parse().map(|balancer: super::BalancerSpec| balancer.kind);
    let ours = |level: &FactorLevel| {
        matches!(
            level,
            FactorLevel::Text(text) if kind(text) == Ok(BalancerKind::Plimsoll)
        )
    };
    let default_is_plimsoll =
        experiment.balancer.kind.as_ref().is_none_or(|balancer| balancer.kind == BalancerKind::Plimsoll);
    default_is_plimsoll && { levels }.all(ours)
}

/// The maximum part of the rate.
const MAX_RATE_FACTOR: f64 = 1000.0;
