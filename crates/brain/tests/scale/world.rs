//! A group of members in virtual time: random arrivals, members that share their processor among their
//! requests, and a start time.
//!
//! It is a fluid with random arrivals. At a utilization of `u` a request takes `S / (1 - u)`, as with a
//! shared processor. Arrivals beyond the capacity are worked off later and wait for that.

use std::time::Duration;

use plimsoll_brain::Time;
use plimsoll_brain::autoscale::{
    GroupObservation, MemberObservation, ScaleDecision, ScaledMemberState, Scaler,
};

use crate::dice::Dice;

/// The requests a second that a member of capacity 1 can serve, and the time of one alone.
pub(crate) const PACE: f64 = 100.0;
pub(crate) const ALONE: f64 = 0.01;

/// A member.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) capacity: f64,
    /// The second from which it can be used.
    pub(crate) ready: f64,
}

/// The group, and its counts.
pub(crate) struct World {
    pub(crate) servers: Vec<Server>,
    /// The seconds that a member takes to start.
    pub(crate) boot: f64,
    dice: Dice,
    now: f64,
    backlog: f64,
    last: u32,
    /// The seconds in which the goal was met, and all seconds.
    pub(crate) met: f64,
    pub(crate) seconds: f64,
    /// The member-seconds, from the start.
    pub(crate) paid: f64,
    /// The number of starts and removals.
    pub(crate) changes: u32,
    /// The observations of the last second.
    came: f64,
    response: f64,
}

impl World {
    pub(crate) fn new(members: usize, boot: f64, seed: u64) -> Self {
        let mut world = Self {
            servers: Vec::new(),
            boot,
            dice: Dice::new(seed, 7),
            now: 0.0,
            backlog: 0.0,
            last: 0,
            met: 0.0,
            seconds: 0.0,
            paid: 0.0,
            changes: 0,
            came: 0.0,
            response: ALONE,
        };
        (0..members).for_each(|_| world.start(1.0));
        world.servers.iter_mut().for_each(|server| server.ready = 0.0);
        world
    }

    pub(crate) fn start(&mut self, capacity: f64) {
        self.last += 1;
        let ready = self.now + self.boot;
        self.servers.push(Server { name: format!("m{}", self.last), capacity, ready });
    }

    /// Runs a second with `rate` requests a second; records whether the goal `response` was met in it.
    pub(crate) fn second(&mut self, rate: f64, response: f64) {
        const PARTS: u32 = 10;
        let (mut came, mut worst) = (0.0, 0.0_f64);
        for _ in 0..PARTS {
            let dt = 1.0 / f64::from(PARTS);
            let pace: f64 = self.usable().map(|server| server.capacity * PACE).sum();
            let arrivals = self.poisson(rate * dt);
            came += arrivals;
            self.backlog = (self.backlog + arrivals - pace * dt).max(0.0);
            // The random excess within a tenth of a second is no load.
            let standing = (self.backlog - 3.0 * (rate * dt).sqrt()).max(0.0);
            let used = (rate / pace.max(1e-9)).min(0.99);
            let took = ALONE / (1.0 - used) + standing / pace.max(1e-9);
            worst = worst.max(took);
            self.now += dt;
            self.paid += dt * self.servers.len() as f64;
        }
        (self.came, self.response) = (came, worst);
        self.seconds += 1.0;
        if worst <= response * (1.0 + 1e-9) {
            self.met += 1.0;
        }
    }

    fn usable(&self) -> impl Iterator<Item = &Server> {
        let now = self.now;
        self.servers.iter().filter(move |server| server.ready <= now)
    }

    /// Returns the used part of the capacity, as processors show it.
    pub(crate) fn used(&self) -> f64 {
        let pace: f64 = self.usable().map(|server| server.capacity * PACE).sum();
        ((self.came + self.backlog) / pace.max(1e-9)).min(1.0)
    }

    /// Returns a scaler's decision.
    pub(crate) fn ask(&mut self, scaler: &mut Scaler, line: bool) -> ScaleDecision {
        let used = self.used();
        // A load line has an error of some percent, to either side.
        let off = 1.0 + 0.03 * (self.now / 40.0).sin();
        let members: Vec<MemberObservation<'_>> = self
            .servers
            .iter()
            .map(|server| MemberObservation {
                name: &server.name,
                capacity: server.capacity,
                state: if server.ready <= self.now {
                    ScaledMemberState::Usable
                } else {
                    ScaledMemberState::Starting
                },
                is_removable: true,
                in_flight: 1,
                utilization: (!line).then_some(used),
                line: line.then_some(server.capacity * PACE * off),
                share: 1.0,
            })
            .collect();
        let seen = GroupObservation {
            members: &members,
            load_line_known: true,
            rate: self.came,
            peer_rate: 0.0,
            waiting: 0.0,
            rejected: 0.0,
            // 95 of 100 take three times the mean if times are exponential.
            response_p95: Some(3.0 * self.response),
        };
        scaler.observe(&seen, false, self.time())
    }

    /// Performs a decision.
    pub(crate) fn obey(&mut self, decision: &ScaleDecision, scaler: &mut Scaler) {
        self.changes += u32::from(decision.add > 0) + u32::from(!decision.remove.is_empty());
        for _ in 0..decision.add {
            self.start(scaler.settings().unit_capacity);
            scaler.record_start_time(Duration::from_secs_f64(self.boot));
        }
        self.servers.retain(|server| !decision.remove.contains(&server.name));
    }

    pub(crate) fn time(&self) -> Time {
        Time(1) + Duration::from_secs_f64(self.now)
    }

    /// Returns a Poisson number with this mean, by the normal distribution, which suffices for the numbers
    /// here.
    fn poisson(&mut self, mean: f64) -> f64 {
        let (one, other) = (self.dice.unit(), self.dice.unit());
        let normal = (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos();
        (mean + mean.sqrt() * normal).round().max(0.0)
    }
}
