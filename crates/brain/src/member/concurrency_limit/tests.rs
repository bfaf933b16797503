use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::*;
use crate::hash::{mix, unit};

const MAX_LATENCY: Duration = Duration::from_secs(1);

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
    waiting_for_room: VecDeque<f64>,
    limit_value: u32,
    mean_latency: f64,
    now: f64,
    random_bits: u64,
    lag: f64,
    /// The answers, the sum of their times, and the number within the patience of clients.
    answered: u32,
    latency_sum: f64,
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
            waiting_for_room: VecDeque::new(),
            limit_value: 0,
            mean_latency: 0.0,
            now: 0.0,
            random_bits: 1,
            lag: 0.0,
            answered: 0,
            latency_sum: 0.0,
            in_time: 0,
        }
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        self.random_bits = mix(self.random_bits);
        -libm::log(1.0 - unit(self.random_bits)) * mean
    }

    fn with_members(&self) -> usize {
        self.running.len() + self.queued.len()
    }

    fn fill(&mut self) {
        while !self.waiting_for_room.is_empty()
            && (self.limit_value == 0 || self.with_members() < self.limit_value as usize)
        {
            self.waiting_for_room.pop_front();
            self.queued.push_back(self.now);
        }
        while self.running.len() < self.cores
            && let Some(queued_at) = self.queued.pop_front()
        {
            let end = self.now + self.exponential(self.work);
            self.running.push((end, queued_at));
        }
    }

    /// Sends `rate` requests a second for `seconds`; returns the limit at each look.
    fn run(&mut self, rate: f64, seconds: f64) -> Vec<u32> {
        (self.answered, self.latency_sum, self.in_time) = (0, 0.0, 0);
        let mut limits = Vec::new();
        let end = self.now + seconds;
        let mut next_arrival = self.now + self.exponential(1.0 / rate);
        let (mut next_sample, mut window) = (self.now + 0.1, AnswerWindow::default());
        while self.now < end {
            let next_end = self.running.iter().map(|(end, _)| *end).fold(f64::INFINITY, f64::min);
            self.now = next_end.min(next_arrival).min(next_sample);
            if self.now == next_sample {
                next_sample += 0.1;
                let sample = AnswerWindow {
                    seconds: 0.1,
                    sample_count: 1.0,
                    awaiting_sum: self.with_members() as f64,
                    lag: self.lag,
                    ..core::mem::take(&mut window)
                };
                let now = Time((self.now * 1e9) as u64);
                self.limit_value =
                    self.limit.observe(&sample, self.mean_latency + 2.0 * self.lag, MAX_LATENCY, now);
                limits.push(self.limit_value);
            } else if self.now == next_arrival {
                next_arrival += self.exponential(1.0 / rate);
                window.sent += 1.0;
                self.waiting_for_room.push_back(self.now);
            } else if let Some(position) = self.running.iter().position(|(end, _)| *end == next_end) {
                let (_, queued_at) = self.running.swap_remove(position);
                window.answered += 1.0;
                let latency = self.now - queued_at;
                self.mean_latency += (latency - self.mean_latency) / 16.0;
                (self.answered, self.latency_sum) = (self.answered + 1, self.latency_sum + latency);
                self.in_time += u32::from(latency <= 1.0);
            }
            self.fill();
            // Clients do not wait for ever.
            while self.waiting_for_room.front().is_some_and(|queued_at| self.now - queued_at > 1.0) {
                self.waiting_for_room.pop_front();
            }
        }
        limits
    }

    fn mean(&self) -> f64 {
        self.latency_sum / f64::from(self.answered)
    }
}

#[test]
fn below_the_capacity_there_is_no_limit() {
    for (cores, work) in [(1, 0.0001), (1, 0.005), (64, 0.010), (64, 2.0)] {
        let mut simulation = SimulatedMembers::new(cores, work);
        let limits = simulation.run(0.8 * cores as f64 / work, 60.0);
        assert!(limits.iter().all(|limit| *limit == 0), "{cores} of {work} s: {limits:?}");
    }
}

#[test]
fn beyond_the_capacity_answers_come_in_time_and_no_less_is_served() {
    for (cores, work) in [(1, 0.002), (4, 0.005), (64, 0.010), (64, 0.200)] {
        let capacity = cores as f64 / work;
        let mut simulation = SimulatedMembers::new(cores, work);
        simulation.run(0.5 * capacity, 10.0);
        simulation.run(1.3 * capacity, 6.0);
        simulation.run(1.3 * capacity, 20.0);
        let served_share = f64::from(simulation.answered) / 20.0 / capacity;
        assert!(served_share > 0.93, "{cores} of {work} s: {served_share} of the capacity");
        let late_share = 1.0 - f64::from(simulation.in_time) / f64::from(simulation.answered);
        assert!(late_share < 0.03 || work > 0.1, "{cores} of {work} s: {late_share} late");
        assert!(simulation.mean() < 0.2_f64.max(4.0 * work), "{cores} of {work} s: {}", simulation.mean());
        // Once the cause is gone, so is the limit.
        let limits = simulation.run(0.5 * capacity, 10.0);
        assert!(limits[40..].iter().all(|limit| *limit == 0), "{cores} of {work} s: {limits:?}");
    }
}

#[test]
fn requests_that_take_longer_by_themselves_are_not_held_back_for_long() {
    let mut simulation = SimulatedMembers::new(1000, 0.005);
    simulation.run(100.0, 10.0);
    for work in [0.3, 0.8, 3.0] {
        simulation.work = work;
        simulation.run(100.0, 40.0);
        assert!(
            simulation.waiting_for_room.is_empty() && simulation.answered > 3500,
            "{work} s: {} answers",
            simulation.answered
        );
        let limits = simulation.run(100.0, 20.0);
        assert!(limits.iter().all(|limit| *limit == 0), "{work} s: {limits:?}");
    }
}

#[test]
fn a_moment_in_which_requests_take_longer_holds_none_back() {
    let mut simulation = SimulatedMembers::new(1000, 0.005);
    simulation.run(100.0, 10.0);
    for _ in 0..20 {
        simulation.work = 0.045;
        let limits_during = simulation.run(100.0, 2.0);
        simulation.work = 0.005;
        let limits_after = simulation.run(100.0, 5.0);
        assert!(
            limits_during.iter().chain(&limits_after).all(|limit| *limit == 0),
            "{limits_during:?} {limits_after:?}"
        );
    }
}

#[test]
fn what_this_balancer_takes_itself_is_not_held_against_members() {
    let mut simulation = SimulatedMembers::new(1000, 0.0001);
    simulation.run(1000.0, 5.0);
    simulation.lag = 0.5;
    let limits = simulation.run(1000.0, 20.0);
    assert!(limits.iter().all(|limit| *limit == 0), "{limits:?}");
}

#[test]
fn a_limit_ends_though_no_answer_comes() {
    let mut simulation = SimulatedMembers::new(4, 0.005);
    simulation.run(400.0, 5.0);
    simulation.run(1200.0, 5.0);
    assert_ne!(simulation.limit_value, 0);
    // All members hang.
    simulation.running.iter_mut().for_each(|(end, _)| *end = f64::INFINITY);
    simulation.work = 1e9;
    let limits = simulation.run(100.0, 4.0);
    assert!(limits[25..].iter().all(|limit| *limit == 0), "{limits:?}");
}

#[test]
fn a_member_that_answers_none_of_several_requests_is_silent() {
    let time_at = |tenths: u64| Time(tenths * 100_000_000);
    // The requests to it in all, the answered ones of each ten to the others, and whether it is silent.
    for (requests, answered, is_silent) in
        [(2, 10, false), (3, 10, true), (8, 2, false), (40, 2, true), (40, 0, false)]
    {
        let (vitals, mut sampler, mut totals) =
            (Vitals::default(), TrafficSampler::default(), GroupTotals::default());
        vitals.begin();
        for tenths in 0..20 {
            sampler.sample(&vitals, &totals, time_at(tenths));
            // A silence shows only after two looks.
            if (4..14).contains(&tenths) {
                let expected = requests * (tenths as u32 - 3) / 10;
                while vitals.in_flight() < 1 + expected {
                    vitals.begin();
                    totals.sent += 1.0;
                }
            }
            totals.sent += 10.0;
            totals.answered += f64::from(answered);
        }
        let silence = sampler.significant_silence(&totals, time_at(19));
        assert_eq!(silence.is_some(), is_silent, "{requests} {answered}");
        assert!(silence.is_none_or(|silence| silence >= Duration::from_millis(1700)), "{silence:?}");
        // A client that gives up is no evidence about the member; an answer is.
        vitals.end();
        vitals.record_unserved();
        sampler.sample(&vitals, &totals, time_at(20));
        assert_eq!(sampler.significant_silence(&totals, time_at(20)).is_some(), is_silent);
        vitals.end();
        sampler.sample(&vitals, &totals, time_at(21));
        assert_eq!(sampler.significant_silence(&totals, time_at(21)), None);
    }
}

#[test]
fn an_overload_from_the_first_request_on_is_seen() {
    let mut simulation = SimulatedMembers::new(4, 0.01);
    simulation.run(533.0, 4.0);
    simulation.run(533.0, 6.0);
    let rate = f64::from(simulation.answered) / 6.0;
    assert!(rate > 360.0, "{rate} a second");
    let in_time = f64::from(simulation.in_time) / f64::from(simulation.answered);
    assert!(in_time > 0.95, "{in_time} in time");
}
