//! The composition of a history: members, traffic and troubles, all drawn from one seed.

use std::fmt;

use super::dice::Dice;

/// The plan of a history. Times are in seconds of virtual time.
#[derive(Clone, Debug)]
pub(crate) struct Composition {
    pub(crate) seed: u64,
    pub(crate) balancers: usize,
    pub(crate) members: Vec<MemberKind>,
    pub(crate) law: Law,
    /// The mean work of a request, seconds of a worker of speed 1.
    pub(crate) work: f64,
    /// The time that clients wait for the head of an answer.
    pub(crate) patience: f64,
    /// Whether that is configured as the group's objective.
    pub(crate) told: bool,
    /// Whether clients close their connections after that time.
    pub(crate) leave: bool,
    /// Whether members continue the requests of clients that have gone.
    pub(crate) deaf: bool,
    /// Whether members share their processors among all requests, instead of one request per worker.
    pub(crate) sharing: bool,
    /// The one-way delay between balancers and members.
    pub(crate) network: f64,
    /// The time that an event loop of a balancer spends on an event.
    pub(crate) handling: f64,
    /// The shares of streams and of requests with long bodies, and the mean length of both.
    pub(crate) streams: f64,
    pub(crate) uploads: f64,
    pub(crate) lasting: f64,
    pub(crate) phases: Vec<Phase>,
    pub(crate) troubles: Vec<Trouble>,
}

/// A member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberKind {
    pub(crate) workers: usize,
    pub(crate) speed: f64,
    /// Whether it sends load reports.
    pub(crate) speaks: bool,
    /// The times at which it joins and leaves.
    pub(crate) joins: f64,
    pub(crate) leaves: f64,
}

/// The distribution of the work of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Law {
    Constant,
    Exponential,
    Lognormal,
    HeavyTail,
}

/// A part of a history with one kind of traffic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phase {
    pub(crate) begin: f64,
    pub(crate) end: f64,
    pub(crate) traffic: Traffic,
}

/// The behaviour of clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Traffic {
    Idle,
    /// Random requests a second.
    Steady(f64),
    /// Random requests a second, and periodic bursts of `size`.
    Bursts {
        rate: f64,
        size: usize,
        every: f64,
    },
    /// Clients that ask again a while after each answer.
    Closed {
        clients: usize,
        think: f64,
    },
}

/// A trouble for a limited time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trouble {
    pub(crate) begin: f64,
    pub(crate) end: f64,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum What {
    /// A member answers nothing.
    Hang(usize),
    /// A member has a tenth of its speed.
    Crawl(usize),
    /// A member fails its requests at once.
    Fail(usize),
    /// A member refuses connections.
    Die(usize),
    /// A member has this multiple of its speed.
    Speed(usize, f64),
    /// A member stops for `pause` every `every` seconds.
    Collect { member: usize, pause: f64, every: f64 },
    /// All answers are delayed by this.
    Hiccup(f64),
    /// The event loop of a balancer is busy with other work for `pause` every `every` seconds.
    Lag { balancer: usize, pause: f64, every: f64 },
    /// The process of a balancer stops.
    Stop(usize),
}

impl What {
    /// Returns the faulty member.
    pub(crate) fn faulty(&self) -> Option<usize> {
        match self {
            Self::Hang(member) | Self::Crawl(member) | Self::Fail(member) | Self::Die(member) => {
                Some(*member)
            }
            _ => None,
        }
    }
}

impl MemberKind {
    pub(crate) fn capacity(&self) -> f64 {
        self.workers as f64 * self.speed
    }

    pub(crate) fn stays(&self) -> bool {
        self.joins == 0.0 && self.leaves == f64::INFINITY
    }
}

/// The approximate number of requests of a history's open loops.
const REQUESTS: f64 = 12_000.0;

/// The maximum number of requests of a surge or of a closed loop.
const CROWD: f64 = 5_000.0;

impl Composition {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 1);
        let dice = &mut dice;
        let work = logarithmic(dice, 20e-6, 1.0);
        let load = dice.between(0.1, 0.85);
        let members = members(dice, work, load);
        let chance = dice.unit();
        let balancers = match chance {
            0.0..0.55 => 1,
            0.55..0.85 => 2 + dice.below(2),
            0.85..0.97 => 4 + dice.below(12),
            _ => 16 + dice.below(85),
        };
        let law = [Law::Constant, Law::Exponential, Law::Lognormal, Law::HeavyTail][dice.below(4)];
        let usual = f64::max(1.0, 8.0 * work);
        let told = dice.unit() < 0.2;
        let patience = if told { f64::max(0.2, 10.0 * work) * dice.between(1.0, 3.0) } else { usual };
        let mut history = Self {
            seed,
            balancers,
            members,
            law,
            work,
            patience,
            told,
            leave: dice.unit() < 0.7,
            deaf: dice.unit() < 0.5,
            sharing: dice.unit() < 0.4,
            network: logarithmic(dice, 20e-6, 2e-3),
            handling: logarithmic(dice, 2e-6, 50e-6),
            streams: if dice.unit() < 0.3 { logarithmic(dice, 0.002, 0.2) } else { 0.0 },
            uploads: if dice.unit() < 0.3 { logarithmic(dice, 0.002, 0.2) } else { 0.0 },
            lasting: logarithmic(dice, 0.5, 60.0),
            phases: Vec::new(),
            troubles: Vec::new(),
        };
        let end = history.draw_phases(dice, load);
        history.draw_troubles(dice, end);
        history
    }

    /// Returns the requests a second that all members can answer.
    pub(crate) fn capacity(&self) -> f64 {
        self.members.iter().filter(|member| member.stays()).map(MemberKind::capacity).sum::<f64>() / self.work
    }

    pub(crate) fn end(&self) -> f64 {
        self.phases.last().map_or(0.0, |phase| phase.end)
    }

    /// Draws the traffic; returns its end.
    fn draw_phases(&mut self, dice: &mut Dice, load: f64) -> f64 {
        let capacity = self.capacity();
        let lasts = dice.between(20.0, 90.0);
        let rate = (load * capacity).min(REQUESTS / lasts);
        let calm = dice.unit() < 0.25;
        let (mut at, mut busy) = (0.0, 0.0);
        let mut add = |length: f64, traffic: Traffic| {
            self.phases.push(Phase { begin: at, end: at + length, traffic });
            at += length;
            if traffic != Traffic::Idle {
                busy += length;
            }
            busy
        };
        let mut done =
            if dice.unit() < 0.7 { add(dice.between(5.0, 15.0), Traffic::Steady(rate)) } else { 0.0 };
        while done < lasts - 8.0 {
            let length = dice.between(3.0, 15.0);
            done = match dice.unit() {
                _ if calm => add(length, Traffic::Steady(rate)),
                0.0..0.3 => add(length, Traffic::Steady(rate * dice.between(0.3, 1.0))),
                0.3..0.5 => {
                    add(logarithmic(dice, 1.0, 600.0), Traffic::Idle);
                    add(length, Traffic::Steady(rate))
                }
                0.5..0.65 => {
                    let size =
                        (capacity * self.patience * dice.between(0.05, 0.4)).clamp(3.0, 300.0) as usize;
                    let every = f64::max(dice.between(0.5, 5.0), 2.0 * size as f64 / capacity);
                    add(length, Traffic::Bursts { rate: 0.4 * rate, size, every })
                }
                0.65..0.8 if capacity < 1_500.0 => {
                    let over = dice.between(1.0, 2.0) * capacity;
                    add(length.min(10.0).min(CROWD / over), Traffic::Steady(over))
                }
                0.65..0.8 => add(length, Traffic::Steady(rate)),
                _ => {
                    let clients = (capacity * self.patience * dice.between(0.02, 0.4)).clamp(1.0, 400.0);
                    let answers =
                        capacity.min(self.balancers as f64 / (3.0 * self.handling)).min(clients / 1e-3);
                    let traffic =
                        Traffic::Closed { clients: clients as usize, think: logarithmic(dice, 1e-4, 0.1) };
                    add(length.min(CROWD / answers), traffic)
                }
            };
        }
        add(8.0, Traffic::Steady(rate));
        at
    }

    fn draw_troubles(&mut self, dice: &mut Dice, end: f64) {
        let span = |dice: &mut Dice, least: f64, most: f64| {
            let begin = dice.between(1.0, f64::max(end - 12.0, 2.0));
            (begin, f64::min(begin + dice.between(least, most), end - 6.0))
        };
        let staying: Vec<usize> = (0..self.members.len()).filter(|at| self.members[*at].stays()).collect();
        // The rest without the member carries the load in most cases: otherwise the fault is an overload as
        // well.
        let steady = self.phases.iter().filter_map(|phase| match phase.traffic {
            Traffic::Steady(rate) => Some(rate),
            _ => None,
        });
        let usual = steady.fold(f64::INFINITY, f64::min);
        let spare = |member: usize| {
            let left = self.capacity() - self.members[member].capacity() / self.work;
            usual < 0.8 * left
        };
        let mut troubles = Vec::new();
        let mut add = |(begin, end): (f64, f64), what: What| {
            if end > begin {
                troubles.push(Trouble { begin, end, what });
            }
        };
        if dice.unit() < 0.35 {
            let member = staying[dice.below(staying.len())];
            let what = [What::Hang(member), What::Crawl(member), What::Fail(member), What::Die(member)];
            let what = what[dice.below(4)];
            let span = span(dice, 2.0, 15.0);
            if staying.len() > 1 && spare(member) {
                add(span, what);
            }
        }
        if dice.unit() < 0.2 {
            add(
                span(dice, 5.0, 30.0),
                What::Speed(staying[dice.below(staying.len())], dice.between(0.6, 1.5)),
            );
        }
        if dice.unit() < 0.25 {
            let (member, pause) = (dice.below(self.members.len()), logarithmic(dice, 5e-3, 0.15));
            add(span(dice, 5.0, 30.0), What::Collect { member, pause, every: dice.between(0.5, 5.0) });
        }
        if dice.unit() < 0.2 {
            add(span(dice, 0.5, 4.0), What::Hiccup(dice.between(0.01, 0.06)));
        }
        if dice.unit() < 0.2 {
            let (balancer, pause) = (dice.below(self.balancers), logarithmic(dice, 5e-3, 0.15));
            add(span(dice, 1.0, 20.0), What::Lag { balancer, pause, every: pause * dice.between(1.5, 6.0) });
        }
        if dice.unit() < 0.15 {
            let balancer = dice.below(self.balancers);
            (0..3).for_each(|_| add(span(dice, 0.05, 0.25), What::Stop(balancer)));
        }
        troubles.sort_by(|a, b| a.begin.total_cmp(&b.begin));
        self.troubles = troubles;
    }
}

/// Returns members that have this `load` at a rate that a simulation can afford, with requests of this
/// `work`.
fn members(dice: &mut Dice, work: f64, load: f64) -> Vec<MemberKind> {
    let rate = logarithmic(dice, 40.0, 400.0);
    let total = rate * work / load;
    let count = match dice.unit() {
        0.0..0.08 => 1,
        0.08..0.75 => 2 + dice.below(5),
        0.75..0.95 => 7 + dice.below(10),
        _ => 17 + dice.below(25),
    };
    let count = count.min((2.0 * total) as usize).max(2.min(count));
    let alike = dice.unit() < 0.4;
    let speaking = [0.0, 0.0, 1.0, 0.5][dice.below(4)];
    let mut members: Vec<MemberKind> = (0..count)
        .map(|_| {
            let part = total / count as f64 * if alike { 1.0 } else { logarithmic(dice, 0.4, 2.5) };
            let workers = part.round().clamp(1.0, 1000.0);
            let speed = if alike { 1.0 } else { dice.between(0.6, 1.6) };
            let speaks = dice.unit() < speaking;
            MemberKind { workers: workers as usize, speed, speaks, joins: 0.0, leaves: f64::INFINITY }
        })
        .collect();
    if dice.unit() < 0.2 {
        for _ in 0..1 + dice.below(3) {
            let joins = if dice.unit() < 0.7 { dice.between(1.0, 30.0) } else { 0.0 };
            let leaves = if dice.unit() < 0.7 { joins + dice.between(3.0, 30.0) } else { f64::INFINITY };
            members.push(MemberKind { joins, leaves, ..members[0] });
        }
    }
    members
}

fn logarithmic(dice: &mut Dice, least: f64, most: f64) -> f64 {
    least * (most / least).powf(dice.unit())
}

impl Law {
    /// Returns the work of a request as a multiple of the mean.
    pub(crate) fn draw(self, dice: &mut Dice) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Exponential => dice.exp(1.0),
            Self::Lognormal => dice.lognormal(1.0, 1.2),
            Self::HeavyTail => dice.pareto(0.3) / 0.01,
        }
    }
}

impl fmt::Display for Composition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, balancers, law, work, patience, network, handling, streams, uploads, .. } = self;
        write!(
            f,
            "seed {seed}: {balancers} balancers, {law:?} work {:.3} ms, patience {patience:.2} s",
            work * 1e3
        )?;
        let flags =
            [(self.told, "told"), (self.leave, "leave"), (self.deaf, "deaf"), (self.sharing, "sharing")];
        flags.iter().filter(|(on, _)| *on).try_for_each(|(_, name)| write!(f, " {name}"))?;
        write!(f, ", network {:.2} ms, handling {:.0} us", network * 1e3, handling * 1e6)?;
        write!(f, ", streams {streams:.3}, uploads {uploads:.3} of {:.1} s; members", self.lasting)?;
        for (index, member) in self.members.iter().enumerate().take(12) {
            let speaks = if member.speaks { "r" } else { "" };
            write!(f, " {index}:{}x{:.2}{speaks}", member.workers, member.speed)?;
            if !member.stays() {
                write!(f, "[{:.0}..{:.0}]", member.joins, member.leaves)?;
            }
        }
        write!(f, " of {}, {:.0}/s; traffic", self.members.len(), self.capacity())?;
        for phase in &self.phases {
            write!(f, " {:.1}", phase.begin)?;
            match phase.traffic {
                Traffic::Idle => write!(f, ":idle")?,
                Traffic::Steady(rate) => write!(f, ":{rate:.0}/s")?,
                Traffic::Bursts { rate, size, every } => write!(f, ":{rate:.0}/s+{size}/{every:.1}s")?,
                Traffic::Closed { clients, think } => write!(f, ":{clients}clients/{:.1}ms", think * 1e3)?,
            }
        }
        write!(f, " ..{:.0}; troubles", self.end())?;
        self.troubles
            .iter()
            .try_for_each(|trouble| write!(f, " {:.1}..{:.1}:{:?}", trouble.begin, trouble.end, trouble.what))
    }
}
