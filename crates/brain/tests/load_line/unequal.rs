//! Groups of unequal members: some are never busy, some are never chosen, some have an agent.

use plimsoll_brain::status::{LoadLine, WhatIf};

use crate::dice::Dice;
use crate::parallel;
use crate::world::{Kind, Law, Server, World};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Adaptive,
    LeastConnections,
    RoundRobin,
}

/// A group, and its load line after some minutes.
struct Drawn {
    line: LoadLine,
    /// The true requests a second.
    truth: f64,
    /// The part of the members that were full at times or have an agent.
    busy: f64,
    /// The looks with an end below the served rate, and those with a negative headroom.
    below: u32,
    over: u32,
    what: String,
}

fn drawn(seed: u64) -> Drawn {
    let mut dice = Dice::new(seed, 38);
    let count = 2 + dice.below(9);
    let kind = if dice.unit() < 0.7 { Kind::Line } else { Kind::Shared };
    let law = [Law::Exponential, Law::Exponential, Law::Constant, Law::Lognormal][dice.below(4)];
    let least = dice.between(0.01, 0.03);
    let workers: Vec<f64> = (0..count).map(|_| 1.0 + dice.below(8) as f64).collect();
    let means: Vec<f64> = (0..count).map(|_| least * 4_f64.powf(dice.unit())).collect();
    let capacities: Vec<f64> = workers.iter().zip(&means).map(|(workers, mean)| workers / mean).collect();
    let way = [Way::Adaptive, Way::LeastConnections, Way::RoundRobin][dice.below(3)];
    let servers = workers.iter().zip(&means).map(|(workers, mean)| Server::new(kind, *workers, *mean));
    let mut world = World::new(servers.collect(), false, way != Way::RoundRobin, seed);
    (world.law, world.by_time) = (law, way == Way::Adaptive);
    let configured = dice.below(4);
    world.weights = match configured {
        0 => vec![1.0; count],
        1 => workers,
        2 => capacities.iter().map(|capacity| (capacity * dice.between(0.8, 1.25)).round()).collect(),
        // Meaningless numbers.
        _ => (0..count).map(|_| dice.between(1.0, 8.0).round()).collect(),
    };
    let agents = [0.0, 0.0, 0.5, 1.0][dice.below(4)];
    world.agents = (0..count).map(|_| dice.unit() < agents).collect();
    let all: f64 = capacities.iter().sum();
    let truth = match way {
        // The weakest is full first.
        Way::RoundRobin => count as f64 * capacities.iter().copied().fold(f64::INFINITY, f64::min),
        _ => all,
    };
    let rate = dice.between(0.3, 0.6) * truth;
    if way != Way::RoundRobin && dice.unit() < 0.4 {
        // A third gets nothing, as far as the others can easily do all the work.
        let mut left = all;
        for (place, capacity) in capacities.iter().enumerate().take(count.div_ceil(3).min(count - 1)) {
            if rate < 0.8 * (left - capacity) {
                left -= capacity;
                world.asleep[place] = true;
            }
        }
    }
    world.run(rate, dice.between(60.0, 240.0).floor());
    let (mut below, mut over) = (0, 0);
    for _ in 0..30 {
        world.run(rate, 1.0);
        let line = world.estimator.status().unwrap();
        let less = |end: Option<f64>| u32::from(end.is_some_and(|end| end < line.requests_per_second));
        below += less(line.capacity_low) + less(line.capacity_high);
        over += u32::from(line.headroom.is_some_and(|free| free < 0.0));
    }
    let known = |(server, agent): (&Server, &bool)| *agent || server.met >= 50;
    let busy = world.servers.iter().zip(&world.agents).filter(|pair| known(*pair)).count();
    let what = format!(
        "{count} {kind:?} {law:?}, {way:?} by {configured}, {:.2}, {busy} busy, {} agents, {} asleep",
        rate / truth,
        world.agents.iter().filter(|agent| **agent).count(),
        world.asleep.iter().filter(|asleep| **asleep).count(),
    );
    let line = world.estimator.status().unwrap();
    Drawn { line, truth, busy: busy as f64 / count as f64, below, over, what }
}

#[test]
fn the_line_of_unequal_members_lies_within_what_is_shown() {
    let (mut shown, mut within, mut busy, mut numbers, mut near) = (0, 0, 0, 0, 0);
    let mut missed = Vec::new();
    for (seed, one) in parallel::each(0..SEEDS, drawn).into_iter().enumerate() {
        let Drawn { line, truth, what, .. } = one;
        let what = format!("{seed}: {truth:.0}, {what}: {line:?}");
        assert_eq!((one.below, one.over), (0, 0), "{what}");
        // A percentage comes with a number, and no number with a range.
        assert_eq!(line.capacity.is_some(), line.headroom.is_some(), "{what}");
        assert!(line.capacity.is_some() != matches!(&*line.verdict, "range" | "unknown"), "{what}");
        let (low, high) = (line.capacity_low.unwrap_or(0.0), line.capacity_high.unwrap_or(f64::INFINITY));
        let lies_within = low <= truth && truth <= high;
        shown += u32::from(high.is_finite());
        within += u32::from(high.is_finite() && lies_within);
        let mut right = lies_within;
        if one.busy >= 0.66 {
            busy += 1;
            if let Some(middle) = line.capacity {
                let is_near = (middle / truth - 1.0).abs() <= 0.15;
                (numbers, near) = (numbers + 1, near + u32::from(is_near));
                right &= is_near;
            }
        }
        if !right {
            missed.push(what);
        }
    }
    assert!(20 * within >= 19 * shown && 2 * shown >= SEEDS as u32, "{within} of {shown}: {missed:#?}");
    assert!(20 * near >= 19 * numbers && 2 * numbers >= busy, "{near} of {numbers} of {busy}: {missed:#?}");
}

/// Returns two members, with four workers and with one.
fn strong_and_weak() -> World {
    let servers = vec![Server::new(Kind::Line, 4.0, 0.04), Server::new(Kind::Line, 1.0, 0.04)];
    let mut world = World::new(servers, false, true, 3);
    world.weights = vec![1.0; 2];
    world
}

fn double(line: &LoadLine) -> &WhatIf {
    line.what_if.iter().find(|change| change.change == "double").unwrap()
}

#[test]
fn who_was_not_seen_busy_promises_nothing() {
    let mut world = strong_and_weak();
    world.run(60.0, 20.0);
    for _ in 0..60 {
        world.run(60.0, 1.0);
        let line = world.estimator.status().unwrap();
        assert_eq!((line.capacity, line.headroom), (None, None), "{line:?}");
        assert!(line.capacity_low.unwrap() >= line.requests_per_second, "{line:?}");
        assert!(line.capacity_high.is_none_or(|high| high > 125.0), "{line:?}");
        // This may be too much, but there is no statement.
        let said = line.what_if.iter().find(|change| change.change == "double");
        assert!(said.is_none_or(|double| double.over != Some(true) && double.headroom.is_none()), "{line:?}");
    }
}

#[test]
fn who_was_seen_busy_has_a_number() {
    let mut world = strong_and_weak();
    world.run(110.0, 120.0);
    let line = world.estimator.status().unwrap();
    let capacity = line.capacity.unwrap_or_else(|| panic!("{line:?}"));
    assert!((capacity / 125.0 - 1.0).abs() < 0.15 && line.headroom.unwrap() >= 0.0, "{line:?}");
    assert_eq!(double(&line).over, Some(true), "{line:?}");
    // It stays so for a while.
    world.run(60.0, 30.0);
    let line = world.estimator.status().unwrap();
    assert!((line.capacity.unwrap() / 125.0 - 1.0).abs() < 0.15, "{line:?}");
}

/// Checks ten equal members and an unknown eleventh, which is probably like them.
#[test]
fn one_of_many_that_is_not_known_makes_no_range() {
    let mut world = World::new(vec![Server::new(Kind::Shared, 2.0, 0.02); 11], true, true, 5);
    world.asleep[4] = true;
    world.run(500.0, 60.0);
    let line = world.estimator.status().unwrap();
    assert!((line.capacity.unwrap() / 1100.0 - 1.0).abs() < 0.05, "{line:?}");
    assert!(line.capacity_low.unwrap() < 1010.0 && line.capacity_high.unwrap() > 1130.0, "{line:?}");
    // Two equal ones of four show nothing about the others.
    let mut world = World::new(vec![Server::new(Kind::Shared, 2.0, 0.02); 4], true, true, 5);
    (world.asleep[1], world.asleep[2]) = (true, true);
    world.run(100.0, 60.0);
    let line = world.estimator.status().unwrap();
    assert_eq!((line.capacity, &*line.verdict), (None, "range"), "{line:?}");
    assert!(line.why.starts_with("2 of 4 members never had enough to do"), "{}", line.why);
    assert!(line.capacity_low.unwrap() < 210.0 && line.capacity_high.unwrap() > 400.0, "{line:?}");
    // The two known ones can do twice of this, whatever the others.
    world.run(80.0, 30.0);
    let line = world.estimator.status().unwrap();
    assert_eq!((double(&line).over, double(&line).capacity), (Some(false), None), "{line:?}");
}

/// Checks that the rate of a full group shows nothing about its remaining members.
#[test]
fn what_was_served_by_somebody_who_left_is_no_lower_end() {
    let mut world = World::new(vec![Server::new(Kind::Shared, 2.0, 0.02); 4], true, true, 5);
    world.run(330.0, 60.0);
    world.gone[0] = true;
    world.asleep[0] = true;
    world.run(150.0, 6.0);
    let line = world.estimator.status().unwrap();
    assert!(line.capacity_high.is_none_or(|high| high < 345.0), "{line:?}");
    world.run(150.0, 20.0);
    let line = world.estimator.status().unwrap();
    assert!((line.capacity.unwrap() / 300.0 - 1.0).abs() < 0.1, "{line:?}");
}

const SEEDS: u64 = 200;
