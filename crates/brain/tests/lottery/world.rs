//! A cluster in virtual time: daemons, their servers, clients, a network that loses, delays, doubles and
//! reorders, clocks that differ, and a membership protocol with delays. Everything follows from the seed.

mod faults;

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::rc::Rc;

use plimsoll_brain::Time;
use plimsoll_brain::lottery::{
    LotteryClient, LotteryClientConfig, LotteryMessage, LotteryNode, MessageTarget, NodeDescription,
    PickStatus, SipHashKey,
};

use super::checks::{Checks, address, client, endpoint, host};
use super::dice::Dice;
use super::server::Server;
use super::setting::{Fault, Outcome, Setting};

pub(crate) const SERVICE: u32 = 80;

/// An event.
enum Event {
    Arrival,
    /// A message reaches its receiver.
    Deliver(SocketAddr, SocketAddr, Rc<LotteryMessage>),
    Daemon(usize),
    Client(usize),
    /// A client's request reaches its member.
    Begin {
        client: usize,
        id: u64,
        member: usize,
    },
    End {
        member: usize,
        life: u64,
    },
    Sample,
    Fault(usize, bool),
    /// The membership protocol notifies the observer that a member is present or not.
    Swim {
        observer: usize,
        life: u64,
        about: NodeDescription,
        up: bool,
    },
    Stall(usize, u64),
    Resume(usize),
    /// A daemon begins anew in this life.
    Anew(usize, u64, u32),
}

struct Timed {
    at: f64,
    turn: u64,
    event: Event,
}

struct Node {
    daemon: Option<LotteryNode>,
    life: u64,
    incarnation: u32,
    server: Server,
    capacity: usize,
    /// Its clock: seconds ahead, and seconds per second.
    ahead: f64,
    rate: f64,
    wake: f64,
    stalled: bool,
    lagging: bool,
    inbox: Vec<(f64, SocketAddr, Rc<LotteryMessage>)>,
}

/// A request until its client has a reachable member.
struct Fate {
    born: f64,
    measured: bool,
}

pub(crate) struct World {
    setting: Setting,
    now: f64,
    turn: u64,
    events: BinaryHeap<Timed>,
    nodes: Vec<Node>,
    clients: Vec<(LotteryClient, f64)>,
    fates: HashMap<u64, Fate>,
    checks: Checks,
    arrivals: Dice,
    works: Dice,
    network: Dice,
    swim: Dice,
    split: Option<usize>,
    /// The time from which only the network has faults.
    calm: f64,
    outcome: Outcome,
}

/// Runs a setting.
pub(crate) fn run(setting: &Setting) -> Outcome {
    World::new(setting.clone()).run()
}

impl World {
    fn new(setting: Setting) -> Self {
        let seed = setting.seed;
        let mut clocks = Dice::new(seed, 1);
        let capacities = [1, 2, 4, 8, 2];
        let node = |who: usize| {
            let capacity = if setting.even { 4 } else { capacities[who % 5] };
            let (ahead, rate) = if setting.skew {
                (clocks.between(0.0, 1000.0), clocks.between(0.9998, 1.0002))
            } else {
                (0.0, 1.0)
            };
            Node {
                daemon: None,
                life: 0,
                incarnation: 1,
                server: Server::new(capacity, 0, 0.0),
                capacity,
                ahead,
                rate,
                wake: f64::INFINITY,
                stalled: false,
                lagging: false,
                inbox: Vec::new(),
            }
        };
        let nodes: Vec<Node> = (0..setting.daemons).map(node).collect();
        let client = |who: usize| {
            let mut dice = Dice::new(seed, 1000 + who as u64);
            let secret = u128::from(dice.bits()) << 64 | u128::from(dice.bits());
            let mut config = LotteryClientConfig::new(SipHashKey::new(secret.to_be_bytes()));
            config.mode = setting.mode;
            config.unicast_attempts = if setting.unicast { 4 } else { config.unicast_attempts };
            let mut client = LotteryClient::new(config);
            client.set_nodes((0..setting.daemons).map(|who| (who as u16 + 1, address(who))));
            (client, f64::INFINITY)
        };
        let clients = (0..setting.clients).map(client).collect();
        let mut world = Self {
            now: 0.0,
            turn: 0,
            events: BinaryHeap::new(),
            clients,
            fates: HashMap::new(),
            checks: Checks::default(),
            arrivals: Dice::new(seed, 2),
            works: Dice::new(seed, 3),
            network: Dice::new(seed, 4),
            swim: Dice::new(seed, 5),
            split: None,
            calm: 0.0,
            outcome: Outcome { shares: vec![0.0; nodes.len()], ..Outcome::default() },
            nodes,
            setting,
        };
        for who in 0..world.nodes.len() {
            world.start(who);
        }
        world.after(1.0, Event::Arrival);
        world.after(0.05, Event::Sample);
        for (index, fault) in world.setting.faults.clone().into_iter().enumerate() {
            let (at, until) = match fault {
                Fault::Crash { at, back, .. } => (at, back),
                Fault::Leave { at, .. } => (at, f64::INFINITY),
                Fault::Lag { at, until, .. }
                | Fault::Stop { at, until, .. }
                | Fault::Partition { at, until, .. }
                | Fault::Drain { at, until, .. }
                | Fault::Slow { at, until, .. } => (at, until),
            };
            world.calm = [world.calm, at + 3.0, until + 3.0]
                .into_iter()
                .filter(|at| at.is_finite())
                .fold(0.0, f64::max);
            world.after(at, Event::Fault(index, true));
            world.after(until, Event::Fault(index, false));
        }
        world
    }

    fn run(mut self) -> Outcome {
        let end = self.setting.warmup + self.setting.measured;
        // The last requests have time to be answered.
        while let Some(Timed { at, event, .. }) = self.events.pop() {
            if at > end + 4.0 {
                break;
            }
            self.now = at;
            self.happen(event);
        }
        self.outcome.unanswered += self.fates.values().filter(|fate| fate.measured).count() as u64;
        let twice = |all: &HashMap<u64, std::collections::HashSet<u16>>| {
            all.values().filter(|members| members.len() > 1).count() as u64
        };
        self.outcome.duplicates = twice(&self.checks.named);
        self.outcome.received_twice = twice(&self.checks.got);
        self.outcome.counted_twice = self.clients.iter().map(|(client, _)| client.answered_twice()).sum();
        // They count no answers to requests that have ended.
        assert!(self.outcome.counted_twice <= self.outcome.received_twice);
        self.outcome.left_over += self.fates.values().filter(|fate| fate.born >= self.calm).count() as u64;
        let (mut heard, mut differ, mut steps, mut alive) = (0, 0, 0.0, 0.0);
        for who in 0..self.nodes.len() {
            let now = self.local(who);
            let Some(daemon) = &self.nodes[who].daemon else { continue };
            let statistics = daemon.statistics(now);
            heard += statistics.members_reporting;
            differ += statistics.members_differ;
            steps += statistics.step.as_secs_f64();
            alive += 1.0;
            self.outcome.doubted += statistics.deferred_by_lag;
            self.outcome.stood_in += statistics.stood_in;
        }
        self.outcome.step = steps / alive;
        self.outcome.differ = differ as f64 / f64::from(heard.max(1) as u32);
        self.outcome
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrival => self.arrive(),
            Event::Deliver(to, from, message) => self.deliver(to, from, message),
            Event::Daemon(who) => {
                if self.now >= self.nodes[who].wake && !self.nodes[who].stalled {
                    self.nodes[who].wake = f64::INFINITY;
                    self.call(who, true, |daemon, now| daemon.handle_timeout(now));
                }
            }
            Event::Client(who) => {
                if self.now >= self.clients[who].1 {
                    self.clients[who].1 = f64::INFINITY;
                    let now = self.global();
                    self.clients[who].0.handle_timeout(now);
                    self.flush_client(who);
                }
            }
            Event::Begin { client, id, member } => self.begin(client, id, member),
            Event::End { member, life } => {
                let node = &mut self.nodes[member];
                if node.server.life == life
                    && let Some(takes) = node.server.end(self.now)
                {
                    self.after(takes, Event::End { member, life });
                }
            }
            Event::Sample => {
                for who in 0..self.nodes.len() {
                    let (load, in_flight) = self.nodes[who].server.sample(self.now);
                    if !self.nodes[who].stalled {
                        self.call(who, false, |daemon, now| daemon.set_load(now, SERVICE, load, in_flight));
                    }
                }
                self.after(0.05, Event::Sample);
            }
            Event::Fault(index, on) => self.fault(index, on),
            Event::Swim { observer, life, about, up } => {
                if self.nodes[observer].life == life {
                    self.call(observer, false, |daemon, _| {
                        if up {
                            daemon.member_up(about);
                        } else {
                            daemon.member_down(about.member, about.incarnation);
                        }
                    });
                }
            }
            Event::Stall(who, life) => {
                if self.nodes[who].lagging && self.nodes[who].life == life {
                    self.nodes[who].stalled = true;
                    self.after(0.3, Event::Resume(who));
                    self.after(1.0, Event::Stall(who, life));
                }
            }
            Event::Resume(who) => self.resume(who),
            Event::Anew(who, life, incarnation) => {
                if self.nodes[who].life == life && self.nodes[who].incarnation == incarnation {
                    self.anew(who);
                }
            }
        }
    }

    /// Begins a client's request.
    fn arrive(&mut self) {
        let cores: usize = self.nodes.iter().map(|node| node.capacity).sum();
        let rate = self.setting.load * cores as f64 / self.setting.work;
        let wait = self.arrivals.exp(1.0 / rate);
        if self.now + wait < self.setting.warmup + self.setting.measured {
            self.after(wait, Event::Arrival);
        }
        let who = self.arrivals.below(self.clients.len());
        let measured = self.now >= self.setting.warmup;
        self.outcome.requests += u64::from(measured);
        self.pick(who, self.now, measured);
    }

    fn pick(&mut self, who: usize, born: f64, measured: bool) {
        let now = self.global();
        match self.clients[who].0.pick(now, SERVICE, &[]) {
            PickStatus::Requested(id) => drop(self.fates.insert(id, Fate { born, measured })),
            other => panic!("{other:?}"),
        }
        self.flush_client(who);
    }

    /// Handles a request at its member, if that is present.
    fn begin(&mut self, client: usize, id: u64, member: usize) {
        let Some(fate) = self.fates.remove(&id) else {
            self.outcome.begun_twice += 1;
            return;
        };
        let measured = fate.measured;
        if self.nodes[member].daemon.is_none() || self.cut((2, client), (1, member)) {
            self.outcome.in_vain += u64::from(measured);
            let now = self.global();
            self.clients[client].0.record_failure(now, member as u16 + 1);
            return self.pick(client, fate.born, measured);
        }
        let wait = self.now - fate.born;
        if measured {
            self.outcome.wait += wait;
            self.outcome.late += u64::from(wait > 0.010);
            self.outcome.shares[member] += 1.0 / self.nodes[member].capacity as f64;
        }
        let second = self.now as usize;
        let seconds = &mut self.outcome.seconds;
        if seconds.len() <= second {
            seconds.resize(second + 1, vec![0; self.nodes.len()]);
        }
        seconds[second][member] += 1;
        let work = self.works.exp(self.setting.work);
        let life = self.nodes[member].server.life;
        if let Some(takes) = self.nodes[member].server.begin(self.now, work) {
            self.after(takes, Event::End { member, life });
        }
    }

    fn deliver(&mut self, to: SocketAddr, from: SocketAddr, message: Rc<LotteryMessage>) {
        let (kind, who) = host(to);
        if kind == 0 {
            if self.nodes[who].stalled {
                self.nodes[who].inbox.push((self.now, from, message));
            } else {
                self.call(who, false, |daemon, now| daemon.handle(now, from, (*message).clone()));
            }
            return;
        }
        if let LotteryMessage::Answer(answer) = &*message
            && answer.status == plimsoll_brain::lottery::AnswerStatus::Ok
        {
            self.checks.got.entry(answer.id).or_default().insert(answer.member);
        }
        let now = self.global();
        self.clients[who].0.handle(now, from, (*message).clone());
        self.flush_client(who);
    }

    /// Calls a daemon, sends its messages, and checks the invariants.
    fn call(&mut self, who: usize, timed: bool, act: impl FnOnce(&mut LotteryNode, Time)) {
        let now = self.local(who);
        let Some(mut daemon) = self.nodes[who].daemon.take() else { return };
        act(&mut daemon, now);
        while let Some((to, message)) = daemon.poll_transmit() {
            self.checks.sent(who, self.nodes[who].life, &daemon, &to, &message);
            self.outcome.reports += u64::from(matches!(message, LotteryMessage::Report(_)));
            self.transmit(address(who), to, message);
        }
        self.checks.rest(&daemon, now, timed);
        let next = daemon.poll_timeout();
        let node = &mut self.nodes[who];
        node.daemon = Some(daemon);
        if let Some(next) = next {
            // A timer fires a little after its time.
            let at = (next.0 as f64 / 1e9 - node.ahead) / node.rate + 2e-6;
            if at < node.wake {
                let at = at.max(self.now);
                node.wake = at;
                self.at(at, Event::Daemon(who));
            }
        }
    }

    fn flush_client(&mut self, who: usize) {
        while let Some((to, message)) = self.clients[who].0.poll_transmit() {
            if let LotteryMessage::Request(request) = &message {
                self.checks.avoided.insert(request.id, request.avoid.clone());
            }
            self.transmit(client(who), to, message);
        }
        while let Some(outcome) = self.clients[who].0.poll_outcome() {
            use plimsoll_brain::lottery::PickOutcome::{Member, NoMember};
            match outcome {
                Member(answer) => {
                    let (_, member) = host(answer.endpoint.expect("a member is somewhere"));
                    assert_eq!(answer.endpoint, Some(endpoint(member)));
                    let wait = self.journey();
                    self.after(wait, Event::Begin { client: who, id: answer.id, member });
                }
                NoMember(id, _) => {
                    if let Some(fate) = self.fates.remove(&id) {
                        self.outcome.unanswered += u64::from(fate.measured);
                        self.outcome.left_over += u64::from(fate.born >= self.calm);
                    }
                }
            }
        }
        if let Some(next) = self.clients[who].0.poll_timeout() {
            let at = (next.0 as f64 / 1e9 + 2e-6).max(self.now);
            if at < self.clients[who].1 {
                self.clients[who].1 = at;
                self.at(at, Event::Client(who));
            }
        }
    }

    fn transmit(&mut self, from: SocketAddr, to: MessageTarget, message: LotteryMessage) {
        let measured =
            self.now >= self.setting.warmup && self.now < self.setting.warmup + self.setting.measured;
        let message = Rc::new(message);
        let receivers: Vec<SocketAddr> = match to {
            MessageTarget::Address(address) | MessageTarget::KeyedClient(address, _) => vec![address],
            MessageTarget::AllNodes => {
                (0..self.nodes.len()).map(address).filter(|address| *address != from).collect()
            }
        };
        let packets = if self.setting.unicast { receivers.len() } else { 1 };
        self.outcome.packets += if measured { packets as u64 } else { 0 };
        for to in receivers {
            if self.network.unit() < self.setting.loss || self.cut(host(from), host(to)) {
                continue;
            }
            let copies = 1 + u32::from(self.setting.twice > 0.0 && self.network.unit() < self.setting.twice);
            for _ in 0..copies {
                self.outcome.received += u64::from(measured);
                let wait = self.journey();
                self.after(wait, Event::Deliver(to, from, message.clone()));
            }
        }
    }

    fn journey(&mut self) -> f64 {
        let more = if self.network.unit() < self.setting.tail { self.network.exp(0.010) } else { 0.0 };
        self.setting.delay + self.network.exp(self.setting.delay) + more
    }

    /// Returns `true` if two hosts are on different sides.
    fn cut(&self, a: (u8, usize), b: (u8, usize)) -> bool {
        let Some(split) = self.split else { return false };
        let side = |(kind, who): (u8, usize)| if kind == 2 { who % 2 == 0 } else { who < split };
        side(a) != side(b)
    }

    fn after(&mut self, wait: f64, event: Event) {
        self.at(self.now + wait, event);
    }

    fn at(&mut self, at: f64, event: Event) {
        self.turn += 1;
        if at.is_finite() {
            self.events.push(Timed { at, turn: self.turn, event });
        }
    }

    fn global(&self) -> Time {
        Time((self.now * 1e9) as u64)
    }

    /// Returns the time by the clock of a daemon.
    fn local(&self, who: usize) -> Time {
        let node = &self.nodes[who];
        Time(((node.ahead + self.now * node.rate) * 1e9) as u64)
    }
}

/// Orders the earliest as the greatest.
impl Ord for Timed {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.turn.cmp(&self.turn))
    }
}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Timed {}
