//! Checks of the application: requirements and exclusions.

use std::ops::Range;

use super::super::{
    BalancerKind, BalancerSpec, ByRunLength, COPIES, Experiment, Factor, FactorLevel, LoadProtocol,
};
use super::{MAX_CLIENTS, MAX_LENGTH, MAX_MILLISECONDS};

/// The maximum number of clients: each has a thread.
const MAX_APP_CLIENTS: f64 = 256.0;

/// Returns all errors with their places: the key, or else the whole of `[application]`.
pub(super) fn check(experiment: &Experiment, varied_factors: &[Factor]) -> Vec<(Range<usize>, String)> {
    let mut errors = Vec::new();
    let precision = experiment.plan.precision.as_ref();
    let (load, network) = (&experiment.load, &experiment.network);
    let is_closed_loop = load.concurrency.is_some() || varied_factors.contains(&Factor::Concurrency);
    if let Some(precision) = precision {
        let is_fraction = |fraction: f64| fraction > 0.0 && fraction < 1.0;
        let ByRunLength { full, quick } = precision.get_ref();
        if !is_closed_loop || !is_fraction(*full) || !is_fraction(*quick) {
            let message = "[plan] `precision` is above 0 and below 1, and of a closed loop";
            errors.push((precision.span(), message.to_owned()));
        }
    }
    let Some(application) = &experiment.application else {
        if let Some(varied_factor) =
            experiment.factors.iter().find(|varied_factor| varied_factor.vary.get_ref().is_of_application())
        {
            let message =
                format!("`{}` can be varied only of an [application]", varied_factor.vary.get_ref().name());
            errors.push((varied_factor.vary.span(), message));
        }
        return errors;
    };
    let (span, application) = (application.span(), application.get_ref());
    let mut require = |holds: bool, requirement: &str| {
        if !holds {
            errors.push((span.clone(), format!("[application] {requirement}")));
        }
    };
    require(
        experiment.members.count() == 2 * COPIES && !varied_factors.contains(&Factor::Endpoints),
        "has 4 members: two of A and two of B",
    );
    require(
        experiment.members.groups().iter().all(|members| {
            members.workers == 1 && members.cores.is_none() && !members.burn && !members.side_car
        }),
        "has servers with one worker, whose work it says itself",
    );
    require(
        is_closed_loop
            && load.clients.is_empty()
            && load.workload.is_none()
            && load.body.is_none()
            && load.keep_alive,
        "needs clients by `concurrency`, and nothing else in [load] but `protocol` and `timeout`",
    );
    require(max_clients(experiment) <= MAX_APP_CLIENTS.min(MAX_CLIENTS), "has 256 clients at most");
    require(
        experiment.faults.is_empty() && experiment.balancer.instances.is_none(),
        "goes without faults and without `instances`",
    );
    require(!network.namespaces, "says its delay itself: it goes without `namespaces`");
    let is_plain_plimsoll = |balancer: &BalancerSpec| {
        balancer.kind == BalancerKind::Plimsoll && !balancer.has_agents && !balancer.follows_lottery
    };
    let has_plimsoll_agent = experiment.balancer.kind.as_ref().is_none_or(is_plain_plimsoll);
    require(
        has_plimsoll_agent && !varied_factors.contains(&Factor::Balancer),
        "has plimsoll as its agent, which chooses by chance or, with `age`, by loads",
    );
    let uses_http =
        experiment.protocol() == LoadProtocol::Http && !varied_factors.contains(&Factor::Protocol);
    require(
        uses_http || !varied_factors.contains(&Factor::Age),
        "over iiop nobody asks servers for their load: `age` goes with http",
    );
    let times = [
        ("demand", &application.demand),
        ("delay", &application.delay),
        ("agent", &application.agent),
        ("locate", &application.locate),
        ("overhead", &application.overhead),
        ("receive", &application.receive),
        ("send", &application.send),
        ("per_kilobyte", &application.per_kilobyte),
        ("client", &application.client),
    ];
    for (key, time) in times {
        if time.get_ref().0.as_millis() > MAX_MILLISECONDS as u128 {
            errors.push((time.span(), format!("[application] `{key}` is 100 s at most")));
        }
    }
    if application.length.get_ref().0 as f64 > MAX_LENGTH {
        errors.push((application.length.span(), "[application] `length` is 200000 bytes at most".to_owned()));
    }
    if !(1..=1000).contains(application.clones.get_ref()) {
        errors.push((application.clones.span(), "[application] `clones` are from 1 to 1000".to_owned()));
    }
    errors
}

/// Returns the maximum number of clients at any point.
fn max_clients(experiment: &Experiment) -> f64 {
    let fixed_count = experiment.load.concurrency.unwrap_or(0) as f64;
    let concurrency_factors = experiment
        .factors
        .iter()
        .filter(|varied_factor| *varied_factor.vary.get_ref() == Factor::Concurrency);
    let levels = concurrency_factors
        .flat_map(|varied_factor| varied_factor.full.get_ref().iter().chain(varied_factor.quick.get_ref()));
    levels.filter_map(FactorLevel::number).fold(fixed_count, f64::max)
}
