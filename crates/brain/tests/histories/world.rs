//! The run of a history: arrivals, event loops, members and troubles in the order of virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use plimsoll_brain::Vitals;
use plimsoll_brain::meter::{MeteredRequest, Reading};

mod loops;
mod members;
mod outcomes;
mod troubles;

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
    /// An event for the balancer of a request: the head of an answer, the end of its body or of its stream,
    /// the end of its patience, or its time to look.
    Answer(usize),
    Sent(usize),
    Ended(usize),
    Left(usize),
    Timer(usize),
    /// A request reaches its member.
    Reach(usize),
    /// A member has done its next request, if its version is still this.
    Work(usize, u64),
    /// A control thread's look is due, or a call of the brain.
    Look(usize),
    Due(usize),
    /// A trouble begins, repeats and ends.
    Begin(usize),
    Again(usize),
    End(usize),
    /// Members join or leave.
    Change,
    /// Balancers restart.
    Restart,
}

/// The position of a request.
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
    /// The time at which its client began to wait for the answer.
    base: f64,
    work: f64,
    /// The times that its body takes, and the part after the head; 0 for none.
    upload: f64,
    stream: f64,
    member: usize,
    vitals: Option<Arc<Vitals>>,
    /// The time since which its answer has been awaited, and how long that took.
    awaited: f64,
    head: f64,
    job: Option<MeteredRequest>,
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

/// The tries of a failed request, and the attempts at members that reject it.
const TRIES: u32 = 3;
const ATTEMPTS: u32 = 4;
const MOST: u32 = 128;

/// The seconds after which a balancer gives up a member's answer.
const TIMEOUT: f64 = 15.0;

/// The seconds for which a load counts as the cause of a rejection.
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
    /// The delay of all answers.
    hiccup: f64,
    tokens: f64,
    /// The arrived work that members as one could not have done by now, if clients give up in time.
    owed: f64,
    owed_at: f64,
    /// The work a second that members can do now, and the last value above 0.
    capacity: f64,
    usual: f64,
    /// The greatest recent times that they need for the backlog, in falling order.
    debts: VecDeque<(f64, f64)>,
    record: Record,
}

/// Runs a history with a strategy. `restart`: the time at which all balancers restart.
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

    /// Returns the present members.
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
        // A restart matters for the seconds after it.
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

    /// Lets a balancer handle its waiting requests, and records its decisions.
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
}
