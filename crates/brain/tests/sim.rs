//! Strategies against members that queue, in virtual time: the effect of the choice on the latency of
//! requests.
//!
//! Arrivals are Poisson, service times exponential, each member works on a few requests at once and queues
//! the rest in order. Everything follows from the seed.

mod fleet;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fleet::{Dice, members};
use plimsoll_brain::{
    Analyzer, Choice, GroupSpec, MemberSpec, OutlierSpec, PickRequest, PickerState, Plan, StrategyParams,
    Time, Vitals, WhenAllDown, strategy,
};

const SEEDS: [u64; 3] = [1, 2, 3];

/// The requests that a member works on at once.
const WORKERS: usize = 4;

/// The mean service time of a healthy member, seconds.
const SERVICE: f64 = 0.010;

/// The behaviour of a member over time (seconds since the start).
#[derive(Clone, Copy)]
enum Nature {
    Healthy,
    /// This many times slower, between two times.
    Slow(f64, f64, f64),
    /// Fails at once, between two times.
    Failing(f64, f64),
}

impl Nature {
    /// Returns the seconds that a request takes, and whether it fails.
    fn serve(self, now: f64, dice: &mut Dice) -> (f64, bool) {
        let work = -SERVICE * unit(dice).ln();
        match self {
            Self::Slow(times, from, to) if (from..to).contains(&now) => (work * times, false),
            Self::Failing(from, to) if (from..to).contains(&now) => (0.0005, true),
            _ => (work, false),
        }
    }
}

/// An ended request.
struct Outcome {
    arrived: f64,
    member: usize,
    latency: f64,
    failed: bool,
}

struct Outcomes(Vec<Outcome>);

impl Outcomes {
    fn between(&self, from: f64, to: f64) -> impl Iterator<Item = &Outcome> {
        self.0.iter().filter(move |outcome| (from..to).contains(&outcome.arrived))
    }

    /// Returns the quantile of the latencies of requests that arrived between two times, seconds.
    fn quantile(&self, quantile: f64, from: f64, to: f64) -> f64 {
        let mut latencies: Vec<f64> = self.between(from, to).map(|outcome| outcome.latency).collect();
        latencies.sort_by(f64::total_cmp);
        latencies[(quantile * (latencies.len() - 1) as f64) as usize]
    }

    fn failed(&self, from: f64, to: f64) -> f64 {
        let failed = self.between(from, to).filter(|outcome| outcome.failed).count();
        failed as f64 / self.between(from, to).count() as f64
    }

    /// Returns a member's share of the requests, as a multiple of a fair one.
    fn share(&self, member: usize, members: usize, from: f64, to: f64) -> f64 {
        let own = self.between(from, to).filter(|outcome| outcome.member == member).count();
        own as f64 / self.between(from, to).count() as f64 * members as f64
    }
}

/// The decider: a fixed plan, or an analyzer that gets failures.
enum Brain {
    Plan(Plan),
    Analyzer(Box<Analyzer>, Plan),
}

impl Brain {
    fn fixed(name: &str, knobs: Option<Vec<f64>>, count: usize) -> Self {
        let strategy = strategy::find(name).expect("a strategy of this name");
        let knobs = knobs.map_or_else(|| StrategyParams::defaults(strategy), StrategyParams);
        Self::Plan(Plan::new(strategy, knobs, members(&vec![1.0; count])))
    }

    fn plan(&self) -> &Plan {
        match self {
            Self::Plan(plan) | Self::Analyzer(_, plan) => plan,
        }
    }

    /// Records an end as the proxy does: counts the streak, calls the analyzer when it is long enough or a
    /// timeout is due.
    fn ended(&mut self, vitals: &Vitals, id: u32, failed: bool, now: Time) {
        let streak = if failed { vitals.record_failure() } else { 0 };
        if !failed {
            vitals.record_success();
        }
        let Self::Analyzer(analyzer, plan) = self else { return };
        if streak >= 5 {
            analyzer.handle_streak(plimsoll_brain::MemberId(id), now);
        }
        if analyzer.poll_timeout().is_some_and(|next| next <= now) {
            analyzer.handle_timeout(now);
        }
        if let Some(new) = analyzer.plan(now) {
            *plan = new;
        }
    }
}

#[derive(Default)]
struct Server {
    busy: usize,
    queue: VecDeque<usize>,
}

/// A request in flight.
struct Flight {
    arrived: f64,
    id: u32,
    vitals: Arc<Vitals>,
    failed: bool,
}

/// Runs `rate` requests a second for `seconds` against members of the given natures.
fn run(mut brain: Brain, natures: &[Nature], rate: f64, seconds: f64, seed: u64) -> Outcomes {
    let mut dice = Dice(seed);
    let mut hand = PickerState::default();
    let mut servers: Vec<Server> = natures.iter().map(|_| Server::default()).collect();
    let mut flights: Vec<Flight> = Vec::new();
    let mut outcomes = Vec::new();
    // The nanoseconds at which a flight's service ends.
    let mut ends: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut arrival = 0.0;
    loop {
        let end = ends.peek().map_or(f64::INFINITY, |Reverse((nanos, _))| *nanos as f64 / 1e9);
        let (now, start) = if arrival < seconds && arrival <= end {
            let now = arrival;
            arrival -= unit(&mut dice).ln() / rate;
            let ask = PickRequest {
                turn: flights.len() as u64,
                random_bits: dice.bits(),
                key: dice.bits(),
                now: time(now),
                ..PickRequest::default()
            };
            let Choice::Member(index) = brain.plan().choose(&mut hand, &ask, &[]) else {
                panic!("nobody is left")
            };
            let member = &brain.plan().members()[index];
            member.vitals.begin();
            let (id, vitals) = (member.id.0, member.vitals.clone());
            let server = &mut servers[id as usize];
            server.queue.push_back(flights.len());
            flights.push(Flight { arrived: now, id, vitals, failed: false });
            (now, id as usize)
        } else if let Some(Reverse((_, done))) = ends.pop() {
            let flight = &flights[done];
            let latency = (end - flight.arrived).max(0.0);
            flight.vitals.end();
            let now = time(end);
            brain.plan().observe(
                &mut hand,
                &flight.vitals,
                Duration::from_secs_f64(latency),
                flight.failed,
                now,
            );
            brain.ended(&flight.vitals, flight.id, flight.failed, now);
            servers[flight.id as usize].busy -= 1;
            let (arrived, member, failed) = (flight.arrived, flight.id as usize, flight.failed);
            outcomes.push(Outcome { arrived, member, latency, failed });
            (end, member)
        } else {
            return Outcomes(outcomes);
        };
        let server = &mut servers[start];
        while let Some(flight) = server.queue.pop_front_if(|_| server.busy < WORKERS) {
            server.busy += 1;
            let (work, failed) = natures[start].serve(now, &mut dice);
            flights[flight].failed = failed;
            ends.push(Reverse((((now + work) * 1e9) as u64, flight)));
        }
    }
}

/// Returns a number between 0 and 1, neither included.
fn unit(dice: &mut Dice) -> f64 {
    ((dice.bits() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
}

fn time(seconds: f64) -> Time {
    Time((seconds * 1e9) as u64)
}

/// Returns the requests a second that load `count` healthy members to this share.
fn load(share: f64, count: usize) -> f64 {
    share * (count * WORKERS) as f64 / SERVICE
}

#[test]
fn knowing_the_load_beats_not_knowing_it() {
    for seed in SEEDS {
        let p99 = |name: &str| {
            let run = run(Brain::fixed(name, None, 10), &[Nature::Healthy; 10], load(0.85, 10), 30.0, seed);
            run.quantile(0.99, 2.0, 30.0)
        };
        let (least, two, ewma) = (p99("least_connections"), p99("least_request"), p99("peak_ewma"));
        let (turns, chance) = (p99("round_robin"), p99("random"));
        assert!(least < two && two < 0.85 * turns && turns < chance, "{least} {two} {turns} {chance}");
        assert!(ewma < 0.85 * turns, "{ewma} {turns}");
    }
}

#[test]
fn a_slow_member_hurts_only_those_who_do_not_look() {
    let mut natures = [Nature::Healthy; 10];
    natures[3] = Nature::Slow(10.0, 0.0, 100.0);
    for seed in SEEDS {
        let run = |name: &str| run(Brain::fixed(name, None, 10), &natures, load(0.5, 10), 30.0, seed);
        let turns = run("round_robin").quantile(0.99, 5.0, 30.0);
        for name in ["least_connections", "least_request", "peak_ewma"] {
            let looking = run(name);
            let p99 = looking.quantile(0.99, 5.0, 30.0);
            assert!(p99 < 0.1 * turns, "{name}: {p99} s against {turns} s");
            let share = looking.share(3, 10, 5.0, 30.0);
            assert!(share < 0.5, "{name}: the slow member has {share} of a fair share");
        }
    }
}

#[test]
fn a_member_that_recovers_gets_its_share_back() {
    let mut natures = [Nature::Healthy; 10];
    natures[3] = Nature::Slow(20.0, 10.0, 30.0);
    for seed in SEEDS {
        for name in ["least_connections", "least_request", "peak_ewma"] {
            let run = run(Brain::fixed(name, None, 10), &natures, load(0.5, 10), 120.0, seed);
            assert!(run.share(3, 10, 12.0, 30.0) < 0.4, "{name}");
            let share = run.share(3, 10, 80.0, 120.0);
            assert!(share > 0.8, "{name}: {share} of a fair share after it recovered");
        }
    }
}

#[test]
fn a_member_that_fails_fast_is_no_black_hole_for_peak_ewma() {
    let mut natures = [Nature::Healthy; 10];
    natures[3] = Nature::Failing(10.0, 1000.0);
    for seed in SEEDS {
        let failed = |name: &str, knobs: Option<Vec<f64>>| {
            run(Brain::fixed(name, knobs, 10), &natures, load(0.5, 10), 60.0, seed).failed(10.0, 60.0)
        };
        let turns = failed("round_robin", None);
        assert!((0.09..0.11).contains(&turns));
        let ewma = failed("peak_ewma", None);
        assert!(ewma < 0.002, "{ewma}");
        // Without the penalty, and with every strategy that only counts requests in flight, the failing
        // member looks best.
        assert!(failed("peak_ewma", Some(vec![10.0, 0.0])) > 1.5 * turns);
        assert!(failed("least_connections", None) > 1.5 * turns);
    }
}

#[test]
fn ejection_closes_the_black_hole_for_all_others() {
    let mut natures = [Nature::Healthy; 10];
    natures[3] = Nature::Failing(10.0, 30.0);
    for name in ["least_connections", "round_robin", "random", "least_request", "rendezvous"] {
        let strategy = strategy::find(name).expect("a strategy of this name");
        let spec = GroupSpec {
            name: Arc::from("web"),
            strategy,
            params: StrategyParams::defaults(strategy),
            members: members(&[1.0; 10])
                .into_iter()
                .map(|member| MemberSpec {
                    name: member.name,
                    address: member.address,
                    capacity: 1.0,
                    limit: u32::MAX,
                    leaving: false,
                    checked: false,
                })
                .collect(),
            health: None,
            outlier: Some(OutlierSpec {
                false_alarm: 0.0,
                consecutive: 5,
                interval: Duration::from_secs(10),
                deviations: 1.9,
                min_requests: 100,
                ejection: Duration::from_secs(5),
                max_ejection: Duration::from_secs(300),
                max_ejected: 0.1,
            }),
            slow_start: Duration::from_secs(5),
            when_all_down: WhenAllDown::Reject,
            admission: None,
            objective: None,
            aperture: None,
        };
        for seed in SEEDS {
            let mut analyzer = Box::new(Analyzer::new(spec.clone(), Time(0)));
            let plan = analyzer.plan(Time(0)).unwrap();
            let run = run(Brain::Analyzer(analyzer, plan), &natures, load(0.5, 10), 120.0, seed);
            let failed = run.failed(10.0, 40.0);
            assert!(failed > 0.0 && failed < 0.002, "{name}: {failed}");
            let share = run.share(3, 10, 70.0, 120.0);
            assert!((0.9..1.1).contains(&share), "{name}: {share} of a fair share after it recovered");
        }
    }
}

/// Checks that a hanging member without an estimate gets a request or two, not the flood that its idleness
/// attracts.
#[test]
fn an_unknown_member_is_tried_and_not_flooded() {
    let mut natures = [Nature::Healthy; 10];
    natures[3] = Nature::Slow(1000.0, 0.0, 1000.0);
    for seed in SEEDS {
        let run = run(Brain::fixed("peak_ewma", None, 10), &natures, load(0.5, 10), 2.0, seed);
        let tried = run.between(0.0, 1.0).filter(|outcome| outcome.member == 3).count();
        assert!((1..=5).contains(&tried), "{tried} requests to a member that does not answer");
    }
}

#[test]
fn a_run_can_be_replayed() {
    for strategy in strategy::ALL {
        let trace = || -> Vec<(u64, usize)> {
            let run = run(Brain::fixed(strategy.name, None, 5), &[Nature::Healthy; 5], load(0.7, 5), 2.0, 9);
            run.0.iter().map(|outcome| ((outcome.latency * 1e9) as u64, outcome.member)).collect()
        };
        assert_eq!(trace(), trace(), "{}", strategy.name);
    }
}
