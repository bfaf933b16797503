//! A run: arrivals, journeys, work, deadlines and neighbours, in the order of virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use plimsoll_brain::Urgency;
use plimsoll_brain::meter::Reading;

use super::arrivals::Arrivals;
use super::dice::Dice;
use super::flight::{Flight, State, URGENT};
use super::outcome::Outcome;
use super::server::Server;
use super::{Answer, Discipline, Fleet, Policy, Setting, time};

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival,
    /// A request reaches its member.
    Reach(usize),
    /// A job of a member ends, if its version is still this.
    Work(usize, u64),
    /// A failing member has failed a request.
    Fail(usize),
    /// The answer reaches the balancer.
    Back(usize),
    /// The maximum wait of a request for a member is over.
    Patience(usize),
    /// A slot of a member may have expired without use.
    Offer(usize),
    /// A neighbour comes or goes.
    Neighbour(usize),
    Tick,
    /// A balancer sends its reports to the others.
    Tell(usize),
}

/// In place of a balancer: its client has its answer.
const NOBODY: usize = usize::MAX;

/// The attempts of one request before it waits for each further one, if members reject it for want of room,
/// and their maximum.
const TRIES: u32 = 4;
const MOST_TRIES: u32 = 128;

/// The mean work, seconds of a processor of speed 1.
pub(crate) const WORK: f64 = 0.010;

/// A run.
struct Run<'a> {
    setting: &'a Setting,
    fleet: Fleet,
    flights: Vec<Flight>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    /// The requests by the times at which their clients give up.
    deadlines: VecDeque<(f64, usize)>,
    neighbours: Vec<Dice>,
    tokens: f64,
    outcome: Outcome,
    urgencies: Dice,
    dispersions: Vec<f64>,
}

/// Runs a policy.
pub(crate) fn run(setting: &Setting, policy: &mut dyn Policy) -> Outcome {
    let servers: Vec<Server> = (0..setting.members).map(|index| Server::new(index, setting)).collect();
    let capacity: f64 = servers.iter().map(Server::capacity).sum::<f64>() / (WORK * setting.scale);
    let mut run = Run {
        setting,
        fleet: Fleet { servers, network: setting.network },
        flights: Vec::new(),
        events: BinaryHeap::new(),
        sequence: 0,
        deadlines: VecDeque::new(),
        neighbours: (0..setting.members as u64).map(|index| Dice::new(setting.seed, 1000 + index)).collect(),
        tokens: 0.0,
        outcome: Outcome::new(setting, capacity),
        urgencies: Dice::new(setting.seed, 5),
        dispersions: Vec::new(),
    };
    run.go(policy);
    let mut outcome = run.outcome;
    outcome.sort();
    outcome.cv = run.dispersions.iter().sum::<f64>() / run.dispersions.len().max(1) as f64;
    let errors = run
        .fleet
        .servers
        .iter()
        .filter(|server| !server.failing)
        .map(|server| (f64::from(server.meter.reading().knee) / server.cores - 1.0).abs());
    outcome.knee_error = errors.sum::<f64>() / setting.members as f64;
    outcome
}

impl Run<'_> {
    fn at(&mut self, when: f64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse(((when * 1e9) as u64, self.sequence, event)));
    }

    fn go(&mut self, policy: &mut dyn Policy) {
        let end = self.setting.warmup + self.setting.measured;
        let mut arrivals = Arrivals::new(self.setting);
        self.at(0.0, Event::Arrival);
        self.at(0.1, Event::Tick);
        for member in 0..self.setting.members {
            let off = self.neighbours[member].exp(10.0);
            self.at(off, Event::Neighbour(member));
        }
        if let Some(interval) = policy.interval() {
            // One after the other, in the order of their start.
            let apart = interval / self.setting.balancers as f64;
            (0..self.setting.balancers).for_each(|who| self.at(apart * (1 + who) as f64, Event::Tell(who)));
        }
        let mut ticks = 0_u64;
        let mut before = 0;
        let mut offers = Dice::new(self.setting.seed, 4);
        while let Some(Reverse((nanos, _, event))) = self.events.pop() {
            if nanos as f64 / 1e9 > end + 2.0 {
                break;
            }
            let now = nanos as f64 / 1e9;
            while let Some((due, flight)) = self.deadlines.front().copied().filter(|(due, _)| *due <= now) {
                self.deadlines.pop_front();
                self.give_up(flight, due.max(now - 1e-9), policy);
            }
            match event {
                Event::Arrival if now >= end => {}
                Event::Arrival => {
                    let gap = arrivals.gap(self.setting, self.outcome.capacity, now);
                    self.at(now + gap, Event::Arrival);
                    let work = arrivals.work(self.setting, now);
                    let who = arrivals.who(self.setting);
                    self.arrive(who, work, now, policy);
                }
                Event::Reach(flight) => self.reach(flight, now),
                Event::Work(member, version) => self.work(member, version, now),
                Event::Fail(flight) => self.fail(flight, now),
                Event::Back(flight) => self.back(flight, now, policy),
                Event::Offer(member) => {
                    if let Some(reading) = self.fleet.servers[member].meter.offer_slot(time(now)) {
                        let who = offers.below(self.setting.balancers);
                        self.outcome.messages += u64::from((self.setting.warmup..end).contains(&now));
                        policy.offered(who, now + self.setting.network, member, &reading);
                        self.at(now + f64::from(reading.sojourn) + 1e-6, Event::Offer(member));
                    }
                }
                Event::Patience(flight) => {
                    let who = self.flights[flight].who;
                    if self.flights[flight].state == State::Queued
                        && who != NOBODY
                        && let Some(member) = policy.late(who, now, flight)
                    {
                        self.dispatch(flight, member, now);
                        self.settle(who, now, policy);
                    }
                }
                Event::Neighbour(member) => self.neighbour(member, now),
                Event::Tell(who) => {
                    policy.tell(who, now);
                    if let Some(interval) = policy.interval().filter(|_| now < end) {
                        self.at(now + interval, Event::Tell(who));
                    }
                }
                Event::Tick => {
                    ticks += 1;
                    policy.tick(now, &self.fleet);
                    for who in 0..self.setting.balancers {
                        self.settle(who, now, policy);
                    }
                    if now < self.setting.warmup {
                        before = policy.messages();
                    }
                    if ticks.is_multiple_of(10) {
                        self.disperse(now);
                    }
                    if self.setting.crash
                        && ticks == ((self.setting.warmup + self.setting.measured / 2.0) * 10.0) as u64
                    {
                        policy.crash();
                    }
                    if now < end {
                        self.at(now + 0.1, Event::Tick);
                    }
                }
            }
        }
        self.outcome.messages += policy.messages() - before;
    }

    fn arrive(&mut self, who: usize, work: f64, now: f64, policy: &mut dyn Policy) {
        let measured = now >= self.setting.warmup;
        self.outcome.requests += u64::from(measured);
        self.tokens = (self.tokens + self.setting.retries).min(100.0);
        let urgent = self.setting.urgent > 0.0 && self.urgencies.unit() < self.setting.urgent;
        let flight = Flight {
            who,
            member: NOBODY,
            came: now,
            sent: now,
            work,
            urgency: if urgent { Urgency::new(URGENT).unwrap_or_default() } else { Urgency::default() },
            job: None,
            reading: None,
            met: 0,
            reached: now,
            state: State::Queued,
            failed: false,
            refused: false,
            tries: 0,
            full: None,
            measured,
        };
        self.flights.push(flight);
        let flight = self.flights.len() - 1;
        self.deadlines.push_back((now + self.setting.patience, flight));
        self.seek(flight, None, now, policy);
    }

    /// Looks for a member for a request, which waits for one if it may.
    fn seek(&mut self, flight: usize, failed: Option<usize>, now: f64, policy: &mut dyn Policy) {
        let (who, urgency) = (self.flights[flight].who, self.flights[flight].urgency);
        self.flights[flight].state = State::Queued;
        let member = match self.flights[flight].tries {
            TRIES.. => None,
            _ if policy.outranked(who, urgency) => None,
            _ => policy.choose(who, now, &self.fleet, failed),
        };
        match member {
            Some(member) => self.dispatch(flight, Some(member), now),
            None if self.flights[flight].tries >= MOST_TRIES => self.dispatch(flight, None, now),
            None => {
                let since = *self.flights[flight].full.get_or_insert(now);
                match policy.wait(who, now, since, flight, urgency) {
                    Some(until) => self.at(until + 1e-9, Event::Patience(flight)),
                    None => self.dispatch(flight, None, now),
                }
            }
        }
        self.settle(who, now, policy);
    }

    /// Lets balancer `who` handle its waiting requests.
    fn settle(&mut self, who: usize, now: f64, policy: &mut dyn Policy) {
        for (flight, member) in policy.turns(who, now, &self.fleet) {
            self.dispatch(flight, member, now);
        }
    }

    /// Sends a request to a member, or rejects it.
    fn dispatch(&mut self, flight: usize, member: Option<usize>, now: f64) {
        let entry = &mut self.flights[flight];
        let Some(member) = member else {
            (entry.state, entry.who) = (State::Over, NOBODY);
            if entry.measured {
                self.outcome.refused(now - entry.came, entry.urgent());
            }
            return;
        };
        if let Some(since) = entry.full.filter(|_| entry.measured) {
            self.outcome.waited += 1;
            self.outcome.waits += now - since;
        }
        (entry.member, entry.sent) = (member, now);
        (entry.failed, entry.refused) = (false, false);
        (entry.state, entry.reading) = (State::Travelling, None);
        entry.tries += 1;
        self.at(now + self.setting.network, Event::Reach(flight));
    }

    fn reach(&mut self, flight: usize, now: f64) {
        if self.flights[flight].who == NOBODY && !self.setting.ignore_cancel {
            return;
        }
        let member = self.flights[flight].member;
        let server = &mut self.fleet.servers[member];
        server.advance(now);
        let honest = self.setting.lying != Some(member);
        if self.setting.guarded && honest && server.meter.is_full() && !server.silent {
            let entry = &mut self.flights[flight];
            entry.refused = true;
            entry.state = State::Gone;
            entry.reading = Some(server.meter.reading());
            self.at(now + self.setting.network, Event::Back(flight));
            return;
        }
        server.received += 1;
        self.flights[flight].job = Some(server.meter.begin(time(now)));
        (self.flights[flight].met, self.flights[flight].reached) = (server.jobs, now);
        server.jobs += 1;
        if server.failing {
            self.flights[flight].state = State::Running;
            self.at(now + 0.000_5, Event::Fail(flight));
            return;
        }
        self.flights[flight].state = State::Waiting;
        server.waiting.push_back(flight);
        self.start(member);
        self.schedule(member, now);
    }

    /// Starts the waiting jobs that may run.
    fn start(&mut self, member: usize) {
        let server = &mut self.fleet.servers[member];
        let most = match server.discipline {
            Discipline::Fifo => server.cores as usize,
            Discipline::Batch if server.running > 0 => 0,
            Discipline::Batch => server.cores as usize,
            Discipline::Sharing | Discipline::Contended => usize::MAX,
        };
        while server.running < most {
            let Some(flight) = server.waiting.pop_front() else { return };
            if self.flights[flight].state != State::Waiting {
                continue;
            }
            self.flights[flight].state = State::Running;
            server.running += 1;
            let end = server.attained + self.flights[flight].work;
            server.ends.push(Reverse(((end * 1e9) as u64, flight)));
        }
    }

    /// Schedules the next end of a member's job.
    fn schedule(&mut self, member: usize, now: f64) {
        let server = &mut self.fleet.servers[member];
        server.version += 1;
        while let Some(Reverse((_, flight))) = server.ends.peek() {
            if self.flights[*flight].state == State::Running {
                break;
            }
            server.ends.pop();
        }
        let Some(Reverse((end, _))) = server.ends.peek() else { return };
        let left = (*end as f64 / 1e9 - server.attained).max(0.0);
        let (when, version) = (now + left / server.rate(), server.version);
        self.at(when + 1e-9, Event::Work(member, version));
    }

    fn work(&mut self, member: usize, version: u64, now: f64) {
        let server = &mut self.fleet.servers[member];
        if server.version != version {
            return;
        }
        server.advance(now);
        if let Some(Reverse((_, flight))) = server.ends.pop() {
            server.running -= 1;
            self.leave(flight, true, now);
        }
        self.start(member);
        self.schedule(member, now);
    }

    fn fail(&mut self, flight: usize, now: f64) {
        if self.flights[flight].state == State::Running {
            let member = self.flights[flight].member;
            self.fleet.servers[member].advance(now);
            self.fleet.servers[member].failures += 1;
            self.flights[flight].failed = true;
            self.leave(flight, false, now);
        }
    }

    /// Ends a job at its member with an answer.
    fn leave(&mut self, flight: usize, succeeded: bool, now: f64) {
        let entry = &mut self.flights[flight];
        let server = &mut self.fleet.servers[entry.member];
        server.jobs -= 1;
        server.samples.push_back((entry.met, now - entry.reached));
        if server.samples.len() > 64 {
            server.samples.pop_front();
        }
        entry.state = State::Gone;
        if let Some(job) = entry.job.take() {
            let reading = server.meter.end(job, succeeded, time(now));
            let reading = Reading { slot: reading.slot && self.setting.slots, ..reading };
            let reading = match self.setting.lying == Some(entry.member) {
                true => Reading { in_flight: 0, knee: 100.0, work: 1e-5, slot: true, ..reading },
                false => reading,
            };
            entry.reading = (!server.silent).then_some(reading);
            if self.setting.push && reading.slot {
                let (member, due) = (entry.member, now + f64::from(reading.sojourn) + 1e-6);
                self.at(due, Event::Offer(member));
            }
        }
        if self.flights[flight].who != NOBODY {
            self.at(now + self.setting.network, Event::Back(flight));
        }
    }

    fn back(&mut self, flight: usize, now: f64, policy: &mut dyn Policy) {
        let entry = &mut self.flights[flight];
        if entry.who == NOBODY {
            return;
        }
        let (who, failed, refused, member) = (entry.who, entry.failed, entry.refused, entry.member);
        let answer = Answer {
            member,
            latency: now - entry.sent,
            left: false,
            failed,
            refused,
            reading: entry.reading,
        };
        policy.ended(who, now, &answer);
        policy.seen(now, member, &self.fleet);
        if refused || (failed && self.tokens >= 1.0 && self.flights[flight].tries < TRIES) {
            self.tokens -= if failed { 1.0 } else { 0.0 };
            if failed {
                // A failure is answered as it is if there is no other member.
                if let Some(member) = policy.choose(who, now, &self.fleet, Some(member)) {
                    self.dispatch(flight, Some(member), now);
                    return;
                }
            } else {
                self.seek(flight, Some(member), now, policy);
                return;
            }
        }
        self.settle(who, now, policy);
        let entry = &mut self.flights[flight];
        (entry.state, entry.who) = (State::Over, NOBODY);
        if entry.measured {
            let latency = now - entry.came;
            self.outcome.answered(latency, entry.urgent());
            self.outcome.failed += u64::from(failed);
            self.outcome.good += u64::from(!failed);
            self.outcome.in_time += u64::from(!failed && latency <= 5.0 * entry.work + 0.020);
        }
    }

    /// Lets the client of a request give it up.
    fn give_up(&mut self, flight: usize, now: f64, policy: &mut dyn Policy) {
        let entry = &self.flights[flight];
        let (who, member, state) = (entry.who, entry.member, entry.state);
        if who == NOBODY {
            return;
        }
        self.flights[flight].who = NOBODY;
        if !self.setting.ignore_cancel && matches!(state, State::Waiting | State::Running) {
            let server = &mut self.fleet.servers[member];
            server.advance(now);
            server.jobs -= 1;
            if state == State::Running && !server.failing {
                server.running -= 1;
            }
            if let Some(job) = self.flights[flight].job.take() {
                server.meter.end(job, false, time(now));
            }
            self.flights[flight].state = State::Over;
            self.start(member);
            self.schedule(member, now);
        }
        if state == State::Queued {
            policy.left(who, now, flight);
            if self.flights[flight].measured {
                self.outcome.answered(self.setting.patience + 2e-3, self.flights[flight].urgent());
                self.outcome.failed += 1;
            }
            return;
        }
        policy.ended(
            who,
            now,
            &Answer {
                member,
                latency: now - self.flights[flight].sent,
                left: true,
                failed: false,
                refused: false,
                reading: None,
            },
        );
        if self.flights[flight].measured {
            self.outcome.answered(self.setting.patience + 2e-3, self.flights[flight].urgent());
            self.outcome.failed += 1;
        }
    }

    fn neighbour(&mut self, member: usize, now: f64) {
        let lasts = self.fleet.servers[member].disturb(&mut self.neighbours[member], now);
        if now < self.setting.warmup + self.setting.measured {
            self.at(now + lasts, Event::Neighbour(member));
        }
        self.schedule(member, now);
    }

    /// Records the dispersion of the last second's requests over the members.
    fn disperse(&mut self, now: f64) {
        let mut loads = Vec::new();
        for server in &mut self.fleet.servers {
            server.advance(now);
            let per_core = server.integral / (server.cores * server.speed * server.g);
            loads.push(per_core);
            server.integral = 0.0;
        }
        if now > self.setting.warmup {
            let mean = loads.iter().sum::<f64>() / loads.len() as f64;
            let variance = loads.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / loads.len() as f64;
            self.dispersions.push(variance.sqrt() / mean.max(1e-9));
        }
    }
}
