//! A history as it happens: arrivals, event loops, members and troubles in the order of virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use plimsoll_brain::Vitals;
use plimsoll_brain::meter::{Job, Reading};

use super::balancer::{Balancer, Found, Item, time};
use super::composition::{Composition, Traffic, What};
use super::dice::Dice;
use super::record::{Ejected, Fate, Record, Refused, Row};
use super::server::Server;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A phase begins.
    Phase(usize),
    /// The next request of an open loop, of a burst, and of a client.
    Open(usize),
    Burst(usize),
    Client(usize),
    /// An event loop may have something to handle.
    Wake(usize),
    /// Something comes to the balancer of a request: the head of an answer, the end of its body or of its
    /// stream, the end of its patience, or its time to look.
    Answer(usize),
    Sent(usize),
    Ended(usize),
    Left(usize),
    Timer(usize),
    /// A request reaches its member.
    Reach(usize),
    /// A member has done its next request, if its version is still this.
    Work(usize, u64),
    /// The control thread of a balancer looks, or the brain wants to be called.
    Look(usize),
    Due(usize),
    /// A trouble begins, goes on and ends.
    Begin(usize),
    Again(usize),
    End(usize),
    /// Members join or leave.
    Change,
    /// Balancers are started anew.
    Restart,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// At its balancer.
    Queued,
    /// Its body is on its way.
    Sending,
    Travelling,
    /// At its member, without a worker and with one.
    Waiting,
    Running,
    /// On its way back.
    Gone,
    /// Its head has come, and more follows.
    Streaming,
    Over,
}

struct Flight {
    who: usize,
    generation: u32,
    client: Option<usize>,
    /// When its client began to wait for the answer.
    base: f64,
    work: f64,
    /// How long its body takes, and what follows the head; 0 for nothing.
    upload: f64,
    stream: f64,
    member: usize,
    vitals: Option<Arc<Vitals>>,
    /// Since when its answer has been awaited, and how long that took.
    awaited: f64,
    head: f64,
    job: Option<Job>,
    reading: Option<Reading>,
    state: State,
    tries: u32,
    full: Option<f64>,
    failed: bool,
    refused: bool,
    row: usize,
}

/// A client of a closed loop.
struct Client {
    dice: Dice,
    think: f64,
    until: f64,
}

/// Tries of a request that failed, and attempts at members that refuse it.
const TRIES: u32 = 3;
const ATTEMPTS: u32 = 4;
const MOST: u32 = 128;

/// Seconds after which a balancer gives up a member's answer.
const TIMEOUT: f64 = 15.0;

/// Seconds for which a load counts as the cause of a refusal.
pub(crate) const GONE: f64 = 2.0;

pub(crate) struct World<'a> {
    composition: &'a Composition,
    strategy: &'a str,
    servers: Vec<Server>,
    balancers: Vec<Balancer>,
    generation: u32,
    flights: Vec<Flight>,
    clients: Vec<Client>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    deadlines: VecDeque<(f64, usize)>,
    arrivals: Dice,
    requests: Dice,
    phase: usize,
    /// What all answers take longer.
    hiccup: f64,
    tokens: f64,
    /// Work that has come and that members as one could not have done by then, if clients give up in time.
    owed: f64,
    owed_at: f64,
    /// Work a second that members can do now, and when they could do any last.
    capacity: f64,
    usual: f64,
    /// The greatest time lately that they need for what is owed, in falling order.
    debts: VecDeque<(f64, f64)>,
    record: Record,
}

/// Plays a history with a strategy. `restart`: when all balancers are started anew.
pub(crate) fn play(composition: &Composition, strategy: &str, restart: Option<f64>) -> Record {
    let reports = strategy == "adaptive";
    let servers = composition.members.iter();
    let servers: Vec<Server> =
        servers.map(|kind| Server::new(kind, composition.sharing, kind.speaks && reports)).collect();
    let dice = |stream| Dice::new(composition.seed, stream);
    let mut world = World {
        composition,
        strategy,
        servers,
        balancers: Vec::new(),
        generation: 0,
        flights: Vec::new(),
        clients: Vec::new(),
        events: BinaryHeap::new(),
        sequence: 0,
        deadlines: VecDeque::new(),
        arrivals: dice(2),
        requests: dice(3),
        phase: 0,
        hiccup: 0.0,
        tokens: 10.0,
        owed: 0.0,
        owed_at: 0.0,
        capacity: 0.0,
        usual: 1.0,
        debts: VecDeque::new(),
        record: Record::new(composition),
    };
    world.start(0.0);
    world.go(restart);
    world.record
}

impl World<'_> {
    fn at(&mut self, when: f64, event: Event) {
        self.sequence += 1;
        // Never before its time.
        self.events.push(Reverse(((when * 1e9) as u64 + 1, self.sequence, event)));
    }

    /// The members that are there.
    fn there(&self) -> Vec<usize> {
        (0..self.servers.len()).filter(|index| self.servers[*index].there).collect()
    }

    fn start(&mut self, now: f64) {
        let there = self.there();
        let count = self.composition.balancers;
        self.balancers = (0..count)
            .map(|index| Balancer::new(self.strategy, self.composition, index, &there, now))
            .collect();
        for who in 0..count {
            let when = now + 0.1 * who as f64 / count as f64;
            self.balancers[who].due = when;
            self.at(when, Event::Look(who));
        }
        self.weigh(now);
    }

    fn go(&mut self, restart: Option<f64>) {
        let composition = self.composition;
        for (index, phase) in composition.phases.iter().enumerate() {
            self.at(phase.begin, Event::Phase(index));
        }
        for (index, trouble) in composition.troubles.iter().enumerate() {
            self.at(trouble.begin, Event::Begin(index));
            self.at(trouble.end, Event::End(index));
        }
        for kind in &composition.members {
            for when in [kind.joins, kind.leaves] {
                if when > 0.0 && when.is_finite() {
                    self.at(when, Event::Change);
                }
            }
        }
        if let Some(restart) = restart {
            self.at(restart, Event::Restart);
        }
        // A restart is for what comes in the seconds after it.
        let last = restart.map_or(f64::INFINITY, |restart| restart + super::record::FRESH);
        let end = composition.end().min(last) + composition.patience;
        while let Some(Reverse((nanos, _, event))) = self.events.pop() {
            let now = nanos as f64 / 1e9;
            if now > end {
                break;
            }
            while let Some((due, flight)) = self.deadlines.front().copied().filter(|(due, _)| *due <= now) {
                self.deadlines.pop_front();
                self.patience(flight, due.max(now - 1e-9));
            }
            self.handle(event, now);
        }
        self.record.end();
    }

    fn handle(&mut self, event: Event, now: f64) {
        match event {
            Event::Phase(index) => self.begin_phase(index, now),
            Event::Open(phase) if phase == self.phase => {
                self.next_open(phase, now);
                self.open(now);
            }
            Event::Burst(phase) if phase == self.phase => {
                if let Traffic::Bursts { size, every, .. } = self.composition.phases[phase].traffic {
                    self.at(now + every, Event::Burst(phase));
                    (0..size).for_each(|_| self.open(now));
                }
            }
            Event::Open(_) | Event::Burst(_) => {}
            Event::Client(index) => {
                let client = &mut self.clients[index];
                if now < client.until {
                    let (who, mut dice) = (index % self.balancers.len(), client.dice.clone());
                    self.arrive(who, Some(index), &mut dice, now);
                    self.clients[index].dice = dice;
                }
            }
            Event::Wake(who) => self.wake(who, now),
            Event::Answer(flight) => self.post(flight, Item::Answer(flight), now),
            Event::Sent(flight) => self.post(flight, Item::Sent(flight), now),
            Event::Ended(flight) => self.post(flight, Item::Ended(flight), now),
            Event::Left(flight) => self.patience(flight, now),
            Event::Timer(flight) => self.post(flight, Item::Timer(flight), now),
            Event::Reach(flight) => self.reach(flight, now),
            Event::Work(member, version) => self.work(member, version, now),
            Event::Look(who) => self.look(who, now),
            Event::Due(who) => {
                self.balancers[who].settle(now);
                self.settle(who, now);
            }
            Event::Begin(trouble) | Event::Again(trouble) => self.trouble(trouble, now),
            Event::End(trouble) => self.relief(trouble, now),
            Event::Change => self.change(now),
            Event::Restart => {
                self.record.restarted =
                    self.flights.iter().all(|flight| matches!(flight.state, State::Over | State::Streaming));
                self.generation += 1;
                self.events.retain(|Reverse((.., event))| {
                    !matches!(event, Event::Look(_) | Event::Due(_) | Event::Wake(_))
                });
                self.start(now);
            }
        }
    }

    fn begin_phase(&mut self, index: usize, now: f64) {
        self.phase = index;
        let phase = self.composition.phases[index];
        match phase.traffic {
            Traffic::Idle => {}
            Traffic::Steady(_) => self.next_open(index, now),
            Traffic::Bursts { .. } => {
                self.next_open(index, now);
                self.at(now, Event::Burst(index));
            }
            Traffic::Closed { clients, think } => {
                for place in 0..clients {
                    let mut dice = Dice::new(self.composition.seed, (index as u64 + 10) << 32 | place as u64);
                    let first = now + dice.exp(think);
                    self.clients.push(Client { dice, think, until: phase.end });
                    self.at(first, Event::Client(self.clients.len() - 1));
                }
            }
        }
    }

    fn next_open(&mut self, phase: usize, now: f64) {
        if let Traffic::Steady(rate) | Traffic::Bursts { rate, .. } = self.composition.phases[phase].traffic {
            let gap = self.arrivals.exp(1.0 / rate);
            if now + gap < self.composition.phases[phase].end {
                self.at(now + gap, Event::Open(phase));
            }
        }
    }

    fn open(&mut self, now: f64) {
        let mut dice = self.requests.clone();
        let who = dice.below(self.balancers.len());
        self.arrive(who, None, &mut dice, now);
        self.requests = dice;
    }

    fn arrive(&mut self, who: usize, client: Option<usize>, dice: &mut Dice, now: f64) {
        let composition = self.composition;
        let (kind, lasts) = (dice.unit(), dice.exp(composition.lasting));
        let work = composition.work * composition.law.draw(dice);
        let upload = if kind < composition.uploads && client.is_none() { lasts } else { 0.0 };
        let streams = kind > 1.0 - composition.streams && client.is_none();
        let base = now + upload;
        let flight = self.flights.len();
        let row = self.record.begin(base);
        self.flights.push(Flight {
            who,
            generation: self.generation,
            client,
            base,
            work,
            upload,
            stream: if streams { lasts } else { 0.0 },
            member: usize::MAX,
            vitals: None,
            awaited: now,
            head: 0.0,
            job: None,
            reading: None,
            state: State::Queued,
            tries: 0,
            full: None,
            failed: false,
            refused: false,
            row,
        });
        let patience =
            if composition.leave { composition.patience } else { TIMEOUT.max(composition.patience) };
        if upload > 0.0 {
            self.at(base + patience, Event::Left(flight));
        } else {
            self.deadlines.push_back((base + patience, flight));
        }
        self.post(flight, Item::Arrive(flight), now);
    }

    /// Something comes to the balancer of a request.
    fn post(&mut self, flight: usize, item: Item, now: f64) {
        let (who, generation) = (self.flights[flight].who, self.flights[flight].generation);
        if generation != self.generation {
            return;
        }
        let balancer = &mut self.balancers[who];
        if balancer.inbox.is_empty() && balancer.free_at <= now {
            balancer.free_at = now + self.composition.handling;
            self.take(who, item, now);
        } else {
            balancer.inbox.push_back(item);
            self.rouse(who, now);
        }
    }

    /// Sees to it that the event loop of a balancer handles what it has.
    fn rouse(&mut self, who: usize, now: f64) {
        let balancer = &mut self.balancers[who];
        if !balancer.woken && !balancer.inbox.is_empty() {
            balancer.woken = true;
            let when = balancer.free_at.max(now);
            self.at(when + 1e-9, Event::Wake(who));
        }
    }

    fn wake(&mut self, who: usize, now: f64) {
        let balancer = &mut self.balancers[who];
        balancer.woken = false;
        if balancer.free_at <= now
            && let Some(item) = balancer.inbox.pop_front()
        {
            balancer.free_at = now + self.composition.handling;
            self.take(who, item, now);
        }
        self.rouse(who, now);
    }

    fn take(&mut self, who: usize, item: Item, now: f64) {
        match item {
            Item::Arrive(flight) if self.flights[flight].state == State::Over => {}
            Item::Arrive(flight) => {
                self.tokens = (self.tokens + 0.2).min(100.0);
                if self.flights[flight].upload == 0.0 {
                    self.owe(self.flights[flight].work, now);
                }
                self.seek(flight, None, now);
            }
            Item::Sent(flight) => self.sent(flight, now),
            Item::Answer(flight) => self.answer(flight, now),
            Item::Ended(flight) => {
                let entry = &mut self.flights[flight];
                if entry.state == State::Streaming {
                    entry.state = State::Over;
                    let (member, head) = (entry.member, entry.head);
                    if let Some(vitals) = entry.vitals.take() {
                        self.balancers[who].observe(member, &vitals, head, false, now);
                        vitals.end_streaming();
                        vitals.end();
                        self.balancers[who].rung = true;
                    }
                }
            }
            Item::Left(flight) => self.left(flight, now),
            Item::Timer(flight) => {
                if self.flights[flight].state == State::Queued {
                    let since = self.flights[flight].full.unwrap_or(now);
                    match self.balancers[who].timer(flight, since, now) {
                        Ok(Some(found)) => self.dispatch(flight, found, now),
                        Ok(None) => {}
                        Err(again) => self.at(again, Event::Timer(flight)),
                    }
                }
            }
            Item::Asked(asked) => self.balancers[who].answered(asked, now),
        }
        self.settle(who, now);
    }

    /// A request looks for a member, and waits for one if it may.
    fn seek(&mut self, flight: usize, failed: Option<usize>, now: f64) {
        let who = self.flights[flight].who;
        self.flights[flight].state = State::Queued;
        let found = match self.flights[flight].tries {
            MOST.. => {
                self.dispatch(flight, Found::Full, now);
                return;
            }
            ATTEMPTS.. => Found::Full,
            _ => self.balancers[who].choose(now, failed, false),
        };
        if let Found::Full = found {
            let since = *self.flights[flight].full.get_or_insert(now);
            if let Some(again) = self.balancers[who].wait(flight, since, now) {
                self.at(again, Event::Timer(flight));
                return;
            }
        } else if let Found::Member(..) = found {
            // Where one found room there may be more.
            self.balancers[who].rung = true;
        }
        self.dispatch(flight, found, now);
    }

    /// A request is on its way to a member, or refused.
    fn dispatch(&mut self, flight: usize, found: Found, now: f64) {
        let entry = &mut self.flights[flight];
        let (member, vitals) = match found {
            Found::Member(member, vitals) => (member, vitals),
            Found::Full => {
                let waited = now - entry.full.unwrap_or(now);
                self.refuse(flight, waited, now);
                return;
            }
            Found::Nobody => {
                self.over(flight, Fate::Failed, now);
                return;
            }
        };
        (entry.member, entry.failed, entry.refused, entry.reading) = (member, false, false, None);
        entry.tries += 1;
        let left = entry.base - now;
        if entry.upload > 0.0 && left > 0.0 {
            vitals.begin_streaming();
            entry.state = State::Sending;
            entry.vitals = Some(vitals);
            self.at(now + left, Event::Sent(flight));
            return;
        }
        entry.vitals = Some(vitals);
        (entry.state, entry.awaited) = (State::Travelling, now);
        self.at(now + self.composition.network, Event::Reach(flight));
    }

    fn sent(&mut self, flight: usize, now: f64) {
        let entry = &mut self.flights[flight];
        if entry.state != State::Sending {
            return;
        }
        if let Some(vitals) = &entry.vitals {
            vitals.end_streaming();
        }
        (entry.state, entry.awaited) = (State::Travelling, now);
        let work = entry.work;
        self.owe(work, now);
        self.at(now + self.composition.network, Event::Reach(flight));
    }

    fn reach(&mut self, flight: usize, now: f64) {
        let entry = &mut self.flights[flight];
        if entry.state != State::Travelling {
            return;
        }
        let (member, back) = (entry.member, self.composition.network + self.hiccup);
        let server = &mut self.servers[member];
        if server.dead || server.fails {
            entry.failed = true;
            entry.state = State::Gone;
            self.at(now + back + 0.000_5, Event::Answer(flight));
            return;
        }
        server.advance(now);
        if let Some(meter) = &mut server.meter {
            if meter.full() {
                (entry.refused, entry.state) = (true, State::Gone);
                entry.reading = Some(meter.reading());
                self.at(now + back, Event::Answer(flight));
                return;
            }
            entry.job = Some(meter.begin(time(now)));
        }
        entry.state = State::Waiting;
        server.waiting.push_back(flight);
        self.begin_work(member, now);
    }

    /// Lets workers take up what waits, and finds when the next request will be done.
    fn begin_work(&mut self, member: usize, now: f64) {
        let server = &mut self.servers[member];
        let mut changed = false;
        while server.free() {
            let Some(flight) = server.waiting.pop_front() else { break };
            if self.flights[flight].state == State::Waiting {
                self.flights[flight].state = State::Running;
                server.start(flight, self.flights[flight].work);
                changed = true;
            }
        }
        if changed {
            self.schedule(member, now);
        }
    }

    fn schedule(&mut self, member: usize, now: f64) {
        let flights = &self.flights;
        let runs =
            |flight: usize| flights[flight].state == State::Running && flights[flight].member == member;
        if let Some(when) = self.servers[member].next(now, runs) {
            let version = self.servers[member].version;
            self.at(when, Event::Work(member, version));
        }
    }

    fn work(&mut self, member: usize, version: u64, now: f64) {
        if self.servers[member].version != version {
            return;
        }
        self.servers[member].advance(now);
        if let Some(Reverse((_, flight))) = self.servers[member].ends.pop() {
            self.servers[member].running -= 1;
            self.leave_member(flight, true, now);
        }
        self.begin_work(member, now);
        self.schedule(member, now);
    }

    /// A request leaves its member with an answer.
    fn leave_member(&mut self, flight: usize, succeeded: bool, now: f64) {
        let entry = &mut self.flights[flight];
        if let (Some(job), Some(meter)) = (entry.job.take(), &mut self.servers[entry.member].meter) {
            entry.reading = Some(meter.end(job, succeeded, time(now)));
        }
        entry.failed |= !succeeded;
        if entry.vitals.is_none() {
            // Its client has gone.
            entry.state = State::Over;
            return;
        }
        entry.state = State::Gone;
        self.at(now + self.composition.network + self.hiccup, Event::Answer(flight));
    }

    /// The head of an answer has come to the balancer.
    fn answer(&mut self, flight: usize, now: f64) {
        let entry = &mut self.flights[flight];
        if entry.state != State::Gone {
            return;
        }
        let Some(vitals) = entry.vitals.clone() else { return };
        let (who, member, latency) = (entry.who, entry.member, now - entry.awaited);
        let (failed, refused) = (entry.failed, entry.refused);
        if let Some(reading) = entry.reading.take() {
            self.balancers[who].hear(member, &reading, now);
        }
        let entry = &mut self.flights[flight];
        if !failed && !refused && entry.stream > 0.0 {
            let ends = now + entry.stream;
            (entry.state, entry.head) = (State::Streaming, latency);
            vitals.begin_streaming();
            self.at(ends, Event::Ended(flight));
            self.answered(flight, now);
            return;
        }
        entry.vitals = None;
        if refused {
            vitals.lose();
            vitals.end();
            self.seek(flight, Some(member), now);
            return;
        }
        self.balancers[who].observe(member, &vitals, latency, failed, now);
        vitals.end();
        self.balancers[who].rung = true;
        if !failed {
            self.flights[flight].state = State::Over;
            self.answered(flight, now);
            return;
        }
        if self.tokens >= 1.0
            && self.flights[flight].tries < TRIES
            && let found @ Found::Member(..) = self.balancers[who].choose(now, Some(member), false)
        {
            self.tokens -= 1.0;
            self.dispatch(flight, found, now);
        } else {
            self.over(flight, Fate::Failed, now);
        }
    }

    fn answered(&mut self, flight: usize, now: f64) {
        let latency = now - self.flights[flight].base;
        let fate = if latency <= self.composition.patience { Fate::InTime } else { Fate::Late };
        self.fate(flight, fate, latency, now);
    }

    fn over(&mut self, flight: usize, fate: Fate, now: f64) {
        self.flights[flight].state = State::Over;
        let latency = now - self.flights[flight].base;
        self.fate(flight, fate, latency, now);
    }

    fn fate(&mut self, flight: usize, fate: Fate, latency: f64, now: f64) {
        let entry = &self.flights[flight];
        self.record.rows[entry.row] =
            Row { fate, latency, member: entry.member, ..self.record.rows[entry.row] };
        if let Some(client) = entry.client {
            let Client { dice, think, .. } = &mut self.clients[client];
            let think = dice.exp(*think);
            let think = if fate == Fate::InTime { think } else { think.max(0.02) };
            self.at(now + think, Event::Client(client));
        }
    }

    fn refuse(&mut self, flight: usize, waited: f64, now: f64) {
        self.repay(now);
        let debt = self.debts.front().map_or(0.0, |(_, debt)| *debt);
        let who = self.flights[flight].who;
        let shown =
            if self.record.refused.is_empty() { self.balancers[who].shown(now) } else { String::new() };
        self.record.refused.push(Refused { at: now, waited, debt, shown });
        self.over(flight, Fate::Refused, now);
    }

    /// The client of a request has waited for long enough.
    fn patience(&mut self, flight: usize, now: f64) {
        let entry = &self.flights[flight];
        if !matches!(entry.state, State::Over | State::Streaming) && entry.generation == self.generation {
            self.post(flight, Item::Left(flight), now);
        }
    }

    fn left(&mut self, flight: usize, now: f64) {
        let entry = &mut self.flights[flight];
        let (who, member, state) = (entry.who, entry.member, entry.state);
        if matches!(state, State::Over | State::Streaming) {
            return;
        }
        if state == State::Queued {
            self.balancers[who].leave(flight, false, now);
        }
        if let Some(vitals) = entry.vitals.take() {
            let latency = now - entry.awaited;
            if state == State::Sending {
                vitals.end_streaming();
            } else if self.composition.leave {
                self.balancers[who].left(&vitals, latency, now);
            } else {
                self.balancers[who].observe(member, &vitals, latency, true, now);
            }
            vitals.end();
            self.balancers[who].rung = true;
        }
        let at_member = matches!(state, State::Waiting | State::Running);
        self.over(flight, Fate::Late, now);
        if at_member && self.composition.deaf {
            self.flights[flight].state = state;
        } else if at_member {
            let server = &mut self.servers[member];
            server.advance(now);
            if let (Some(job), Some(meter)) = (self.flights[flight].job.take(), &mut server.meter) {
                meter.end(job, false, time(now));
            }
            if state == State::Running {
                server.running -= 1;
                self.begin_work(member, now);
                self.schedule(member, now);
            }
        }
    }

    fn look(&mut self, who: usize, now: f64) {
        let stopped = self.balancers[who].stopped;
        if stopped > now {
            self.at(stopped, Event::Look(who));
            return;
        }
        let next = self.balancers[who].look(now);
        self.at(next, Event::Look(who));
        if let Some(wake) = self.balancers[who].wake() {
            self.at(wake.max(now), Event::Due(who));
        }
        self.settle(who, now);
        self.rouse(who, now);
    }

    /// A balancer looks after those that wait, and what it decided is written down.
    fn settle(&mut self, who: usize, now: f64) {
        while let Some((flight, found)) = self.balancers[who].turn(now) {
            self.dispatch(flight, found, now);
        }
        if self.balancers[who].events.is_empty() {
            return;
        }
        for (ejected, member, why) in std::mem::take(&mut self.balancers[who].events) {
            if ejected {
                let server = &self.servers[member];
                let waiting: f64 = server.waiting.iter().map(|flight| self.flights[*flight].work).sum();
                let backlog = (waiting + server.under_way()) / server.capacity().max(1e-6);
                self.record.ejected.push(Ejected { at: now, who, member, backlog, why });
            }
        }
        if let Some(wake) = self.balancers[who].wake() {
            self.at(wake.max(now), Event::Due(who));
        }
        self.weigh(now);
    }

    fn trouble(&mut self, index: usize, now: f64) {
        let trouble = self.composition.troubles[index];
        match trouble.what {
            What::Hang(member) => self.affect(member, now, |server| server.hangs = true),
            What::Crawl(member) => self.affect(member, now, |server| server.factor *= 0.1),
            What::Fail(member) => self.affect(member, now, |server| server.fails = true),
            What::Die(member) => {
                self.affect(member, now, |server| server.dead = true);
                let lost: Vec<usize> = (0..self.flights.len())
                    .filter(|flight| self.flights[*flight].member == member)
                    .filter(|flight| matches!(self.flights[*flight].state, State::Waiting | State::Running))
                    .collect();
                lost.into_iter().for_each(|flight| self.leave_member(flight, false, now));
                let server = &mut self.servers[member];
                server.waiting.clear();
                (server.running, server.version) = (0, server.version + 1);
            }
            What::Speed(member, factor) => self.affect(member, now, |server| server.factor *= factor),
            What::Collect { member, pause, every } => {
                let collecting = !self.servers[member].collecting;
                self.affect(member, now, |server| server.collecting = collecting);
                let next = if collecting { now + pause } else { now + every };
                if collecting || next < trouble.end {
                    self.at(next, Event::Again(index));
                }
            }
            What::Hiccup(more) => self.hiccup = more,
            What::Lag { balancer, pause, every } => {
                let busy = &mut self.balancers[balancer];
                busy.free_at = busy.free_at.max(now) + pause;
                if now + every < trouble.end {
                    self.at(now + every, Event::Again(index));
                }
            }
            What::Stop(balancer) => {
                let stands = &mut self.balancers[balancer];
                stands.free_at = stands.free_at.max(trouble.end);
                stands.stopped = trouble.end;
            }
        }
    }

    fn relief(&mut self, index: usize, now: f64) {
        match self.composition.troubles[index].what {
            What::Hang(member) => self.affect(member, now, |server| server.hangs = false),
            What::Crawl(member) => self.affect(member, now, |server| server.factor *= 10.0),
            What::Fail(member) => self.affect(member, now, |server| server.fails = false),
            What::Die(member) => self.affect(member, now, |server| server.dead = false),
            What::Speed(member, factor) => self.affect(member, now, |server| server.factor /= factor),
            What::Hiccup(_) => self.hiccup = 0.0,
            What::Collect { .. } | What::Lag { .. } | What::Stop(_) => {}
        }
    }

    /// Changes a member.
    fn affect(&mut self, member: usize, now: f64, change: impl FnOnce(&mut Server)) {
        self.servers[member].advance(now);
        change(&mut self.servers[member]);
        self.schedule(member, now);
        self.weigh(now);
    }

    fn change(&mut self, now: f64) {
        for (server, kind) in self.servers.iter_mut().zip(&self.composition.members) {
            server.there = kind.joins <= now + 1e-6 && now + 1e-6 < kind.leaves;
        }
        let there = self.there();
        for who in 0..self.balancers.len() {
            self.balancers[who].update(self.strategy, self.composition, &there, now);
            self.settle(who, now);
        }
        self.weigh(now);
    }

    /// More work has come.
    fn owe(&mut self, work: f64, now: f64) {
        self.repay(now);
        if self.owed < self.composition.patience * self.usual {
            self.owed += work;
        }
        self.note(now);
    }

    /// Time has passed.
    fn repay(&mut self, now: f64) {
        self.owed = (self.owed - self.capacity * (now - self.owed_at)).max(0.0);
        self.owed_at = now;
        while self.debts.front().is_some_and(|(at, _)| *at < now - GONE) {
            self.debts.pop_front();
        }
    }

    fn note(&mut self, now: f64) {
        let debt = self.owed / self.usual;
        while self.debts.back().is_some_and(|(_, least)| *least <= debt) {
            self.debts.pop_back();
        }
        self.debts.push_back((now, debt));
    }

    /// What members can do has changed.
    fn weigh(&mut self, now: f64) {
        self.repay(now);
        let count = self.balancers.len() as f64;
        self.capacity = 0.0;
        for (index, server) in self.servers.iter().enumerate() {
            let out = self.balancers.iter().filter(|balancer| balancer.out[index]).count();
            self.capacity += server.capacity() * (1.0 - out as f64 / count);
        }
        if self.capacity > 0.0 {
            self.usual = self.capacity;
        }
        self.note(now);
    }
}
