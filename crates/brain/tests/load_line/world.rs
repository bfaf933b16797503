//! Members in virtual time: shared processors or thread pools, exponential work, Poisson arrivals, and their
//! counts. The balancer sends to the member with the fewest requests for its cores, takes turns or draws.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use plimsoll_brain::load_line::{
    CONCURRENCY_LEVELS, CapacityEstimator, CohostedWork, CpuUtilization, GroupLoadSample, MemberLoadSample,
    ProcessUsage, concurrency_level,
};
use plimsoll_brain::{MemberId, Time};

use crate::dice::Dice;

/// The discipline of the service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// All at once, by cores that they share.
    Shared,
    /// First come, first served, by one thread for each core.
    Line,
}

/// A member. Times are in seconds.
#[derive(Clone)]
pub(crate) struct Server {
    kind: Kind,
    cores: f64,
    mean: f64,
    /// The present time, and the core seconds of work done by then.
    now: f64,
    busy: f64,
    /// The work that a job there since the beginning would have got done.
    done: f64,
    /// The jobs in service, by the `done` (shared) or the time (line) at their end.
    jobs: BTreeMap<(u64, u64), Job>,
    waiting: VecDeque<(f64, Job)>,
    /// The jobs that wait for another resource before their work, by the end of that.
    elsewhere: BTreeMap<(u64, u64), (f64, Job)>,
    /// The mean seconds of that.
    pub(crate) wait: f64,
    /// The cores that other work uses.
    taken: f64,
    count: u64,
    requests: u64,
    /// The requests that found all cores in use.
    pub(crate) met: u64,
    seconds: f64,
    levels: [[u64; 2]; CONCURRENCY_LEVELS],
}

/// The distribution of the work of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Law {
    Exponential,
    Constant,
    Lognormal,
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
            elsewhere: BTreeMap::new(),
            wait: 0.0,
            taken: 0.0,
            count: 0,
            requests: 0,
            met: 0,
            seconds: 0.0,
            levels: [[0; 2]; CONCURRENCY_LEVELS],
        }
    }

    fn in_flight(&self) -> usize {
        self.jobs.len() + self.waiting.len() + self.elsewhere.len()
    }

    fn next(&self) -> f64 {
        let back =
            self.elsewhere.first_key_value().map_or(f64::INFINITY, |((back, _), _)| f64::from_bits(*back));
        self.ends().min(back)
    }

    fn ends(&self) -> f64 {
        let Some(((end, _), _)) = self.jobs.first_key_value() else { return f64::INFINITY };
        let end = f64::from_bits(*end);
        match self.kind {
            Kind::Line => end,
            Kind::Shared => self.now + (end - self.done).max(0.0) / self.speed(),
        }
    }

    fn speed(&self) -> f64 {
        ((self.cores - self.taken) / self.jobs.len() as f64).min(1.0)
    }

    fn pass(&mut self, now: f64) {
        if !self.jobs.is_empty() {
            self.busy += (now - self.now) * (self.cores - self.taken).min(self.jobs.len() as f64);
            self.done += (now - self.now) * self.speed();
        }
        self.now = now;
    }

    fn start(&mut self, work: f64, job: Job) {
        let from = if self.kind == Kind::Line { self.now } else { self.done };
        self.count += 1;
        self.jobs.insert(((from + work).to_bits(), self.count), job);
    }

    fn begin(&mut self, now: f64, work: f64, wait: f64) {
        self.pass(now);
        self.met += u64::from(self.in_flight() as f64 >= self.cores);
        let job = Job { begun: now, level: concurrency_level(self.in_flight() as u32 + 1) };
        if wait > 0.0 {
            self.count += 1;
            self.elsewhere.insert(((now + wait).to_bits(), self.count), (work, job));
            return;
        }
        self.work(work, job);
    }

    fn work(&mut self, work: f64, job: Job) {
        if self.kind == Kind::Line && self.jobs.len() as f64 >= self.cores {
            self.waiting.push_back((work, job));
        } else {
            self.start(work, job);
        }
    }

    /// Ends the first job and returns its time, or lets it go on to its work.
    fn end(&mut self, now: f64) -> Option<f64> {
        let works = self.ends() <= now;
        self.pass(now);
        if !works {
            let (_, (work, job)) = self.elsewhere.pop_first().unwrap();
            self.work(work, job);
            return None;
        }
        let (_, job) = self.jobs.pop_first().unwrap();
        if let Some((work, waited)) = self.waiting.pop_front() {
            self.start(work, waited);
        }
        let took = now - job.begun;
        self.requests += 1;
        self.seconds += took;
        let [count, nanos] = &mut self.levels[job.level];
        (*count, *nanos) = (*count + 1, *nanos + (took * 1e9) as u64);
        Some(took)
    }
}

/// Other work at a host, as a share of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Other {
    Constant(f64),
    /// A sine from nothing to twice the mean, with a period in seconds.
    Periodic(f64, f64),
    /// Bursts of 0.9 of the host, with a mean length in seconds.
    Bursts(f64, f64, bool),
}

impl Other {
    /// Returns the share in the second that begins now.
    fn now(&mut self, now: f64, dice: &mut Dice) -> f64 {
        match self {
            Self::Constant(share) => *share,
            Self::Periodic(share, period) => *share * (1.0 + (now / *period * std::f64::consts::TAU).sin()),
            Self::Bursts(share, long, on) => {
                let part = *share / 0.9;
                let pause = *long * (1.0 - part) / part.max(0.01);
                if dice.unit() < 1.0 / if *on { long.max(1.0) } else { pause.max(1.0) } {
                    *on = !*on;
                }
                if *on { 0.9 } else { 0.0 }
            }
        }
    }
}

/// The members and their balancer.
pub(crate) struct World {
    pub(crate) servers: Vec<Server>,
    /// The members with an agent.
    pub(crate) agents: Vec<bool>,
    by_load: bool,
    /// Whether the choice is by response time and requests in flight rather than by requests in flight and
    /// capacity.
    pub(crate) by_time: bool,
    paces: Vec<f64>,
    /// The configured capacities of the members.
    pub(crate) weights: Vec<f64>,
    /// The usable members that are never chosen.
    pub(crate) asleep: Vec<bool>,
    /// The members that cannot be used.
    pub(crate) gone: Vec<bool>,
    pub(crate) law: Law,
    /// Whether members are drawn by their capacities, rather than taken in turns.
    pub(crate) draws: bool,
    /// The processor seconds a second that the balancer spends on traffic other than requests.
    pub(crate) sessions: f64,
    cpu_seconds: f64,
    /// The requests of members at the last look, and the looks with other traffic.
    had: u64,
    others: u64,
    dice: Dice,
    now: f64,
    turn: usize,
    /// The whole requests by time: buckets of a sixteenth of an octave from 10 µs.
    latencies: Vec<u64>,
    middles: Vec<f64>,
    /// The core seconds up to the last look.
    worked: Vec<f64>,
    pub(crate) estimator: CapacityEstimator,
    /// Whether agents report all the work of a host.
    pub(crate) whole: bool,
    /// Whether all members are on one host, which each one's agent reports, and the number of them in the
    /// measured group.
    pub(crate) together: Option<usize>,
    /// The other work at each host; the recent share of it, and its weight.
    pub(crate) other: Other,
    taken: Vec<[f64; 2]>,
    /// The part of the utilization that agents see.
    pub(crate) agents_see: f64,
    /// The processor seconds of the balancer for a request; it has one processor.
    pub(crate) balancer_seconds: f64,
    pub(crate) requests: bool,
    times: Vec<f64>,
}

impl World {
    pub(crate) fn new(servers: Vec<Server>, agents: bool, by_load: bool, seed: u64) -> Self {
        Self {
            worked: vec![0.0; servers.len()],
            taken: vec![[0.0; 2]; servers.len()],
            agents: vec![agents; servers.len()],
            by_load,
            by_time: false,
            paces: vec![0.0; servers.len()],
            weights: servers.iter().map(|server| server.cores).collect(),
            asleep: vec![false; servers.len()],
            gone: vec![false; servers.len()],
            law: Law::Exponential,
            servers,
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
            estimator: CapacityEstimator::default(),
            whole: false,
            together: None,
            other: Other::Constant(0.0),
            agents_see: 1.0,
            balancer_seconds: 1e-5,
            requests: true,
            times: Vec::new(),
        }
    }

    /// Returns the requests a second that the members can serve.
    pub(crate) fn capacity(&self) -> f64 {
        self.servers.iter().map(|server| server.cores / server.mean).sum()
    }

    /// Returns the requests a second that they can serve beside the recent other work.
    pub(crate) fn line(&self) -> f64 {
        let each = self.servers.iter().zip(&self.taken);
        each.map(|(server, [share, weight])| server.cores / server.mean * (1.0 - share / weight.max(1e-9)))
            .sum()
    }

    /// Returns the median and the 99th percentile at a load.
    pub(crate) fn measured(servers: Vec<Server>, by_load: bool, rate: f64, seconds: f64) -> (f64, f64) {
        let mut world = Self::new(servers, false, by_load, 23);
        world.run(rate, seconds / 10.0);
        world.times.clear();
        world.run(rate, seconds);
        world.times.sort_by(f64::total_cmp);
        let of = |share: f64| world.times[(world.times.len() as f64 * share) as usize];
        (of(0.5), of(0.99))
    }

    /// Runs `rate` requests a second for `seconds`.
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
                if let Some(took) = self.servers[first].end(next) {
                    let bucket = ((took / 1e-5).max(1.0).log2() * 16.0) as usize;
                    self.latencies[bucket.min(399)] += 1;
                    self.times.push(took);
                    self.paces[first] +=
                        (took - self.paces[first]) * if self.paces[first] > 0.0 { 0.05 } else { 1.0 };
                }
            } else {
                let chosen = self.choose();
                let mean = self.servers[chosen].mean;
                let work = match self.law {
                    Law::Exponential => self.dice.exp(mean),
                    Law::Constant => mean,
                    Law::Lognormal => self.dice.lognormal(mean, 1.0),
                };
                let wait = self.servers[chosen].wait;
                let wait = if wait > 0.0 { self.dice.exp(wait) } else { 0.0 };
                self.servers[chosen].begin(next, work, wait);
                arrival = next + self.dice.exp(1.0 / rate);
            }
        }
    }

    fn choose(&mut self) -> usize {
        self.turn += 1;
        let count = self.servers.len();
        if self.draws {
            let all: f64 = self.weights.iter().sum();
            let mut drawn = self.dice.unit() * all;
            let found = self.weights.iter().position(|weight| {
                drawn -= weight;
                drawn < 0.0
            });
            return found.unwrap_or(count - 1);
        }
        let places = (0..count).map(|place| (place + self.turn) % count);
        let mut places = places.filter(|place| !self.asleep[*place]);
        if !self.by_load {
            return places.next().unwrap();
        }
        let load = |place: &usize| {
            let in_flight = self.servers[*place].in_flight() as f64;
            match self.by_time {
                true => (in_flight + 1.0) * self.paces[*place],
                false => in_flight / self.weights[*place],
            }
        };
        places.min_by(|one, other| load(one).total_cmp(&load(other))).unwrap()
    }

    fn look(&mut self) {
        let now = Time(0) + Duration::from_secs_f64(self.now);
        let moment = self.now;
        let mut cpus = Vec::new();
        let kept = 0.5_f64.powf(1.0 / 120.0);
        for (lately, server) in self.taken.iter_mut().zip(&self.servers) {
            *lately = [lately[0] * kept + server.taken / server.cores, lately[1] * kept + 1.0];
        }
        for ((server, worked), told) in self.servers.iter_mut().zip(&mut self.worked).zip(&self.agents) {
            server.pass(moment);
            let share = (server.busy - *worked + server.taken) / server.cores * self.agents_see;
            *worked = server.busy;
            server.taken = server.cores * self.other.now(moment, &mut self.dice);
            cpus.push(told.then_some((
                CpuUtilization { share, processors: Some(server.cores), whole_host: self.whole },
                now,
            )));
        }
        if self.together.is_some() {
            let told: Vec<(CpuUtilization, Time)> = cpus.iter().flatten().copied().collect();
            let cores = |(cpu, _): &(CpuUtilization, Time)| cpu.processors.unwrap_or(0.0);
            let all: f64 = told.iter().map(cores).sum();
            let busy: f64 = told.iter().map(|one| one.0.share * cores(one)).sum();
            cpus.fill(Some((
                CpuUtilization { share: busy / all, processors: Some(all), whole_host: true },
                now,
            )));
        }
        let (requests, seconds) = self
            .servers
            .iter()
            .fold((0, 0.0), |sum, server| (sum.0 + server.requests, sum.1 + server.seconds));
        let beside = |server: &Server| match self.together {
            Some(_) => CohostedWork {
                members: self.servers.len() - 1,
                requests: requests - server.requests,
                seconds: seconds - server.seconds,
            },
            None => CohostedWork::default(),
        };
        let members: Vec<MemberLoadSample<'_>> = self
            .servers
            .iter()
            .zip(cpus)
            .zip(self.weights.iter().zip(&self.gone))
            .zip(0..)
            .map(|(((server, cpu), (weight, gone)), id)| MemberLoadSample {
                id: MemberId(id),
                usable: !gone,
                weight: *weight,
                capacity: *weight,
                requests: server.requests,
                failures: 0,
                seconds: server.seconds,
                levels: &server.levels,
                meter_report: None,
                cpu,
                cohosted: beside(server),
                rate_elsewhere: 0.0,
            })
            .take(self.together.unwrap_or(usize::MAX))
            .collect();
        let requests: u64 = members.iter().map(|member| member.requests).sum();
        self.cpu_seconds += (requests - self.had) as f64 * self.balancer_seconds + self.sessions;
        self.had = requests;
        self.others += u64::from(self.sessions > 0.0);
        let own = ProcessUsage {
            cpu_seconds: self.cpu_seconds,
            requests,
            other_traffic: self.others,
            processors: 1.0,
        };
        let seen = GroupLoadSample {
            only_requests: self.requests,
            by_load: self.by_load,
            by_weight: self.draws,
            members: &members,
            latencies: &self.latencies,
            bucket_middles: &self.middles,
            process: own,
        };
        self.estimator.observe(&seen, now);
    }
}
