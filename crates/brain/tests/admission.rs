//! Admission under strategies without knowledge of it, in a fleet in virtual time. The demand is 1.3 times
//! the capacity, and members continue requests of clients that have gone.
//!
//! Without admission at least a fifth of the requests are answered after the second that their clients wait,
//! or never. With it the excess is rejected, and the rest is served.

#![expect(clippy::print_stdout, reason = "what was measured")]

#[expect(dead_code, unused_imports, reason = "other tests use the rest of it")]
mod farm;
mod parallel;

use farm::ours::Ours;
use farm::{Setting, run};
use parallel::each;

/// The result of a run.
struct Row {
    /// The answers in time, as a share of the members' capacity.
    goodput: f64,
    /// The percentage of requests answered within five times their work, rejected, and given up.
    in_time: f64,
    shed: f64,
    late: f64,
}

fn measure(name: &'static str, setting: &Setting) -> Row {
    let mut policy = Ours::new(name, setting.balancers, setting.members, setting.seed);
    let outcome = run(setting, &mut policy);
    let row = Row {
        goodput: outcome.good as f64 / outcome.seconds / outcome.capacity,
        in_time: outcome.share(outcome.in_time),
        shed: outcome.share(outcome.shed),
        late: outcome.share(outcome.failed),
    };
    println!(
        "{name:32} N {:2} load {:4} silent {:2}  goodput {:.3}  in time {:5.1} %  shed {:5.2} %  late {:5.2} \
         %  p99 {:6.1} ms",
        setting.balancers,
        setting.load,
        setting.silent,
        row.goodput,
        row.in_time,
        row.shed,
        row.late,
        outcome.quantile(0.99),
    );
    row
}

/// Returns a setting of twenty members, of which `silent` in ten send no load reports.
fn fleet(balancers: usize, silent: usize, load: f64) -> Setting {
    Setting {
        balancers,
        members: 20,
        warmup: 6.0,
        measured: 8.0,
        ignore_cancel: true,
        silent,
        ..Setting::at(load, 1)
    }
}

#[test]
fn members_that_say_nothing_serve_what_they_can_where_strategies_go_by_load() {
    let over = fleet(20, 10, 1.3);
    for (name, with) in
        [("least_connections", "least_connections, admission"), ("least_request", "least_request, admission")]
    {
        let (off, on) = (measure(name, &over), measure(with, &over));
        assert!(on.goodput >= 0.9 && on.late <= 7.0, "{name}: {:.3}, {:.2} % late", on.goodput, on.late);
        assert!((12.0..30.0).contains(&on.shed), "{name}: {:.2} % refused", on.shed);
        assert!(off.late >= 15.0 && off.shed == 0.0, "{name} without: {:.2} % late", off.late);
        assert!(on.in_time >= 1.3 * off.in_time, "{name}: {:.1} % in time, {:.1} %", on.in_time, off.in_time);
    }
    let calm = measure("least_connections, admission", &fleet(20, 10, 0.75));
    assert_eq!(calm.shed, 0.0, "nothing is refused below the capacity");
}

/// Checks that strategies that give weak members as much as strong ones fill members beside idle ones: the
/// excess goes there.
#[test]
fn members_that_say_nothing_serve_more_where_strategies_do_not() {
    let (over, calm) = (fleet(20, 10, 1.3), fleet(20, 10, 0.75));
    let (off, on) = (measure("round_robin", &over), measure("round_robin, admission", &over));
    assert!(on.goodput >= 0.9 && off.goodput < 0.85, "{:.3}, {:.3} without", on.goodput, off.goodput);
    assert!(on.late < 0.85 * off.late, "{:.2} % late, {:.2} % without", on.late, off.late);
    let (off, on) = (measure("round_robin", &calm), measure("round_robin, admission", &calm));
    assert!(on.goodput > off.goodput && on.shed < 0.05, "{:.3}, {:.3} without", on.goodput, off.goodput);
}

/// Checks that the balancer alone keeps to the members' limits, which do not reject by themselves here.
#[test]
fn members_that_speak_are_sent_no_more_than_they_say() {
    let over = fleet(1, 0, 1.3);
    let (off, on) = (measure("least_connections", &over), measure("least_connections, admission", &over));
    assert!(on.goodput >= 0.9 && on.late <= 0.1, "{:.3}, {:.2} % late", on.goodput, on.late);
    assert!(off.late >= 15.0, "{:.2} % late without", off.late);
    assert!(on.in_time >= 3.0 * off.in_time, "{:.1} % in time, {:.1} %", on.in_time, off.in_time);
}

/// Checks that the excess of members with load reports does not go to those without them without bound.
#[test]
fn adaptive_buries_nobody_that_says_nothing_beside_others_that_speak() {
    for balancers in [1, 20] {
        // Most of it occurs in the first two seconds, in which it shows.
        let rows = each(1..=8, |seed| {
            measure("adaptive", &Setting { guarded: true, seed, ..fleet(balancers, 5, 1.3) })
        });
        let mean = |of: fn(&Row) -> f64| rows.iter().map(of).sum::<f64>() / rows.len() as f64;
        let (goodput, late) = (mean(|row| row.goodput), mean(|row| row.late));
        assert!(goodput >= 0.9 && late <= 15.0, "{goodput:.3}, {late:.2} % late");
    }
}
