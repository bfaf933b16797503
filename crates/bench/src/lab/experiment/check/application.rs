//! Checks of the application: requirements and exclusions.

use std::ops::Range;

use super::super::{
    BalancerKind, BalancerSpec, ByRunLength, COPIES, Experiment, Factor, FactorLevel, LoadProtocol,
};
use super::{CLIENTS, LENGTH, MILLISECONDS};

/// The maximum number of clients: each has a thread.
const MOST: f64 = 256.0;

/// Returns all errors with their places: the key, or else the whole of `[application]`.
pub(super) fn check(experiment: &Experiment, varied: &[Factor]) -> Vec<(Range<usize>, String)> {
    let mut wrong = Vec::new();
    let precision = experiment.plan.precision.as_ref();
    let (load, network) = (&experiment.load, &experiment.network);
    let closed = load.concurrency.is_some() || varied.contains(&Factor::Concurrency);
    if let Some(precision) = precision {
        let fine = |part: f64| part > 0.0 && part < 1.0;
        let ByRunLength { full, quick } = precision.get_ref();
        if !closed || !fine(*full) || !fine(*quick) {
            let message = "[plan] `precision` is above 0 and below 1, and of a closed loop";
            wrong.push((precision.span(), message.to_owned()));
        }
    }
    let Some(application) = &experiment.application else {
        if let Some(vary) = experiment.factors.iter().find(|vary| vary.vary.get_ref().is_of_application()) {
            let message = format!("`{}` can be varied only of an [application]", vary.vary.get_ref().name());
            wrong.push((vary.vary.span(), message));
        }
        return wrong;
    };
    let (whole, application) = (application.span(), application.get_ref());
    let mut need = |holds: bool, what: &str| {
        if !holds {
            wrong.push((whole.clone(), format!("[application] {what}")));
        }
    };
    need(
        experiment.members.count() == 2 * COPIES && !varied.contains(&Factor::Endpoints),
        "has 4 members: two of A and two of B",
    );
    need(
        experiment.members.groups().iter().all(|members| {
            members.workers == 1 && members.cores.is_none() && !members.burn && !members.side_car
        }),
        "has servers with one worker, whose work it says itself",
    );
    need(
        closed
            && load.clients.is_empty()
            && load.workload.is_none()
            && load.body.is_none()
            && load.keep_alive,
        "needs clients by `concurrency`, and nothing else in [load] but `protocol` and `timeout`",
    );
    need(clients(experiment) <= MOST.min(CLIENTS), "has 256 clients at most");
    need(
        experiment.faults.is_empty() && experiment.balancer.instances.is_none(),
        "goes without faults and without `instances`",
    );
    need(!network.namespaces, "says its delay itself: it goes without `namespaces`");
    let plain = |balancer: &BalancerSpec| {
        balancer.kind == BalancerKind::Plimsoll && !balancer.has_agents && !balancer.follows_lottery
    };
    let kind = experiment.balancer.kind.as_ref().is_none_or(plain);
    need(
        kind && !varied.contains(&Factor::Balancer),
        "has plimsoll as its agent, which chooses by chance or, with `age`, by loads",
    );
    let http = experiment.protocol() == LoadProtocol::Http && !varied.contains(&Factor::Protocol);
    need(
        http || !varied.contains(&Factor::Age),
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
        if time.get_ref().0.as_millis() > MILLISECONDS as u128 {
            wrong.push((time.span(), format!("[application] `{key}` is 100 s at most")));
        }
    }
    if application.length.get_ref().0 as f64 > LENGTH {
        wrong.push((application.length.span(), "[application] `length` is 200000 bytes at most".to_owned()));
    }
    if !(1..=1000).contains(application.clones.get_ref()) {
        wrong.push((application.clones.span(), "[application] `clones` are from 1 to 1000".to_owned()));
    }
    wrong
}

/// Returns the maximum number of clients at any point.
fn clients(experiment: &Experiment) -> f64 {
    let own = experiment.load.concurrency.unwrap_or(0) as f64;
    let varied = experiment.factors.iter().filter(|vary| *vary.vary.get_ref() == Factor::Concurrency);
    let levels = varied.flat_map(|vary| vary.full.get_ref().iter().chain(vary.quick.get_ref()));
    levels.filter_map(FactorLevel::number).fold(own, f64::max)
}
