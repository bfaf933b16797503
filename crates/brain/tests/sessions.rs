//! Sessions bound on demand, in virtual time: alerts must bring a group into balance, and leave it at rest.
//!
//! 2000 sessions whose demands differ (lognormal, sigma 1) are bound to 20 unequal members at random,
//! capacity aside. Each member reports its load every 3 s, each at a time of its own: the mean over the time
//! since the last report, with the noise of counting requests (100 a second for each unit of demand). At 300
//! s two members lose 60 % of their speed. A session under alert is asked with its next request. The measured
//! figure is the true load of the worst member over the load that all would have if it were spread evenly.

#![expect(clippy::print_stdout, reason = "the tables are what the runs are for")]

#[path = "fleet/dice.rs"]
mod dice;
#[path = "fleet/group.rs"]
mod group;
mod parallel;

use std::time::Duration;

use dice::Dice;
use group::group;
use parallel::each;
use plimsoll_brain::{
    Analyzer, Choice, GroupSpec, Member, MoveHistory, PickRequest, PickerState, Plan, ReportedLoad,
    SessionSize, StrategyParams, Time, should_sized_session_move, strategy,
};

const SESSIONS: usize = 2_000;

/// The capacities of ten members; there are two of each.
const CAPACITIES: [f64; 10] = [4.0, 4.0, 4.0, 4.0, 8.0, 8.0, 6.0, 6.0, 2.0, 2.0];

const MEMBERS: usize = 2 * CAPACITIES.len();

/// The two that lose speed, one of them small, and the remaining speed.
const SLOWED: [usize; 2] = [0, 8];
const SPEED: f64 = 0.4;

/// The times of the step and of the end, seconds.
const STEP: f64 = 300.0;
const END: f64 = 600.0;

/// The seconds between two reports of a member.
const PERIOD: f64 = 3.0;

/// The seconds of a tick: members report one after the other, one in each tick.
const TICK: f64 = PERIOD / MEMBERS as f64;

/// The requests a second for each unit of demand.
const REQUESTS: f64 = 100.0;

/// The time by which the group is to have settled: 25 reports.
const SETTLED: f64 = 25.0 * PERIOD;

/// The ratio that counts as fair.
const FAIR: f64 = 1.15;

/// A way to balance a group, and the reports.
struct Way {
    name: &'static str,
    strategy: &'static str,
    knobs: &'static [(&'static str, f64)],
    on_demand: bool,
    /// The number of balancers, each of which holds a part of the sessions and decides alone.
    balancers: usize,
    /// Whether each knows a session's part of a member's requests from it, as it does with HTTP.
    sized: bool,
    /// The part of the reports that is lost.
    lost: f64,
    /// The greatest reported load.
    most: f64,
}

const OURS: Way = Way {
    name: "ours",
    strategy: "least_loaded",
    knobs: &[],
    on_demand: true,
    balancers: 1,
    sized: false,
    lost: 0.0,
    most: f64::INFINITY,
};

/// Every balancer gets every report and moves its own sessions only.
const MANY: Way = Way { name: "ours, 7 balancers", balancers: 7, ..OURS };

/// Both with sessions of known size: they take turns.
const SIZED: Way = Way { name: "ours, in turn", sized: true, ..OURS };
const MANY_SIZED: Way = Way { name: "ours, 7 balancers, in turn", sized: true, ..MANY };

/// A monitor that drops reports.
const LOSSY: Way = Way { name: "ours, a third of reports lost", lost: 0.33, ..OURS };

/// A metric that saturates when fully used, as cpu does.
const FULL: Way = Way { name: "ours, loads of at most 1", most: 1.0, ..OURS };

const NEVER: Way = Way { name: "never", on_demand: false, ..OURS };

/// The papers' thresholds. The second is the best possible one at a load of one half.
const PAPERS: [Way; 6] = [
    Way { name: "critical 1.0", knobs: &[("critical", 1.0)], ..OURS },
    Way {
        name: "critical .8, per balance .01",
        knobs: &[("critical", 0.8), ("per_balance_load", 0.01)],
        ..OURS
    },
    Way { name: "critical 1.5", knobs: &[("critical", 1.5)], ..OURS },
    Way {
        name: "minimum_dispersion",
        strategy: "minimum_dispersion",
        knobs: &[("per_balance_load", 0.01)],
        ..OURS
    },
    Way { name: "load_average", strategy: "load_average", ..OURS },
    Way { name: "load_minimum", strategy: "load_minimum", knobs: &[("per_balance_load", 0.01)], ..OURS },
];

/// The result of one run. Pairs are before and after the step; ratios are the worst member's true load over
/// the fair one.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    /// The ratio 25 reports after the start, and after the step.
    ratio: [f64; 2],
    /// The seconds until the ratio is below 1.15 for the first time; the whole time if it never is.
    settled: [f64; 2],
    /// The part of the time after the 25th report in which it is not.
    off: [f64; 2],
    /// The moves of a session, in all.
    moves: f64,
    /// The moves of a session in a minute, in the last 100 s before the step and before the end.
    rest: f64,
}

struct Session {
    demand: f64,
    member: usize,
    moves: MoveHistory,
}

fn run(way: &Way, load: f64, seed: u64) -> Outcome {
    let mut dice = Dice(seed);
    let capacity = |index: usize| CAPACITIES[index % CAPACITIES.len()];
    let total: f64 = (0..MEMBERS).map(capacity).sum();
    let mut sessions: Vec<Session> = (0..SESSIONS)
        .map(|_| Session {
            demand: normal(&mut dice).exp(),
            member: (dice.bits() % MEMBERS as u64) as usize,
            moves: MoveHistory::default(),
        })
        .collect();
    let scale = load * total / sessions.iter().map(|session| session.demand).sum::<f64>();
    sessions.iter_mut().for_each(|session| session.demand *= scale);

    let mut brains: Vec<(Analyzer, Plan)> = (0..way.balancers)
        .map(|_| {
            let mut analyzer = Analyzer::new(spec(way, (0..MEMBERS).map(capacity)), Time(0));
            analyzer.set_on_demand(way.on_demand, Time(0));
            let plan = analyzer.plan(Time(0)).expect("the first call gives a plan");
            (analyzer, plan)
        })
        .collect();
    let ids: Vec<_> = brains[0].0.members().map(|(id, ..)| id).collect();
    // The demands of each balancer's sessions.
    let mut demands = vec![[0.0; MEMBERS]; way.balancers];
    for (index, session) in sessions.iter().enumerate() {
        demands[index % way.balancers][session.member] += session.demand;
        brains[index % way.balancers].1.members()[session.member].vitals.begin();
    }

    let mut speeds = [1.0; MEMBERS];
    let mut seen = [0.0; MEMBERS];
    let mut outcome = Outcome { settled: [STEP; 2], ..Outcome::default() };
    let (mut samples, mut unfair) = ([0.0; 2], [0.0; 2]);
    let mut resting = 0;
    for tick in 0..(END / TICK) as usize {
        let seconds = tick as f64 * TICK;
        let now = Time(0) + Duration::from_secs_f64(seconds + TICK);
        let phase = usize::from(seconds >= STEP);
        if phase == 1 {
            SLOWED.iter().for_each(|slowed| speeds[*slowed] = SPEED);
        }
        let since = seconds - phase as f64 * STEP;
        // A tick passes.
        for (place, seen) in seen.iter_mut().enumerate() {
            *seen += at(&demands, place) * TICK;
        }
        let place = tick % MEMBERS;
        if tick >= MEMBERS {
            let requests = counted(seen[place] * REQUESTS, &mut dice);
            let value = requests / REQUESTS / PERIOD / (capacity(place) * speeds[place]);
            let value = value.min(way.most);
            for (analyzer, plan) in &mut brains {
                if way.lost == 0.0 || unit(&mut dice) > way.lost {
                    assert!(
                        analyzer.handle_load(ids[place], ReportedLoad { value, at: now, of_host: false })
                    );
                }
                if analyzer.poll_timeout().is_some_and(|due| due <= now) {
                    analyzer.handle_timeout(now);
                }
                if let Some(new) = analyzer.plan(now) {
                    *plan = new;
                }
                while analyzer.poll_event().is_some() {}
            }
        }
        seen[place] = 0.0;
        for (which, (_, plan)) in brains.iter().enumerate() {
            if plan.members().iter().all(|member| member.shed.share <= 0.0) {
                continue;
            }
            for session in sessions.iter_mut().skip(which).step_by(way.balancers) {
                let moved = move_one(session, way.sized, plan, now, &mut dice, &mut demands[which]);
                outcome.moves += f64::from(u8::from(moved)) / SESSIONS as f64;
                resting += u32::from(moved && since >= STEP - 100.0);
            }
        }
        // Every few ticks, because a report does not come in each.
        if tick % 5 == 0 {
            let fair = demands.iter().flatten().sum::<f64>()
                / (0..MEMBERS).map(|index| capacity(index) * speeds[index]).sum::<f64>();
            let loads = (0..MEMBERS).map(|index| at(&demands, index) / (capacity(index) * speeds[index]));
            let ratio = loads.fold(0.0, f64::max) / fair;
            if ratio < FAIR {
                outcome.settled[phase] = outcome.settled[phase].min(since);
            }
            if since < SETTLED {
                outcome.ratio[phase] = ratio;
            } else {
                samples[phase] += 1.0;
                unfair[phase] += f64::from(u8::from(ratio >= FAIR));
            }
        }
    }
    for phase in 0..2 {
        outcome.off[phase] = unfair[phase] / samples[phase];
    }
    outcome.rest = f64::from(resting) / SESSIONS as f64 / (200.0 / 60.0);
    outcome
}

/// Returns the load of all balancers at a member.
fn at(demands: &[[f64; MEMBERS]], member: usize) -> f64 {
    demands.iter().map(|of| of[member]).sum()
}

/// Asks a session under alert, if it has a request within this tick; returns whether it moves. `demands`:
/// those of all with the same balancer.
fn move_one(
    session: &mut Session,
    sized: bool,
    plan: &Plan,
    now: Time,
    dice: &mut Dice,
    demands: &mut [f64; MEMBERS],
) -> bool {
    let member = &plan.members()[session.member];
    if member.shed.share <= 0.0 || unit(dice) > session.demand * REQUESTS * TICK {
        return false;
    }
    let here = (session.demand / demands[session.member]) as f32;
    let size = || sized.then_some(SessionSize { process_share: here, load_share: None, can_exchange: false });
    let Member { shed, vitals, .. } = member;
    if !should_sized_session_move(*shed, &vitals.migration, size, &mut session.moves, dice.bits(), now) {
        return false;
    }
    let ask = PickRequest { random_bits: dice.bits(), now, ..PickRequest::default() };
    let (chance, takes) = (dice.bits(), session.demand as f32);
    let target = if sized {
        plan.sized_rebind_target(takes, chance, &[member.id], Time(0))
    } else {
        plan.target(chance, &[member.id], Time(0))
    };
    let target = target.or_else(|| match plan.choose(&mut PickerState::default(), &ask, &[]) {
        Choice::Member(index) => Some(index),
        Choice::Full | Choice::Shed | Choice::NoMember => None,
    });
    let Some(target) = target.filter(|target| *target != session.member) else { return false };
    member.vitals.end();
    plan.members()[target].vitals.begin();
    if sized {
        plan.members()[target].vitals.migration.record_arrival(takes);
    }
    demands[session.member] -= session.demand;
    demands[target] += session.demand;
    session.member = target;
    true
}

fn spec(way: &Way, capacities: impl Iterator<Item = f64>) -> GroupSpec {
    let strategy = strategy::find(way.strategy).expect("a strategy of this name");
    let mut knobs = StrategyParams::defaults(strategy);
    for (name, value) in way.knobs {
        let index = strategy.params.iter().position(|knob| knob.name == *name).expect("a knob of this name");
        knobs.0[index] = *value;
    }
    group(strategy, knobs, capacities)
}

/// Returns a number between 0 and 1, neither included.
fn unit(dice: &mut Dice) -> f64 {
    ((dice.bits() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
}

/// Returns a normal number, by Box and Muller.
fn normal(dice: &mut Dice) -> f64 {
    (-2.0 * unit(dice).ln()).sqrt() * (std::f64::consts::TAU * unit(dice)).cos()
}

/// Returns a Poisson number; with a large mean it is approximately normal.
fn counted(mean: f64, dice: &mut Dice) -> f64 {
    if mean > 50.0 {
        return (mean + mean.sqrt() * normal(dice)).round().max(0.0);
    }
    let (mut count, mut left) = (0.0, mean);
    loop {
        left += unit(dice).ln();
        if left < 0.0 {
            return count;
        }
        count += 1.0;
    }
}

/// Returns the mean over seeds, printed as a row.
fn runs(way: &Way, load: f64, seeds: std::ops::Range<u64>) -> Outcome {
    let count = seeds.clone().count() as f64;
    let mut mean = Outcome::default();
    for one in each(seeds, |seed| run(way, load, seed)) {
        for phase in 0..2 {
            mean.ratio[phase] += one.ratio[phase] / count;
            mean.settled[phase] += one.settled[phase] / count;
            mean.off[phase] += one.off[phase] / count;
        }
        mean.moves += one.moves / count;
        mean.rest += one.rest / count;
    }
    let Outcome { ratio, settled, off, moves, rest } = mean;
    println!(
        "{:28} {load:<4} | {:6.2} {:6.2} | {:4.0} {:4.0} | {:4.0} {:4.0} | {moves:7.2} {rest:8.4}",
        way.name,
        ratio[0],
        ratio[1],
        settled[0],
        settled[1],
        100.0 * off[0],
        100.0 * off[1],
    );
    mean
}

fn heading() {
    println!(
        "                                  | max/fair      | settled s | unfair %  | moves of a session"
    );
    println!(
        "                             load | before  after |           |           |  in all  /min at rest"
    );
}

const LOADS: [f64; 3] = [0.5, 0.75, 0.9];

/// Checks targets R1, R2 and R3: one configuration, without a threshold, for every load.
fn settles(way: &Way, seeds: std::ops::Range<u64>) {
    for load in LOADS {
        let ours = runs(way, load, seeds.clone());
        // A full member does not report its excess: where nearly all are full, it gives away a little at a
        // time.
        let blind = way.most.is_finite();
        for phase in 0..if blind { 1 } else { 2 } {
            assert!(ours.ratio[phase] <= FAIR, "R1 at {load}: {ours:?}");
            assert!(ours.settled[phase] <= if blind { 75.0 } else { 60.0 }, "{load}: {ours:?}");
            assert!(ours.off[phase] <= 0.15, "{load}: {ours:?}");
        }
        assert!(!blind || ours.ratio[1] <= 2.5, "{load}: {ours:?}");
        assert!(ours.moves <= 0.5, "R2 at {load}: {ours:?}");
        assert!(ours.rest <= 0.01, "R2 at rest at {load}: {ours:?}");
    }
}

/// Checks that no threshold brings a group into balance: the worst member stays far off, or sessions keep
/// moving, or both.
fn thresholds_do_not(loads: &[f64], seeds: std::ops::Range<u64>) {
    // The best of them at a load of one half, and the worst but one at 0.9.
    let mut second = Vec::new();
    for load in loads {
        for (place, way) in PAPERS.iter().enumerate() {
            let papers = runs(way, *load, seeds.clone());
            assert!(papers.off.iter().all(|off| *off > 0.5), "{} at {load}: {papers:?}", way.name);
            if place == 1 {
                second.push(papers);
            }
        }
    }
    let [half, .., most] = &second[..] else { panic!("two loads at least") };
    assert!(half.ratio[0] < 1.6 && half.rest < 0.1, "{half:?}");
    assert!(most.ratio[0] > 1.5 * half.ratio[0] && most.rest > 100.0 * half.rest.max(0.01), "{most:?}");
}

#[test]
fn sessions_settle_and_stay() {
    heading();
    settles(&OURS, 1..6);
    settles(&SIZED, 1..6);
}

#[test]
fn any_number_of_balancers_moves_a_surplus_once() {
    heading();
    settles(&MANY, 1..3);
    settles(&MANY_SIZED, 1..3);
}

#[test]
fn poor_reports_do() {
    heading();
    settles(&LOSSY, 1..4);
    settles(&FULL, 1..4);
}

#[test]
fn left_alone_they_stay_uneven() {
    heading();
    let never = runs(&NEVER, 0.75, 1..2);
    assert!(never.ratio[0] > 2.0 && never.ratio[1] > 4.0 && never.moves == 0.0, "{never:?}");
}

#[test]
fn a_threshold_that_fits_one_load_fits_no_other() {
    heading();
    thresholds_do_not(&[0.5, 0.9], 1..2);
}

#[test]
#[ignore = "long: make bench-sim"]
fn long() {
    heading();
    settles(&OURS, 1..21);
    settles(&SIZED, 1..21);
    settles(&MANY, 1..21);
    settles(&MANY_SIZED, 1..21);
    settles(&LOSSY, 1..21);
    settles(&FULL, 1..21);
    for load in LOADS {
        runs(&NEVER, load, 1..6);
    }
    thresholds_do_not(&LOADS, 1..6);
}

/// Checks that the same seed gives the same run.
#[test]
fn a_run_can_be_replayed() {
    assert_eq!(format!("{:?}", run(&OURS, 0.75, 7)), format!("{:?}", run(&OURS, 0.75, 7)));
}
