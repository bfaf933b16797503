//! Two groups whose members are on the same hosts, in virtual time: members that each promise all of the
//! host's processors, against members that promise what the host has left.
//!
//! Ten hosts of 4 processors, which all requests at a host share; both groups have a member on each, and five
//! balancers of their own. Requests of one group need 10 ms of a processor on average, those of the other 20
//! ms, so that both are half of the work. The load is steady, or comes in turns: for three seconds one group
//! has three quarters of it, then the other. Everything follows from the seed.

#![expect(clippy::print_stdout, reason = "the tables of the long form")]

#[expect(dead_code, unused_imports, reason = "other tests use the rest of it")]
mod farm;
mod parallel;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use farm::dice::Dice;
use farm::ours::Ours;
use farm::{Answer, Fleet, Policy};
use parallel::each;
use plimsoll_brain::meter::{HostedRequest, Meter, MeteredRequest, Reading, SharedHostMeter};
use plimsoll_brain::{Time, Urgency};

const HOSTS: usize = 10;
const PROCESSORS: f64 = 4.0;
const BALANCERS: usize = 5;
/// The mean work of a request of each group, seconds.
const WORK: [f64; 2] = [0.010, 0.020];
const NETWORK: f64 = 0.000_25;
const WARMUP: f64 = 10.0;
const END: f64 = 25.0;
/// The time for which one group has most of the load.
const TURN: f64 = 3.0;
/// The tries of one request.
const TRIES: u32 = 4;

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
struct Setting {
    /// The demand as a share of the hosts' capacity.
    load: f64,
    /// The share of it of the group whose turn it is: a half without turns.
    turns: f64,
    /// Whether members count the work of the others on the host.
    together: bool,
    seed: u64,
}

/// A request's job in the meters.
enum Place {
    Apart(MeteredRequest),
    Together(HostedRequest),
}

struct Request {
    group: usize,
    who: usize,
    host: usize,
    came: f64,
    sent: f64,
    work: f64,
    place: Option<Place>,
    reading: Option<Reading>,
    refused: bool,
    waits: bool,
    tries: u32,
    full: Option<f64>,
}

/// A host: its requests run at once, at equal shares of the processors.
struct Machine {
    jobs: usize,
    /// The service of a request that has been there from the start, and the time of that.
    attained: f64,
    at: f64,
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    version: u64,
    own: [Meter; 2],
    host: SharedHostMeter,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival(usize),
    Reach(usize),
    Work(usize, u64),
    Back(usize),
    Patience(usize),
    Tick,
}

/// The results, all after the warm-up.
#[derive(Debug, Default)]
struct Outcome {
    /// The latencies of both groups, sorted, in multiples of their mean work.
    latencies: Vec<f64>,
    requests: u64,
    served: u64,
    shed: u64,
    /// The mean of the requests at a host, and the share of the time with more than one and a half times as
    /// many as it has processors.
    in_flight: f64,
    crowded: f64,
    /// The joint knee of the two members of a host by their own meters, mean over time, and the host's.
    believed: f64,
    knee: f64,
    samples: f64,
}

impl Outcome {
    fn quantile(&self, q: f64) -> f64 {
        self.latencies[(q * (self.latencies.len() - 1) as f64) as usize]
    }
}

struct Run {
    setting: Setting,
    machines: Vec<Machine>,
    requests: Vec<Request>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    arrivals: [Dice; 2],
    works: Dice,
    policies: [Ours; 2],
    /// The policies do not look at it.
    fleet: Fleet,
    outcome: Outcome,
}

fn run(setting: Setting) -> Outcome {
    let machine = |_| Machine {
        jobs: 0,
        attained: 0.0,
        at: 0.0,
        ends: BinaryHeap::new(),
        version: 0,
        own: [Meter::new(Time(0)), Meter::new(Time(0))],
        host: SharedHostMeter::new(Time(0)),
    };
    let policy = |group: u64| Ours::new("adaptive", BALANCERS, HOSTS, setting.seed + group);
    let mut run = Run {
        setting,
        machines: (0..HOSTS).map(machine).collect(),
        requests: Vec::new(),
        events: BinaryHeap::new(),
        sequence: 0,
        arrivals: [1, 2].map(|stream| Dice::new(setting.seed, stream)),
        works: Dice::new(setting.seed, 3),
        policies: [0, 1].map(policy),
        fleet: Fleet { servers: Vec::new(), network: NETWORK },
        outcome: Outcome::default(),
    };
    run.go();
    let mut outcome = run.outcome;
    outcome.latencies.sort_by(f64::total_cmp);
    for sum in [&mut outcome.in_flight, &mut outcome.crowded, &mut outcome.believed, &mut outcome.knee] {
        *sum /= outcome.samples;
    }
    outcome
}

impl Run {
    fn at(&mut self, when: f64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse(((when * 1e9) as u64, self.sequence, event)));
    }

    fn go(&mut self) {
        (0..2).for_each(|group| self.at(0.0, Event::Arrival(group)));
        self.at(0.0, Event::Tick);
        while let Some(Reverse((nanos, _, event))) = self.events.pop() {
            let now = nanos as f64 / 1e9;
            if now > END + 2.0 {
                break;
            }
            match event {
                Event::Arrival(_) if now >= END => {}
                Event::Arrival(group) => self.arrive(group, now),
                Event::Reach(request) => self.reach(request, now),
                Event::Work(host, version) if self.machines[host].version == version => self.work(host, now),
                Event::Work(..) => {}
                Event::Back(request) => self.back(request, now),
                Event::Patience(request) => self.give_in(request, now),
                Event::Tick => self.tick(now),
            }
        }
    }

    /// Looks at the hosts every 10 ms, and lets the balancers look at their members every 100 ms.
    fn tick(&mut self, now: f64) {
        if ((now * 100.0).round() as u64).is_multiple_of(10) {
            self.policies.iter_mut().for_each(|policy| policy.tick(now, &self.fleet));
        }
        if (WARMUP..END).contains(&now) {
            for machine in &self.machines {
                let outcome = &mut self.outcome;
                outcome.samples += 1.0;
                outcome.in_flight += machine.jobs as f64;
                outcome.crowded += f64::from(u8::from(machine.jobs as f64 > 1.5 * PROCESSORS));
                outcome.believed += machine.own.iter().map(|own| f64::from(own.reading().knee)).sum::<f64>();
                outcome.knee += f64::from(machine.host.reading().knee);
            }
        }
        if now < END {
            self.at(now + 0.01, Event::Tick);
        }
    }

    fn arrive(&mut self, group: usize, now: f64) {
        // The first half of the warm-up is at three quarters, so that members learn before the measurement.
        let load = if now < WARMUP / 2.0 { 0.75 } else { self.setting.load };
        let its_turn = (now / TURN) as usize % 2 == group;
        let share = if its_turn { self.setting.turns } else { 1.0 - self.setting.turns };
        let rate = load * share * HOSTS as f64 * PROCESSORS / WORK[group];
        let next = now + self.arrivals[group].exp(1.0 / rate);
        self.at(next, Event::Arrival(group));
        let work = self.works.lognormal(WORK[group], 1.2).min(30.0 * WORK[group]);
        let who = self.arrivals[group].below(BALANCERS);
        self.outcome.requests += u64::from(now >= WARMUP);
        self.requests.push(Request {
            group,
            who,
            host: 0,
            came: now,
            sent: now,
            work,
            place: None,
            reading: None,
            refused: false,
            waits: false,
            tries: 0,
            full: None,
        });
        self.seek(self.requests.len() - 1, None, now);
    }

    /// Looks for a member for a request, which waits for one if it may.
    fn seek(&mut self, index: usize, failed: Option<usize>, now: f64) {
        let request = &mut self.requests[index];
        let (group, who) = (request.group, request.who);
        let policy = &mut self.policies[group];
        let host = if request.tries < TRIES { policy.choose(who, now, &self.fleet, failed) } else { None };
        if host.is_none() {
            let since = *request.full.get_or_insert(now);
            if let Some(until) = policy.wait(who, now, since, index, Urgency::default()) {
                request.waits = true;
                self.at(until + 1e-9, Event::Patience(index));
                self.settle(group, who, now);
                return;
            }
        }
        self.send(index, host, now);
        self.settle(group, who, now);
    }

    fn settle(&mut self, group: usize, who: usize, now: f64) {
        for (index, host) in self.policies[group].turns(who, now, &self.fleet) {
            self.send(index, host, now);
        }
    }

    fn give_in(&mut self, index: usize, now: f64) {
        let Request { group, who, waits, .. } = self.requests[index];
        if waits && let Some(host) = self.policies[group].late(who, now, index) {
            self.send(index, host, now);
            self.settle(group, who, now);
        }
    }

    /// Sends a request to a host, or rejects it.
    fn send(&mut self, index: usize, host: Option<usize>, now: f64) {
        let request = &mut self.requests[index];
        request.waits = false;
        let Some(host) = host else {
            self.outcome.shed += u64::from(request.came >= WARMUP);
            return;
        };
        (request.host, request.sent, request.refused) = (host, now, false);
        request.tries += 1;
        self.at(now + NETWORK, Event::Reach(index));
    }

    fn reach(&mut self, index: usize, now: f64) {
        let request = &mut self.requests[index];
        let machine = &mut self.machines[request.host];
        machine.advance(now);
        let own = &mut machine.own[request.group];
        let full = if self.setting.together { machine.host.is_full(own) } else { own.is_full() };
        if full {
            request.reading = Some(own.reading());
            request.refused = true;
            self.at(now + NETWORK, Event::Back(index));
            return;
        }
        request.place = Some(match self.setting.together {
            true => Place::Together(machine.host.begin(own, time(now))),
            false => Place::Apart(own.begin(time(now))),
        });
        machine.jobs += 1;
        machine.ends.push(Reverse((((machine.attained + request.work) * 1e9) as u64, index)));
        let host = request.host;
        self.schedule(host, now);
    }

    /// Schedules the next end of a request at a host.
    fn schedule(&mut self, host: usize, now: f64) {
        let machine = &mut self.machines[host];
        machine.version += 1;
        let Some(Reverse((end, _))) = machine.ends.peek() else { return };
        let left = (*end as f64 / 1e9 - machine.attained).max(0.0);
        let (when, version) = (now + left / machine.rate(), machine.version);
        self.at(when + 1e-9, Event::Work(host, version));
    }

    fn work(&mut self, host: usize, now: f64) {
        let machine = &mut self.machines[host];
        machine.advance(now);
        if let Some(Reverse((_, index))) = machine.ends.pop() {
            machine.jobs -= 1;
            let request = &mut self.requests[index];
            let own = &mut machine.own[request.group];
            request.reading = request.place.take().map(|place| match place {
                Place::Apart(job) => own.end(job, true, time(now)),
                Place::Together(jobs) => machine.host.end(own, jobs, true, time(now)),
            });
            self.at(now + NETWORK, Event::Back(index));
        }
        self.schedule(host, now);
    }

    fn back(&mut self, index: usize, now: f64) {
        let request = &self.requests[index];
        let Request { group, who, host, refused, reading, .. } = *request;
        let answer = Answer {
            member: host,
            latency: now - request.sent,
            left: false,
            failed: false,
            refused,
            reading,
        };
        self.policies[group].ended(who, now, &answer);
        if refused {
            self.seek(index, Some(host), now);
            return;
        }
        if request.came >= WARMUP && now < END {
            self.outcome.served += 1;
            self.outcome.latencies.push((now - request.came) / WORK[group]);
        }
        self.settle(group, who, now);
    }
}

impl Machine {
    fn rate(&self) -> f64 {
        (PROCESSORS / self.jobs as f64).min(1.0)
    }

    fn advance(&mut self, now: f64) {
        if self.jobs > 0 {
            self.attained += self.rate() * (now - self.at);
        }
        self.at = now;
    }
}

fn time(seconds: f64) -> Time {
    Time((seconds * 1e9) as u64)
}

/// The means over seeds at one load, with separate members and with a common meter for each host.
#[derive(Debug, Default)]
struct Row {
    p50: f64,
    p99: f64,
    /// The share of the requests that was served.
    served: f64,
    in_flight: f64,
    crowded: f64,
    believed: f64,
    knee: f64,
}

fn measure(load: f64, turns: f64, together: bool, seeds: u64) -> Row {
    let mut row = Row::default();
    for one in each(1..seeds + 1, |seed| run(Setting { load, turns, together, seed })) {
        let served = one.served as f64 / one.requests as f64;
        assert!(one.served + one.shed <= one.requests, "{one:?}");
        let sums = [
            (&mut row.p50, one.quantile(0.5)),
            (&mut row.p99, one.quantile(0.99)),
            (&mut row.served, served),
            (&mut row.in_flight, one.in_flight),
            (&mut row.crowded, one.crowded),
            (&mut row.believed, one.believed),
            (&mut row.knee, one.knee),
        ];
        sums.into_iter().for_each(|(sum, value)| *sum += value / seeds as f64);
    }
    println!("{load:4} {turns:4} {}: {row:.3?}", if together { "together" } else { "apart   " });
    row
}

fn both(load: f64, turns: f64, seeds: u64) -> [Row; 2] {
    [false, true].map(|together| measure(load, turns, together, seeds))
}

#[test]
fn members_of_a_host_believe_in_more_than_it_has_and_the_host_does_not() {
    let [apart, together] = both(0.9, 0.75, 1);
    assert!(
        apart.believed > 1.3 * PROCESSORS,
        "each is as large as what its neighbour leaves it at times: {apart:?}"
    );
    assert!((together.knee / PROCESSORS - 1.0).abs() < 0.1, "{together:?}");
    // Below the hosts' capacity there is little to gain, and nothing is lost.
    assert!(together.p99 <= 1.05 * apart.p99, "{together:?} {apart:?}");
    assert!(together.served > 0.995, "{together:?}");
}

#[test]
fn in_overload_a_host_has_less_than_the_limits_of_its_members_add_up_to() {
    let [apart, together] = both(1.3, 0.75, 3);
    // Each group fills the host up to the limit of its own member.
    assert!(apart.in_flight > 3.0 * PROCESSORS, "{apart:?}");
    // A host rejects at the knee and three times its square root.
    assert!(together.in_flight <= PROCESSORS + 3.0 * PROCESSORS.sqrt(), "{together:?}");
    assert!(together.p99 <= 0.85 * apart.p99, "{together:?} {apart:?}");
    assert!(together.served * 1.3 >= 0.93, "of what the hosts can do: {together:?}");
}

#[test]
fn where_a_little_too_much_is_asked_for_nobody_waits_for_long() {
    let [apart, together] = both(1.05, 0.5, 3);
    assert!(together.p99 <= 1.05 * apart.p99, "{together:?} {apart:?}");
    assert!(together.p50 <= 4.0, "half of them, in multiples of their work: {together:?}");
    assert!(together.served * 1.05 >= 0.97, "of what the hosts can do: {together:?}");
}

#[test]
#[ignore = "long: make bench-sim"]
fn long_form() {
    println!("load, share of the group whose turn it is: in multiples of a request's work");
    for (load, turns) in [(0.5, 0.5), (0.75, 0.5), (0.75, 0.75), (0.9, 0.5), (0.9, 0.75), (1.05, 0.5)] {
        let [apart, together] = both(load, turns, 5);
        assert!(together.p99 <= 1.05 * apart.p99, "{together:?} {apart:?}");
    }
    for turns in [0.5, 0.75, 0.9] {
        let [apart, together] = both(1.3, turns, 5);
        assert!(together.p99 <= 0.9 * apart.p99, "{together:?} {apart:?}");
        assert!(together.served * 1.3 >= 0.93, "{together:?}");
    }
}
