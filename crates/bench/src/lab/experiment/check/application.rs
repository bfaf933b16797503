//! The application: what must be there for it, and what cannot go with it.

use super::super::{Balancer, BalancerKind, COPIES, Experiment, Factor, Level, Protocol};
use super::{CLIENTS, LENGTH, MILLISECONDS};

/// Most clients: each has a thread.
const MOST: f64 = 256.0;

/// All that is wrong with it.
pub(super) fn check(experiment: &Experiment, varied: &[Factor]) -> Vec<String> {
    let mut wrong = Vec::new();
    let precision = experiment.plan.precision.as_ref();
    let (load, network) = (&experiment.load, &experiment.network);
    let closed = load.concurrency.is_some() || varied.contains(&Factor::Concurrency);
    if let Some(precision) = precision {
        let fine = |part: f64| part > 0.0 && part < 1.0;
        if !closed || !fine(precision.full) || !fine(precision.quick) {
            wrong.push("[plan] `precision` is above 0 and below 1, and of a closed loop".to_owned());
        }
    }
    let Some(application) = &experiment.application else {
        if let Some(factor) = varied.iter().find(|factor| factor.of_application()) {
            wrong.push(format!("`{}` can be varied only of an [application]", factor.name()));
        }
        return wrong;
    };
    let mut need = |holds: bool, what: &str| {
        if !holds {
            wrong.push(format!("[application] {what}"));
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
    let plain = |balancer: &Balancer| {
        balancer.kind == BalancerKind::Plimsoll && !balancer.agents && !balancer.follows
    };
    let kind = experiment.balancer.kind.as_ref().is_none_or(plain);
    need(
        kind && !varied.contains(&Factor::Balancer),
        "has plimsoll as its agent, which chooses by chance or, with `age`, by loads",
    );
    let http = experiment.protocol() == Protocol::Http && !varied.contains(&Factor::Protocol);
    need(
        http || !varied.contains(&Factor::Age),
        "over iiop nobody asks servers for their load: `age` goes with http",
    );
    let most = MILLISECONDS as u128;
    let times = [
        application.demand,
        application.delay,
        application.agent,
        application.locate,
        application.overhead,
        application.receive,
        application.send,
        application.per_kilobyte,
        application.client,
    ];
    need(times.iter().all(|time| time.0.as_millis() <= most), "has times of 100 s at most");
    need(
        application.length.0 as f64 <= LENGTH && (1..=1000).contains(&application.clones),
        "has messages of 200000 bytes and 1000 clones at most",
    );
    wrong
}

/// Most clients at any point.
fn clients(experiment: &Experiment) -> f64 {
    let own = experiment.load.concurrency.unwrap_or(0) as f64;
    let varied = experiment.factors.iter().filter(|vary| *vary.vary.get_ref() == Factor::Concurrency);
    let levels = varied.flat_map(|vary| vary.full.get_ref().iter().chain(vary.quick.get_ref()));
    levels.filter_map(Level::number).fold(own, f64::max)
}
