//! Members in virtual time: shared processors or pools of threads, exponential work, Poisson arrivals, a balancer that sends to
//! the member with the fewest requests for its cores, takes turns or draws; and what is counted of them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use plimsoll_brain::load_line::{Cpu, Estimator, LEVELS, MemberSeen, Own, Seen, level};
use plimsoll_brain::{MemberId, Time};

use crate::dice::Dice;

/// How requests are served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// All at once, by cores that they share.
    Shared,
    /// First come first served, by one thread for each core.
    Line,
}

/// A member. Times are seconds.
#[derive(Clone)]
pub(crate) struct Server {
    kind: Kind,
    cores: f64,
    mean: f64,
    /// Up to when it is worked out, and core seconds of work done by then.
    now: f64,
    busy: f64,
    /// Work that a job there since the beginning would have got done.
    done: f64,
    /// In service, by what `done` (shared) or the time (line) will be when they end.
    jobs: BTreeMap<(u64, u64), Job>,
    waiting: VecDeque<(f64, Job)>,
    count: u64,
    requests: u64,
    seconds: f64,
    levels: [[u64; 2]; LEVELS],
}

#[derive(Clone, Copy)]
struct Job {
    begun: f64,
    level: usize,
}

impl Server {
    pub(crate) fn new(kind: Kind, cores: f64, mean: f64) -> Self {
        Self {
            kind,
            cores,
            mean,
            now: 0.0,
            busy: 0.0,
            done: 0.0,
            jobs: BTreeMap::new(),
            waiting: VecDeque::new(),
            count: 0,
            requests: 0,
            seconds: 0.0,
            levels: [[0; 2]; LEVELS],
        }
    }

    fn in_flight(&self) -> usize {
        self.jobs.len() + self.waiting.len()
    }

    fn next(&self) -> f64 {
        let Some(((end, _), _)) = self.jobs.first_key_value() else { return f64::INFINITY };
        let end = f64::from_bits(*end);
        match self.kind {
            Kind::Line => end,
            Kind::Shared => self.now + (end - self.done).max(0.0) / self.speed(),
        }
    }

    fn speed(&self) -> f64 {
        (self.cores / self.jobs.len() as f64).min(1.0)
    }

    fn pass(&mut self, now: f64) {
        if !self.jobs.is_empty() {
            self.busy += (now - self.now) * self.cores.min(self.jobs.len() as f64);
            self.done += (now - self.now) * self.speed();
        }
        self.now = now;
    }

    fn start(&mut self, work: f64, job: Job) {
        let from = if self.kind == Kind::Line { self.now } else { self.done };
        self.count += 1;
        self.jobs.insert(((from + work).to_bits(), self.count), job);
    }

    fn begin(&mut self, now: f64, work: f64) {
        self.pass(now);
        let job = Job { begun: now, level: level(self.in_flight() as u32 + 1) };
        if self.kind == Kind::Line && self.jobs.len() as f64 >= self.cores {
            self.waiting.push_back((work, job));
        } else {
            self.start(work, job);
        }
    }

    /// The first job ends now; how long it took.
    fn end(&mut self, now: f64) -> f64 {
        self.pass(now);
        let (_, job) = self.jobs.pop_first().unwrap();
        if let Some((work, waited)) = self.waiting.pop_front() {
            self.start(work, waited);
        }
        let took = now - job.begun;
        self.requests += 1;
        self.seconds += took;
        let [count, nanos] = &mut self.levels[job.level];
        (*count, *nanos) = (*count + 1, *nanos + (took * 1e9) as u64);
        took
    }
}

/// The members and their balancer.
pub(crate) struct World {
    servers: Vec<Server>,
    agents: bool,
    by_load: bool,
    /// Members are drawn by their cores, rather than taken in turns.
    pub(crate) draws: bool,
    /// Processor seconds a second that the balancer spends on something that is no request.
    pub(crate) sessions: f64,
    cpu_seconds: f64,
    /// Requests that members had at the last look; looks at which there was something else.
    had: u64,
    others: u64,
    dice: Dice,
    now: f64,
    turn: usize,
    /// Whole requests by how long they took: buckets of a sixteenth of an octave from 10 µs.
    latencies: Vec<u64>,
    middles: Vec<f64>,
    /// Core seconds up to the last look.
    worked: Vec<f64>,
    pub(crate) estimator: Estimator,
    /// Part of what is busy that agents see.
    pub(crate) agents_see: f64,
    /// Processor seconds that a request costs the balancer, which has one processor.
    pub(crate) balancer_seconds: f64,
    pub(crate) requests: bool,
    times: Vec<f64>,
}

impl World {
    pub(crate) fn new(servers: Vec<Server>, agents: bool, by_load: bool, seed: u64) -> Self {
        Self {
            worked: vec![0.0; servers.len()],
            servers,
            agents,
            by_load,
            draws: false,
            sessions: 0.0,
            cpu_seconds: 0.0,
            had: 0,
            others: 0,
            dice: Dice::new(seed, 1),
            now: 0.0,
            turn: 0,
            latencies: vec![0; 400],
            middles: (0..400).map(|bucket| 1e-5 * 2_f64.powf((f64::from(bucket) + 0.5) / 16.0)).collect(),
            estimator: Estimator::default(),
            agents_see: 1.0,
            balancer_seconds: 1e-5,
            requests: true,
            times: Vec::new(),
        }
    }

    /// Requests a second that the members can do.
    pub(crate) fn capacity(&self) -> f64 {
        self.servers.iter().map(|server| server.cores / server.mean).sum()
    }

    /// Median and 99th percentile at a load.
    pub(crate) fn measured(servers: Vec<Server>, by_load: bool, rate: f64, seconds: f64) -> (f64, f64) {
        let mut world = Self::new(servers, false, by_load, 23);
        world.run(rate, seconds / 10.0);
        world.times.clear();
        world.run(rate, seconds);
        world.times.sort_by(f64::total_cmp);
        let of = |share: f64| world.times[(world.times.len() as f64 * share) as usize];
        (of(0.5), of(0.99))
    }

    /// So many requests a second for so long.
    pub(crate) fn run(&mut self, rate: f64, seconds: f64) {
        let until = self.now + seconds;
        let mut arrival = self.now + self.dice.exp(1.0 / rate);
        let mut look = self.now.floor() + 1.0;
        loop {
            let ends = self.servers.iter().map(Server::next).enumerate();
            let (first, end) = ends.min_by(|one, other| one.1.total_cmp(&other.1)).unwrap();
            let next = end.min(arrival).min(look);
            if next > until {
                self.now = until;
                return;
            }
            self.now = next;
            if next == look {
                self.look();
                look += 1.0;
            } else if next == end {
                let took = self.servers[first].end(next);
                let bucket = ((took / 1e-5).max(1.0).log2() * 16.0) as usize;
                self.latencies[bucket.min(399)] += 1;
                self.times.push(took);
            } else {
                let chosen = self.choose();
                let work = self.dice.exp(self.servers[chosen].mean);
                self.servers[chosen].begin(next, work);
                arrival = next + self.dice.exp(1.0 / rate);
            }
        }
    }

    fn choose(&mut self) -> usize {
        self.turn += 1;
        let count = self.servers.len();
        if self.draws {
            let all: f64 = self.servers.iter().map(|server| server.cores).sum();
            let mut drawn = self.dice.unit() * all;
            let found = self.servers.iter().position(|server| {
                drawn -= server.cores;
                drawn < 0.0
            });
            return found.unwrap_or(count - 1);
        }
        if !self.by_load {
            return self.turn % count;
        }
        let load = |index: &usize| self.servers[*index].in_flight() as f64 / self.servers[*index].cores;
        let places = (0..count).map(|place| (place + self.turn) % count);
        places.min_by(|one, other| load(one).total_cmp(&load(other))).unwrap()
    }

    fn look(&mut self) {
        let now = Time(0) + Duration::from_secs_f64(self.now);
        let moment = self.now;
        let mut cpus = Vec::new();
        for (server, worked) in self.servers.iter_mut().zip(&mut self.worked) {
            server.pass(moment);
            let share = (server.busy - *worked) / server.cores * self.agents_see;
            *worked = server.busy;
            cpus.push(self.agents.then_some((Cpu { share, processors: Some(server.cores) }, now)));
        }
        let members: Vec<MemberSeen<'_>> = self
            .servers
            .iter()
            .zip(cpus)
            .zip(0..)
            .map(|((server, cpu), id)| MemberSeen {
                id: MemberId(id),
                usable: true,
                weight: server.cores,
                requests: server.requests,
                failures: 0,
                seconds: server.seconds,
                levels: &server.levels,
                said: None,
                cpu,
            })
            .collect();
        let requests: u64 = members.iter().map(|member| member.requests).sum();
        self.cpu_seconds += (requests - self.had) as f64 * self.balancer_seconds + self.sessions;
        self.had = requests;
        self.others += u64::from(self.sessions > 0.0);
        let own = Own { cpu_seconds: self.cpu_seconds, requests, others: self.others, processors: 1.0 };
        let seen = Seen {
            requests: self.requests,
            by_load: self.by_load,
            by_weight: self.draws,
            members: &members,
            latencies: &self.latencies,
            middles: &self.middles,
            own,
        };
        self.estimator.observe(&seen, now);
    }
}
