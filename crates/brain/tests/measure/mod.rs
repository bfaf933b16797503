//! The measurement of a policy, by its name, in a fleet in virtual time: means over the seeds, and a line of
//! a table.

#[path = "../parallel/mod.rs"]
mod parallel;

pub(crate) use parallel::each;

use crate::farm::ours::Ours;
use crate::farm::peers::{Oracle, Prequal, Reported};
use crate::farm::predecessors::{IdleQueue, Rule, Table};
use crate::farm::{Outcome, Policy, Setting, run};

/// The extent of a measurement.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) warmup: f64,
    pub(crate) measured: f64,
    pub(crate) seeds: u64,
}

pub(crate) const SHORT: Effort = Effort { warmup: 12.0, measured: 8.0, seeds: 2 };
pub(crate) const LONG: Effort = Effort { warmup: 20.0, measured: 30.0, seeds: 3 };

/// The means over the seeds.
#[derive(Default)]
pub(crate) struct Row {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    /// Percentages of the requests.
    pub(crate) failed: f64,
    pub(crate) shed: f64,
    pub(crate) in_time: f64,
    /// The successes per second over the mean capacity.
    pub(crate) goodput: f64,
    pub(crate) messages: f64,
    pub(crate) cv: f64,
    pub(crate) knee_error: f64,
    pub(crate) ejections: u64,
    /// The 99th percentile with rejections counted like requests that were given up.
    pub(crate) strict: f64,
    /// The median time to a rejection, ms; the percentage that waited, and their mean wait, ms.
    pub(crate) refusal: f64,
    pub(crate) waited: f64,
    pub(crate) wait: f64,
    /// For the urgent requests: the 99th percentile, ms, and the rejected percentage.
    pub(crate) urgent_p99: f64,
    pub(crate) urgent_shed: f64,
}

/// Runs the policy of this name at a setting.
pub(crate) fn measure(name: &'static str, setting: &Setting, effort: Effort) -> Row {
    let mut row = Row::default();
    for (outcome, ejections) in each(1..effort.seeds + 1, |seed| once(name, setting, effort, seed)) {
        add(&mut row, &outcome, effort.seeds as f64);
        row.ejections += ejections;
    }
    println!(
        "{name:24} load {:4} N {:3}  p50 {:6.1}  p99 {:7.1}  p99.9 {:7.1} ms  failed {:6.3} %  shed {:5.2} \
         %  in time {:5.1} %  \
         goodput {:.3}  messages {:.2}  cv {:.2}  knee off by {:3.0} %  ejections {}  \
         strict p99 {:6.1}  refused after {:.1} ms  waited {:.2} % for {:.1} ms",
        setting.load,
        setting.balancers,
        row.p50,
        row.p99,
        row.p999,
        row.failed,
        row.shed,
        row.in_time,
        row.goodput,
        row.messages,
        row.cv,
        100.0 * row.knee_error,
        row.ejections,
        row.strict,
        row.refusal,
        row.waited,
        row.wait,
    );
    row
}

/// Runs it with one seed; returns the results, and the number of ejected members.
fn once(name: &'static str, setting: &Setting, effort: Effort, seed: u64) -> (Outcome, u64) {
    let mut setting = Setting { warmup: effort.warmup, measured: effort.measured, seed, ..setting.clone() };
    let (balancers, members) = (setting.balancers, setting.members);
    let mut ours = None;
    let mut peer: Box<dyn Policy> = match name {
        "join_idle_queue" => Box::new(IdleQueue::new(balancers, members, seed)),
        "rate.d lottery" => Box::new(Table::new(Rule::Lottery, 1.0, members, seed)),
        "cygnus" => Box::new(Table::new(Rule::LeastLoaded { per_balance_load: 0.0 }, 3.0, members, seed)),
        "cygnus, per balance .2" => {
            Box::new(Table::new(Rule::LeastLoaded { per_balance_load: 0.2 }, 3.0, members, seed))
        }
        "cygnus, sessions" => {
            let rule = Rule::Sessions { per_balance_load: 0.2, critical: 2.0 };
            Box::new(Table::new(rule, 3.0, members, seed))
        }
        "prequal .5" => Box::new(Prequal::new(3, 0.5, balancers, seed)),
        "prequal .5, ejecting" => Box::new(Prequal::new(3, 0.5, balancers, seed).ejecting(members)),
        "oracle" => Box::new(Oracle::new(members, seed)),
        "prequal" => Box::new(Prequal::new(3, 0.84, balancers, seed)),
        "prequal tuned" => Box::new(Prequal::new(5, 0.5, balancers, seed)),
        "reported 1 s" => Box::new(Reported::new(1.0, balancers, members, seed)),
        "reported 3 s" => Box::new(Reported::new(3.0, balancers, members, seed)),
        _ if name.starts_with("prequal at ") => {
            let quantile = name["prequal at ".len()..].parse().expect("a number");
            Box::new(Prequal::new(3, quantile, balancers, seed))
        }
        _ => {
            let (strategy, push, silent) = match name {
                "adaptive" => ("adaptive", false, setting.silent),
                "adaptive, offers" => ("adaptive", true, setting.silent),
                "adaptive, agentless" => ("adaptive", false, 10),
                "adaptive, views" => ("adaptive", false, setting.silent),
                other => (other, false, setting.silent),
            };
            (setting.push, setting.silent) = (push, silent);
            setting.slots = name != "adaptive, views";
            setting.guarded = strategy == "adaptive";
            let mut policy = Ours::new(strategy, balancers, members, seed);
            policy.asks = setting.urgent > 0.0;
            ours = Some(policy);
            Box::new(Oracle::new(0, 0))
        }
    };
    let outcome = run(&setting, ours.as_mut().map_or(&mut *peer, |ours| ours));
    (outcome, ours.map_or(0, |ours| ours.ejections()))
}

fn add(row: &mut Row, outcome: &Outcome, runs: f64) {
    row.p50 += outcome.quantile(0.5) / runs;
    row.p99 += outcome.quantile(0.99) / runs;
    row.p999 += outcome.quantile(0.999) / runs;
    row.failed += outcome.share(outcome.failed) / runs;
    row.shed += outcome.share(outcome.shed) / runs;
    row.in_time += outcome.share(outcome.in_time) / runs;
    row.goodput += outcome.good as f64 / outcome.seconds / outcome.capacity / runs;
    row.messages += outcome.messages as f64 / outcome.requests as f64 / runs;
    row.cv += outcome.cv / runs;
    row.strict += outcome.strict(0.99) / runs;
    row.refusal += outcome.refusal(0.5) / runs;
    row.waited += outcome.share(outcome.waited) / runs;
    row.wait += 1e3 * outcome.waits / outcome.waited.max(1) as f64 / runs;
    row.knee_error += outcome.knee_error / runs;
    let (p99, shed) = outcome.urgent(0.99);
    row.urgent_p99 += p99 / runs;
    row.urgent_shed += shed / runs;
}
