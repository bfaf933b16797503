//! Latency objectives, in a fleet in virtual time.

#![expect(clippy::print_stdout, reason = "what was measured")]

#[expect(dead_code, reason = "other tests use the rest of it")]
mod farm;
mod parallel;

use farm::ours::Ours;
use farm::{Outcome, Setting, run};
use parallel::each;

fn measure(name: &'static str, setting: &Setting, millis: f64) -> Outcome {
    let mut policy = Ours::new(name, setting.balancers, setting.members, setting.seed);
    let outcome = run(setting, &mut policy);
    println!(
        "{name:34} N {:2} load {:4} silent {:2}  within {millis} ms {:5.2} %  shed {:5.2} %  late {:5.2} \
         %  p50 {:6.1} p99 {:6.1} ms  refused after p50 {:5.1} p99 {:5.1} ms",
        setting.balancers,
        setting.load,
        setting.silent,
        outcome.within(millis),
        outcome.share(outcome.shed),
        outcome.share(outcome.failed),
        outcome.quantile(0.5),
        outcome.quantile(0.99),
        outcome.refusal(0.5),
        outcome.refusal(0.99),
    );
    outcome
}

/// Returns a setting of members that reject excess requests, of which `silent` in ten send no load reports.
fn fleet(balancers: usize, load: f64, silent: usize) -> Setting {
    Setting {
        balancers,
        members: 20,
        warmup: 12.0,
        measured: 8.0,
        guarded: true,
        ignore_cancel: true,
        silent,
        ..Setting::at(load, 1)
    }
}

/// Checks that requests outlast the short times below the capacity in which all members are full, unless
/// these exceed their objective.
#[test]
fn just_below_the_capacity_hardly_any_is_refused() {
    let rows = each(1..=16, |seed| measure("adaptive", &Setting { seed, ..fleet(1, 0.93, 0) }, 600.0));
    let refused: f64 = rows.iter().map(|row| row.share(row.shed)).sum::<f64>() / rows.len() as f64;
    let runs = rows.iter().filter(|row| row.shed > 0).count();
    assert!(runs <= 4 && refused <= 0.4, "{runs} of {}, {refused:.3} % of all", rows.len());
}

/// Checks that far above the capacity a longer wait neither helps nor harms.
#[test]
fn what_can_be_served_is_however_long_others_wait() {
    let setting = fleet(20, 1.3, 0);
    let usual = measure("adaptive", &setting, 300.0);
    let patient = measure("adaptive, within 300 ms", &setting, 300.0);
    assert!(patient.within(300.0) >= usual.within(300.0) - 2.0);
    assert!(patient.quantile(0.99) <= 300.0 && patient.refusal(0.99) <= 300.0);
}

/// Checks that requests without time to wait are rejected at once, and members get no fewer for it.
#[test]
fn who_has_no_time_waits_for_nothing() {
    let setting = fleet(1, 1.3, 0);
    let usual = measure("adaptive", &setting, 10.0);
    let hasty = measure("adaptive, within 10 ms", &setting, 10.0);
    assert!(hasty.refusal(0.99) <= 3.0 && usual.refusal(0.99) > 5.0, "{:.1} ms", hasty.refusal(0.99));
    assert!(hasty.share(hasty.shed) <= usual.share(usual.shed) + 2.0);
}
