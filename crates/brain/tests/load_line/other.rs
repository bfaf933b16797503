//! Members whose hosts have other work, which agents' reports include.

use crate::dice::Dice;
use crate::world::{Kind, Other, Server, World};

struct Drawn {
    line: plimsoll_brain::status::LoadLine,
    /// The true requests a second.
    truth: f64,
    what: String,
    could_be_known: bool,
}

/// Returns a random world (members, other work of their hosts, varying load), with its result after some
/// minutes and the truth.
fn drawn(seed: u64) -> Drawn {
    let mut dice = Dice::new(seed, 77);
    let cores = [1.0, 2.0, 4.0, 8.0][dice.below(4)];
    let mean = dice.between(0.01, 0.04);
    let mut server = Server::new(Kind::Shared, cores, mean);
    if dice.unit() < 0.5 {
        server.wait = mean * dice.between(0.2, 4.0);
    }
    let wait = server.wait;
    let count = 1 + dice.below(3);
    let mut world = World::new(vec![server; count], true, true, seed);
    world.whole = true;
    let share = dice.between(0.0, 0.9);
    world.other = match dice.below(3) {
        0 => Other::Constant(share),
        1 => Other::Periodic(share.min(0.45), dice.between(7.0, 300.0)),
        _ => Other::Bursts(share.min(0.8), dice.between(1.0, 30.0), false),
    };
    let other = world.other;
    let free = 1.0 - share;
    let load = dice.between(0.2, 0.7) * free * world.capacity();
    let varies = [0.0, 0.2, 0.5][dice.below(3)];
    let seconds = dice.between(60.0, 200.0);
    let period = dice.between(20.0, 200.0);
    let mut at = 0.0;
    while at < seconds {
        world.run(load * (1.0 + varies * (at / period * std::f64::consts::TAU).sin()), 5.0);
        at += 5.0;
    }
    let what = format!(
        "{count} of {cores} cores, {mean:.3}s + {wait:.3}s, {other:?}, load {load:.0} x {varies} of \
         {period:.0}s, {seconds:.0}s"
    );
    let could_be_known = varies > 0.0 && matches!(other, Other::Constant(_));
    Drawn { line: world.estimator.status().unwrap(), truth: world.line(), what, could_be_known }
}

#[test]
fn beside_other_work_the_line_lies_within_what_is_shown() {
    let (mut shown, mut within, mut missed) = (0, 0, Vec::new());
    // The cases in which it can be known, with constant other work and a varying load, and those in which it
    // is shown.
    let (mut could, mut did) = (0, 0);
    for seed in 0..SEEDS {
        let Drawn { line, truth, what, could_be_known } = drawn(seed);
        could += u32::from(could_be_known);
        let (Some(low), Some(high)) = (line.capacity_low, line.capacity_high) else {
            assert!(line.verdict == "unknown" && line.capacity.is_none() && !line.why.is_empty(), "{line:?}");
            continue;
        };
        did += u32::from(could_be_known);
        shown += 1;
        if low <= truth && truth <= high {
            within += 1;
        } else {
            missed.push(format!("{seed}: {low:.0} to {high:.0}, not {truth:.0}: {what}; {}", line.why));
        }
    }
    assert!(10 * within >= 9 * shown, "{within} of {shown}: {missed:#?}");
    assert!(2 * did >= could && shown >= 40, "{did} of {could}, {shown} in all");
}

/// Checks members with their hosts to themselves, which the balancer does not know.
#[test]
fn where_there_is_no_other_work_the_line_is_known() {
    for kind in [Kind::Shared, Kind::Line] {
        for share in [0.3, 0.4, 0.5] {
            let mut world = World::new(vec![Server::new(kind, 2.0, 0.02); 3], true, true, 7);
            world.whole = true;
            let truth = world.capacity();
            world.run(share * truth, 90.0);
            let line = world.estimator.status().unwrap();
            let best = line.capacity.unwrap_or_else(|| panic!("{kind:?} at {share}: {}", line.why));
            assert!(
                (best / truth - 1.0).abs() < 0.15,
                "{kind:?} at {share}: {best}, not {truth}: {}",
                line.why
            );
            assert!(line.capacity_low.unwrap() <= truth && line.capacity_high.unwrap() >= truth, "{line:?}");
        }
    }
}

/// Checks two servers of one host, each with an agent that reports the whole host; requests of one take four
/// times as long.
#[test]
fn members_at_one_host_are_not_charged_for_one_another() {
    let servers = vec![Server::new(Kind::Shared, 2.0, 0.01), Server::new(Kind::Shared, 2.0, 0.04)];
    let alone = Server::new(Kind::Shared, 2.0, 0.01);
    let mine = World::new(vec![alone], true, true, 3).capacity();
    // Both of one group; then the second of another group, which is seen only as work beside the first.
    for (of, truth) in [(2, World::new(servers.clone(), true, true, 3).capacity()), (1, mine)] {
        let mut world = World::new(servers.clone(), true, true, 3);
        world.together = Some(of);
        for at in 0..30_u32 {
            world.run(100.0 + 30.0 * f64::from(at % 3), 5.0);
        }
        let line = world.estimator.status().unwrap();
        let best = line.capacity.unwrap_or_else(|| panic!("{of}: {}", line.why));
        assert!((best / truth - 1.0).abs() < 0.25, "{of}: {best}, not {truth}");
        let (low, high) = (line.capacity_low.unwrap(), line.capacity_high.unwrap());
        assert!(low <= 1.05 * truth && high >= 0.95 * truth, "{truth}: {line:?}");
    }
}

/// Checks agents that see half of the utilization: once that is detected, the interval includes it.
#[test]
fn who_was_far_off_shows_a_wide_interval() {
    let mut world = World::new(vec![Server::new(Kind::Shared, 2.0, 0.02); 2], true, true, 5);
    world.agents_see = 0.5;
    let truth = world.capacity();
    world.run(0.35 * truth, 90.0);
    let before = world.estimator.status().unwrap();
    assert!(before.capacity_low.unwrap() > truth, "{before:?}");
    world.run(1.2 * truth, 90.0);
    let after = world.estimator.status().unwrap();
    let (low, high) = (after.capacity_low.unwrap(), after.capacity_high.unwrap());
    assert_eq!(after.verdict, "poor");
    assert!(low <= truth && high >= truth && high >= low * (1.0 + 2.0 * after.error.unwrap()), "{after:?}");
}

const SEEDS: u64 = 200;
