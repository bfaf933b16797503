use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::*;
use crate::hash::{mix, unit};

const PATIENCE: Duration = Duration::from_secs(1);

/// Members with `cores` in all, at which requests queue in order, and a balancer that sends no more than the
/// limit.
struct SimulatedMembers {
    limit: ConcurrencyLimit,
    cores: usize,
    /// The mean work of a request, seconds.
    work: f64,
    /// The requests at the members with their ends, those that wait there, and those that wait in the
    /// balancer.
    running: Vec<(f64, f64)>,
    queued: VecDeque<f64>,
    held: VecDeque<f64>,
    most: u32,
    took: f64,
    now: f64,
    bits: u64,
    lag: f64,
    /// The answers, the sum of their times, and the number within the patience of clients.
    answered: u32,
    sum: f64,
    in_time: u32,
}

impl SimulatedMembers {
    fn new(cores: usize, work: f64) -> Self {
        Self {
            limit: ConcurrencyLimit::default(),
            cores,
            work,
            running: Vec::new(),
            queued: VecDeque::new(),
            held: VecDeque::new(),
            most: 0,
            took: 0.0,
            now: 0.0,
            bits: 1,
            lag: 0.0,
            answered: 0,
            sum: 0.0,
            in_time: 0,
        }
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        self.bits = mix(self.bits);
        -libm::log(1.0 - unit(self.bits)) * mean
    }

    fn with_members(&self) -> usize {
        self.running.len() + self.queued.len()
    }

    fn fill(&mut self) {
        while !self.held.is_empty() && (self.most == 0 || self.with_members() < self.most as usize) {
            self.held.pop_front();
            self.queued.push_back(self.now);
        }
        while self.running.len() < self.cores
            && let Some(came) = self.queued.pop_front()
        {
            let end = self.now + self.exponential(self.work);
            self.running.push((end, came));
        }
    }

    /// Sends `rate` requests a second for `seconds`; returns the limit at each look.
    fn go(&mut self, rate: f64, seconds: f64) -> Vec<u32> {
        (self.answered, self.sum, self.in_time) = (0, 0.0, 0);
        let mut limits = Vec::new();
        let end = self.now + seconds;
        let mut next = self.now + self.exponential(1.0 / rate);
        let (mut look, mut counts) = (self.now + 0.1, AnswerWindow::default());
        while self.now < end {
            let ends = self.running.iter().map(|(end, _)| *end).fold(f64::INFINITY, f64::min);
            self.now = ends.min(next).min(look);
            if self.now == look {
                look += 0.1;
                let counted = AnswerWindow {
                    seconds: 0.1,
                    looks: 1.0,
                    sum: self.with_members() as f64,
                    lag: self.lag,
                    ..core::mem::take(&mut counts)
                };
                let now = Time((self.now * 1e9) as u64);
                self.most = self.limit.observe(&counted, self.took + 2.0 * self.lag, PATIENCE, now);
                limits.push(self.most);
            } else if self.now == next {
                next += self.exponential(1.0 / rate);
                counts.sent += 1.0;
                self.held.push_back(self.now);
            } else if let Some(place) = self.running.iter().position(|(end, _)| *end == ends) {
                let (_, came) = self.running.swap_remove(place);
                counts.answered += 1.0;
                let took = self.now - came;
                self.took += (took - self.took) / 16.0;
                (self.answered, self.sum) = (self.answered + 1, self.sum + took);
                self.in_time += u32::from(took <= 1.0);
            }
            self.fill();
            // Clients do not wait for ever.
            while self.held.front().is_some_and(|came| self.now - came > 1.0) {
                self.held.pop_front();
            }
        }
        limits
    }

    fn mean(&self) -> f64 {
        self.sum / f64::from(self.answered)
    }
}

#[test]
fn below_the_capacity_there_is_no_limit() {
    for (cores, work) in [(1, 0.0001), (1, 0.005), (64, 0.010), (64, 2.0)] {
        let mut world = SimulatedMembers::new(cores, work);
        let limits = world.go(0.8 * cores as f64 / work, 60.0);
        assert!(limits.iter().all(|limit| *limit == 0), "{cores} of {work} s: {limits:?}");
    }
}

#[test]
fn beyond_the_capacity_answers_come_in_time_and_no_less_is_served() {
    for (cores, work) in [(1, 0.002), (4, 0.005), (64, 0.010), (64, 0.200)] {
        let capacity = cores as f64 / work;
        let mut world = SimulatedMembers::new(cores, work);
        world.go(0.5 * capacity, 10.0);
        world.go(1.3 * capacity, 6.0);
        world.go(1.3 * capacity, 20.0);
        let served = f64::from(world.answered) / 20.0 / capacity;
        assert!(served > 0.93, "{cores} of {work} s: {served} of the capacity");
        let late = 1.0 - f64::from(world.in_time) / f64::from(world.answered);
        assert!(late < 0.03 || work > 0.1, "{cores} of {work} s: {late} late");
        assert!(world.mean() < 0.2_f64.max(4.0 * work), "{cores} of {work} s: {}", world.mean());
        // Once the cause is gone, so is the limit.
        let limits = world.go(0.5 * capacity, 10.0);
        assert!(limits[40..].iter().all(|limit| *limit == 0), "{cores} of {work} s: {limits:?}");
    }
}

#[test]
fn requests_that_take_longer_by_themselves_are_not_held_back_for_long() {
    let mut world = SimulatedMembers::new(1000, 0.005);
    world.go(100.0, 10.0);
    for work in [0.3, 0.8, 3.0] {
        world.work = work;
        world.go(100.0, 40.0);
        assert!(world.held.is_empty() && world.answered > 3500, "{work} s: {} answers", world.answered);
        let limits = world.go(100.0, 20.0);
        assert!(limits.iter().all(|limit| *limit == 0), "{work} s: {limits:?}");
    }
}

#[test]
fn a_moment_in_which_requests_take_longer_holds_none_back() {
    let mut world = SimulatedMembers::new(1000, 0.005);
    world.go(100.0, 10.0);
    for _ in 0..20 {
        world.work = 0.045;
        let during = world.go(100.0, 2.0);
        world.work = 0.005;
        let after = world.go(100.0, 5.0);
        assert!(during.iter().chain(&after).all(|limit| *limit == 0), "{during:?} {after:?}");
    }
}

#[test]
fn what_this_balancer_takes_itself_is_not_held_against_members() {
    let mut world = SimulatedMembers::new(1000, 0.0001);
    world.go(1000.0, 5.0);
    world.lag = 0.5;
    let limits = world.go(1000.0, 20.0);
    assert!(limits.iter().all(|limit| *limit == 0), "{limits:?}");
}

#[test]
fn a_limit_ends_though_no_answer_comes() {
    let mut world = SimulatedMembers::new(4, 0.005);
    world.go(400.0, 5.0);
    world.go(1200.0, 5.0);
    assert_ne!(world.most, 0);
    // All members hang.
    world.running.iter_mut().for_each(|(end, _)| *end = f64::INFINITY);
    world.work = 1e9;
    let limits = world.go(100.0, 4.0);
    assert!(limits[25..].iter().all(|limit| *limit == 0), "{limits:?}");
}

#[test]
fn a_member_that_answers_none_of_several_requests_is_silent() {
    let at = |tenths: u64| Time(tenths * 100_000_000);
    // The requests to it in all, the answered ones of each ten to the others, and whether it is silent.
    for (requests, answered, silent) in
        [(2, 10, false), (3, 10, true), (8, 2, false), (40, 2, true), (40, 0, false)]
    {
        let (vitals, mut traffic, mut all) =
            (Vitals::default(), TrafficSampler::default(), GroupTotals::default());
        vitals.begin();
        for tenths in 0..20 {
            traffic.sample(&vitals, &all, at(tenths));
            // A silence shows only after two looks.
            if (4..14).contains(&tenths) {
                let until = requests * (tenths as u32 - 3) / 10;
                while vitals.in_flight() < 1 + until {
                    vitals.begin();
                    all.sent += 1.0;
                }
            }
            all.sent += 10.0;
            all.answered += f64::from(answered);
        }
        let found = traffic.significant_silence(&all, at(19));
        assert_eq!(found.is_some(), silent, "{requests} {answered}");
        assert!(found.is_none_or(|silence| silence >= Duration::from_millis(1700)), "{found:?}");
        // A client that gives up is no evidence about the member; an answer is.
        vitals.end();
        vitals.record_unserved();
        traffic.sample(&vitals, &all, at(20));
        assert_eq!(traffic.significant_silence(&all, at(20)).is_some(), silent);
        vitals.end();
        traffic.sample(&vitals, &all, at(21));
        assert_eq!(traffic.significant_silence(&all, at(21)), None);
    }
}

#[test]
fn an_overload_from_the_first_request_on_is_seen() {
    let mut world = SimulatedMembers::new(4, 0.01);
    world.go(533.0, 4.0);
    world.go(533.0, 6.0);
    let rate = f64::from(world.answered) / 6.0;
    assert!(rate > 360.0, "{rate} a second");
    let in_time = f64::from(world.in_time) / f64::from(world.answered);
    assert!(in_time > 0.95, "{in_time} in time");
}
