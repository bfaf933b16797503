//! Groups that share hosts, in virtual time. The load of a host is one number, reported to every group that
//! has a member there, and each group moves its own sessions. Together they must move the surplus once, and
//! not chase each other.
//!
//! 2000 sessions of unequal demand, half of each group. One group is on hosts 0 to 14, the other on 5 to 19;
//! ten hosts have both. Each host reports the work it does for both, every 3 s, with the noise of counting.
//! At 300 s two hosts lose 60 % of their speed, one of them shared. A session is moved with the part that its
//! host's alert asks for. That is a part of the whole surplus, so the moves of both groups add up to the
//! surplus.

#[path = "fleet/dice.rs"]
mod dice;

use std::time::Duration;

use dice::Dice;
use plimsoll_brain::{
    Analyzer, GroupSpec, MemberId, MemberSpec, MoveHistory, Plan, ReportedLoad, StrategyParams, Time,
    WhenAllDown, should_session_move, strategy,
};

const HOSTS: usize = 20;
const EACH: usize = 15;
const SESSIONS: usize = 2_000;
const PERIOD: f64 = 3.0;
const TICK: f64 = PERIOD / HOSTS as f64;
const STEP: f64 = 300.0;
const END: f64 = 600.0;
/// The requests a second for each unit of demand.
const REQUESTS: f64 = 100.0;

/// A group, and the first of its hosts.
struct Group {
    analyzer: Analyzer,
    plan: Plan,
    ids: Vec<MemberId>,
    first: usize,
}

struct Session {
    group: usize,
    host: usize,
    demand: f64,
    moves: MoveHistory,
}

/// The result.
#[derive(Debug, Default)]
struct Outcome {
    /// The load of the fullest host over the mean, averaged over the last 100 s before the step and before
    /// the end.
    worst: [f64; 2],
    /// The moves of a session in all, and of one in a minute at rest.
    moves: f64,
    rest: f64,
}

/// The reported load: that of the whole host, or only the group's own.
#[derive(Clone, Copy, PartialEq)]
enum Told {
    Host,
    Own,
}

fn run(told: Told, seed: u64) -> Outcome {
    let mut dice = Dice(seed);
    let mut groups = [0, HOSTS - EACH].map(group);
    let mut sessions: Vec<Session> = (0..SESSIONS)
        .map(|index| Session {
            group: index % 2,
            host: groups[index % 2].first + (dice.bits() % EACH as u64) as usize,
            demand: normal(&mut dice).exp(),
            moves: MoveHistory::default(),
        })
        .collect();
    let scale = 0.6 * HOSTS as f64 / sessions.iter().map(|session| session.demand).sum::<f64>();
    let mut demands = [[0.0; HOSTS]; 2];
    for session in &mut sessions {
        session.demand *= scale;
        demands[session.group][session.host] += session.demand;
    }
    let mut speeds = [1.0; HOSTS];
    let (mut outcome, mut samples, mut resting) = (Outcome::default(), [0.0; 2], 0);
    for tick in 0..(END / TICK) as usize {
        let seconds = tick as f64 * TICK;
        let now = Time(0) + Duration::from_secs_f64(seconds + TICK);
        let phase = usize::from(seconds >= STEP);
        if phase == 1 {
            (speeds[2], speeds[8]) = (0.4, 0.4);
        }
        let host = tick % HOSTS;
        // Noise as if each request of a period was counted.
        let mut measure = |demand: f64| {
            let requests = demand * REQUESTS * PERIOD;
            (requests + requests.sqrt() * normal(&mut dice)).max(0.0) / REQUESTS / PERIOD / speeds[host]
        };
        let whole = measure(demands[0][host] + demands[1][host]);
        let own = [measure(demands[0][host]), measure(demands[1][host])];
        for (which, group) in groups.iter_mut().enumerate() {
            if let Some(place) = host.checked_sub(group.first).filter(|place| *place < EACH) {
                let value = if told == Told::Host { whole } else { own[which] };
                assert!(group.analyzer.handle_load(
                    group.ids[place],
                    ReportedLoad { value, at: now, of_host: told == Told::Host }
                ));
            }
            group.settle(now);
        }
        for session in &mut sessions {
            let moved = groups[session.group].ask(session, now, &mut dice, &mut demands[session.group]);
            outcome.moves += f64::from(u8::from(moved)) / SESSIONS as f64;
            resting += u32::from(moved && seconds - phase as f64 * STEP >= STEP - 100.0);
        }
        if seconds - phase as f64 * STEP >= STEP - 100.0 {
            let loads: Vec<f64> =
                (0..HOSTS).map(|host| (demands[0][host] + demands[1][host]) / speeds[host]).collect();
            let fair = demands.iter().flatten().sum::<f64>() / speeds.iter().sum::<f64>();
            outcome.worst[phase] += loads.iter().fold(0.0, |most: f64, load| most.max(*load)) / fair;
            samples[phase] += 1.0;
        }
    }
    (0..2).for_each(|phase| outcome.worst[phase] /= samples[phase]);
    outcome.rest = f64::from(resting) / SESSIONS as f64 / (200.0 / 60.0);
    outcome
}

impl Group {
    fn settle(&mut self, now: Time) {
        if self.analyzer.poll_timeout().is_some_and(|due| due <= now) {
            self.analyzer.handle_timeout(now);
        }
        if let Some(plan) = self.analyzer.plan(now) {
            self.plan = plan;
        }
        while self.analyzer.poll_event().is_some() {}
    }

    /// Asks a session under alert, if it has a request within this tick; returns whether it moves.
    fn ask(&self, session: &mut Session, now: Time, dice: &mut Dice, demands: &mut [f64; HOSTS]) -> bool {
        let member = &self.plan.members()[session.host - self.first];
        if member.shed.share <= 0.0 || unit(dice) > session.demand * REQUESTS * TICK {
            return false;
        }
        if !should_session_move(member.shed, &mut session.moves, dice.bits(), now) {
            return false;
        }
        let Some(target) = self.plan.target(dice.bits(), &[member.id], Time(0)) else { return false };
        demands[session.host] -= session.demand;
        session.host = self.first + target;
        demands[session.host] += session.demand;
        true
    }
}

fn group(first: usize) -> Group {
    let strategy = strategy::find("least_loaded").expect("a strategy of this name");
    let member = |index: usize| {
        // The same host, another port in each group.
        let name = format!("10.0.0.{}:{}", first + index, 80 + first);
        MemberSpec {
            address: name.parse().expect("an address"),
            name: name.into(),
            capacity: 1.0,
            limit: u32::MAX,
            leaving: false,
            checked: false,
        }
    };
    let spec = GroupSpec {
        name: format!("from {first}").into(),
        strategy,
        params: StrategyParams::defaults(strategy),
        members: (0..EACH).map(member).collect(),
        health: None,
        outlier: None,
        slow_start: Duration::ZERO,
        when_all_down: WhenAllDown::Reject,
        admission: None,
        objective: None,
        aperture: None,
    };
    let mut analyzer = Analyzer::new(spec, Time(0));
    analyzer.set_on_demand(true, Time(0));
    let plan = analyzer.plan(Time(0)).expect("the first call gives a plan");
    let ids = analyzer.members().map(|(id, ..)| id).collect();
    Group { analyzer, plan, ids, first }
}

fn unit(dice: &mut Dice) -> f64 {
    ((dice.bits() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
}

/// Returns a normal number, by Box and Muller.
fn normal(dice: &mut Dice) -> f64 {
    (-2.0 * unit(dice).ln()).sqrt() * (std::f64::consts::TAU * unit(dice)).cos()
}

#[test]
fn groups_that_share_hosts_do_not_chase_each_other() {
    for seed in 1..=5 {
        let one = run(Told::Host, seed);
        let other = run(Told::Own, seed);
        // Even, though neither group knows the other; and at rest no session moves.
        assert!(one.worst.iter().all(|worst| *worst < 1.15), "{one:?}");
        assert!(one.moves < 0.3 && one.rest < 0.01, "{one:?}");
        // Groups that only know of themselves leave shared hosts much fuller than others.
        assert!(other.worst.iter().all(|worst| *worst > 1.3), "{other:?}");
    }
}
