//! How many members a group is to have, and which of them are to go.
//!
//! A value driven from outside, about once a second: [`Scaler::observe`] is told what the group does and gives back what is to be
//! done now, what it wants in the end, and why. It starts and stops nothing; who does so is a `Crew` ([`crew`]).
//!
//! Everything is reckoned in *capacity*, of which a member has as much as is configured (1 if nothing is), so that unequal members
//! count as what they are. Each look goes through four steps:
//!
//! 1. **Demand** (`demand`): how much capacity is fully in use, by the load line, by what agents tell of processors, or by what
//!    response times say. What comes counts, not what is served: a group that is full would otherwise look as if it had just enough.
//! 2. **Forecast** (`forecast`): Holt's level and trend of the demand, as far ahead as a member takes to start, with the upper end of
//!    the band in which that forecast errs.
//! 3. **Want**: the greater of the demand now and ahead, over the part of the capacity that the target lets be in use.
//! 4. **Bounds**: `min` and `max`, steps, cool-downs. A member is taken away only if what is left would have been enough at every
//!    look of the last `stabilize`, by what was wanted then.
//!
//! A member that was started and does not serve yet counts as what it will be: it is not started twice. One that is there and cannot
//! be used counts as nothing, and is replaced. Where nothing can be used, or nothing is known, the group keeps what it has; unless
//! requests are refused for want of room, or wait for it at two looks in a row. That needs no model to be understood: one member more is
//! started, and the next one when that serves.
//!
//! `tests/scale` runs it for a simulated day.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::Time;
use demand::Demand;
use forecast::Forecast;

pub mod crew;
mod demand;
mod forecast;
mod pick;
mod reason;
mod say;

pub use reason::Reason;

/// What a group's members are to be like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// This part of their capacity is in use; above 0, below 1.
    Utilization(f64),
    /// 95 of 100 requests take at most so many seconds; above 0.
    ResponseTime(f64),
    /// This part of what they can carry is free; above 0, below 1.
    HeadRoom(f64),
}

/// What a scaler goes by.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Fewest members, those that it cannot take away included.
    pub min: u32,
    /// Most members; at least `min`.
    pub max: u32,
    /// What it aims at.
    pub target: Target,
    /// Capacity of a member that it starts; above 0.
    pub unit: f64,
    /// After members were started, before more are.
    pub cool_up: Duration,
    /// After members were started or taken away, before one is taken away.
    pub cool_down: Duration,
    /// Most members that are started at once; at least 1.
    pub step_up: u32,
    /// Most members that are taken away at once; at least 1.
    pub step_down: u32,
    /// What was wanted at any look so long ago is not given up.
    pub stabilize: Duration,
    /// How long a member takes to start, until that was seen.
    pub start_time: Duration,
}

/// What is known of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It can be chosen.
    Usable,
    /// It was started, and has not served yet.
    Coming,
    /// It is there, and cannot be chosen: down, ejected, taken out by an operator.
    Lost,
    /// It is on its way out.
    Leaving,
}

/// A member as a look finds it.
#[derive(Clone, Copy, Debug)]
pub struct MemberSeen<'a> {
    /// As configured.
    pub name: &'a str,
    /// Relative to the others; above 0.
    pub capacity: f64,
    /// What is known of it.
    pub standing: Standing,
    /// Can the scaler take it away?
    pub ours: bool,
    /// What it works on now.
    pub in_flight: u32,
    /// Part of its processors in use, those of its whole host, if an agent tells it.
    pub utilization: Option<f64>,
    /// Requests a second that it can do for all balancers that act together, by the load line, if that knows.
    /// Ignored unless [`Seen::proven`].
    pub line: Option<f64>,
    /// The group's part of what its host can do, above 0 and at most 1: 1 where no other group is there.
    pub share: f64,
}

impl MemberSeen<'_> {
    /// What it can do for this group: the capacity of a host counts once, however many groups are there.
    fn worth(&self) -> f64 {
        self.capacity * self.share
    }

    fn is(&self, standing: Standing) -> bool {
        self.standing == standing
    }
}

/// What a look at a group finds.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// All of its members.
    pub members: &'a [MemberSeen<'a>],
    /// `true` if the load line of the group is a number. While it is a range, known members say nothing of
    /// the others.
    pub proven: bool,
    /// Requests a second that came since the last look, whatever became of them; to all balancers that act together.
    pub rate: f64,
    /// Of those, what came to others than this one.
    pub elsewhere: f64,
    /// Requests that wait for a member.
    pub waiting: f64,
    /// Requests a second that were refused since the last look because there was no room.
    pub refused: f64,
    /// 95th percentile of how long requests took that ended since the last look, seconds; none if too few did.
    pub response: Option<f64>,
}

/// What is to be done, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Members that the target asks for, within `min` and `max`.
    pub desired: u32,
    /// Members that are there or coming.
    pub have: u32,
    /// Members to be started now.
    pub add: u32,
    /// Members to be taken away now, by name; to be drained first.
    pub remove: Vec<String>,
    /// Is it other than what was wanted at the look before?
    pub news: bool,
    /// One word for a counter.
    pub reason: Reason,
    /// One sentence for a person.
    pub why: String,
    /// The numbers that it was made on, by name; all finite.
    pub inputs: Vec<(String, f64)>,
}

/// There is too little room, and what comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pressed {
    /// One more is started.
    More,
    /// One is coming already.
    Coming,
    /// There may be no more.
    Most,
}

/// What decides for one group.
#[derive(Clone, Debug)]
pub struct Scaler {
    rules: Rules,
    demand: Demand,
    forecast: Forecast,
    /// How long members took to start, averaged; seconds.
    start: f64,
    /// When it looked first.
    since: Option<Time>,
    /// When members were last started, and last taken away.
    up: Option<Time>,
    down: Option<Time>,
    /// What was wanted, and when: of looks of the last `stabilize`, those that no later one exceeds.
    wanted: VecDeque<(Time, f64)>,
    /// What was desired last.
    desired: Option<u32>,
    /// Did requests wait at the look before?
    waited: bool,
    paused: bool,
}

impl Scaler {
    /// One that has seen nothing.
    pub fn new(rules: Rules) -> Self {
        let start = rules.start_time.as_secs_f64();
        Self {
            demand: Demand::default(),
            forecast: Forecast::new(start),
            start,
            rules,
            since: None,
            up: None,
            down: None,
            wanted: VecDeque::new(),
            desired: None,
            waited: false,
            paused: false,
        }
    }

    /// Takes other rules; what was learnt stays.
    pub fn rule(&mut self, rules: Rules) {
        if rules.target != self.rules.target {
            self.wanted.clear();
        }
        self.rules = rules;
    }

    /// What it goes by.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// While it is paused nothing is started or taken away, but for what is missing below `min`.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Is it paused?
    pub fn paused(&self) -> bool {
        self.paused
    }

    /// A member took so long from being started until it could be used.
    pub fn started(&mut self, took: Duration) {
        let took = took.as_secs_f64().min(LONGEST_START);
        self.start += (took - self.start) * NEW_START;
        self.forecast.reach(self.start);
    }

    /// How long members take to start, as far as that is known; seconds.
    pub fn start_seconds(&self) -> f64 {
        self.start
    }

    /// Looks, and decides. `dry`: what is to be done is not done, so no cool-down begins.
    pub fn observe(&mut self, seen: &Seen<'_>, dry: bool, now: Time) -> Decision {
        self.since.get_or_insert(now);
        let there = |member: &&MemberSeen<'_>| matches!(member.standing, Standing::Usable | Standing::Coming);
        let staying = || seen.members.iter().filter(there);
        let have = staying().count() as u32;
        let worth: f64 = staying().map(MemberSeen::worth).sum();
        let mut candidates = pick::Candidates::of(seen);
        let pressed = self.pressed(seen, have);
        let more = u32::from(pressed == Some(Pressed::More));
        let Some(sight) = self.demand.observe(seen, self.rules.target) else {
            // Bounds hold even where nothing is known.
            self.forecast.forget();
            let desired = have.saturating_add(more).clamp(self.rules.min, self.rules.max);
            let inputs = say::blind_inputs(seen, have);
            let why = say::blind(seen, self.rules.target, pressed);
            let reason = match pressed {
                Some(_) => Reason::NoRoom,
                None if desired > have => Reason::Least,
                None if desired < have => Reason::Most,
                None => Reason::Unknown,
            };
            return self.decide(desired, have, candidates, (reason, why, inputs), dry, now);
        };
        let ahead = self.forecast.observe(sight.demand, now);
        let want = ahead.upper * MARGIN / sight.allowed;
        let unit = self.rules.unit.max(LEAST);
        // What proved too little is not given up at the next look.
        let least = pressed.map_or(want, |_| want.max(worth + unit * f64::from(more)));
        self.remember(least, now);
        let floor = self.wanted.front().map_or(want, |(_, most)| *most);
        let grow = members_for(want - worth, unit).max(more);
        let spare = candidates.spare(worth, floor - unit * SLIGHT, have).len() as u32;
        let asked = have.saturating_add(grow).saturating_sub(spare);
        let desired = asked.clamp(self.rules.min, self.rules.max);
        let reckoning =
            say::Reckoning { seen, sight: &sight, ahead: &ahead, want, floor, worth, have, desired };
        let (mut why, inputs) = (reckoning.why(&self.rules, self.start), reckoning.inputs(self.start));
        if let Some(pressed) = pressed {
            say::pressed(&mut why, seen, pressed);
        }
        let known = reason::Known {
            pressed: pressed.is_some(),
            have,
            asked,
            desired,
            now: sight.demand * MARGIN / sight.allowed - worth > unit * SLIGHT,
        };
        self.decide(desired, have, candidates, (known.reason(), why, inputs), dry, now)
    }

    /// Is there too little room, whatever is known of the load: are requests refused for want of it, or do they still wait? And if so, what
    /// comes of it? Where none can be used room is not what is wanting.
    fn pressed(&mut self, seen: &Seen<'_>, have: u32) -> Option<Pressed> {
        let waits = seen.waiting > 0.0;
        let waited = core::mem::replace(&mut self.waited, waits);
        let any = |standing| seen.members.iter().any(|member| member.is(standing));
        if !any(Standing::Usable) || !(seen.refused > 0.0 || waits && waited) {
            return None;
        }
        Some(match any(Standing::Coming) {
            true => Pressed::Coming,
            false if have >= self.rules.max => Pressed::Most,
            false => Pressed::More,
        })
    }

    /// What is done of what is desired.
    fn decide(
        &mut self,
        desired: u32,
        have: u32,
        mut candidates: pick::Candidates<'_>,
        (mut reason, mut why, inputs): (Reason, String, Vec<(String, f64)>),
        dry: bool,
        now: Time,
    ) -> Decision {
        let news = self.desired != Some(desired);
        self.desired = Some(desired);
        let (mut add, mut remove) = (0, Vec::new());
        let cooling = |since: Option<Time>, rest: Duration| {
            since.map(|since| rest.saturating_sub(now.since(since))).filter(|left| !left.is_zero())
        };
        // What is missing below the least is no matter of cool-downs.
        let missing = self.rules.min.saturating_sub(have);
        if desired > have {
            let wait = cooling(self.up, self.rules.cool_up);
            add = match wait {
                _ if self.paused => missing,
                Some(_) => missing,
                None => (desired - have).min(self.rules.step_up.max(1)).max(missing),
            };
            if let (Some(left), true) = (wait, add < desired - have) {
                say::cooling(&mut why, left);
                reason = Reason::CoolDown;
            }
        } else if desired < have && !self.paused {
            // Nobody knows yet what was wanted before it looked.
            let unseen = cooling(self.since, self.rules.stabilize);
            let wait = unseen.max(cooling(self.up.max(self.down), self.rules.cool_down));
            match wait {
                Some(left) => {
                    say::cooling(&mut why, left);
                    reason = Reason::CoolDown;
                }
                None => remove = candidates.names((have - desired).min(self.rules.step_down.max(1)) as usize),
            }
        }
        if self.paused {
            say::paused(&mut why);
            reason = Reason::Paused;
        }
        if !dry {
            if add > 0 {
                self.up = Some(now);
            }
            if !remove.is_empty() {
                self.down = Some(now);
            }
        }
        Decision { desired, have, add, remove, news, reason, why, inputs }
    }

    /// The greatest of what was wanted of late is at the front.
    fn remember(&mut self, want: f64, now: Time) {
        while self.wanted.back().is_some_and(|(_, before)| *before <= want) {
            self.wanted.pop_back();
        }
        self.wanted.push_back((now, want));
        let stabilize = self.rules.stabilize;
        while self.wanted.front().is_some_and(|(at, _)| now.since(*at) > stabilize) {
            self.wanted.pop_front();
        }
        // Looks that come too fast keep no more than so many.
        while self.wanted.len() > MOST_WANTED {
            let second = self.wanted.remove(1);
            if second.is_none() {
                break;
            }
        }
    }
}

/// So many of one size make up what is missing.
fn members_for(missing: f64, unit: f64) -> u32 {
    if missing <= unit * SLIGHT {
        return 0;
    }
    libm::ceil(missing / unit - SLIGHT).min(f64::from(u32::MAX / 2)) as u32
}

/// What load lines and agents are off by, for the most part.
const MARGIN: f64 = 1.03;

/// Capacities below that are taken for it.
const LEAST: f64 = 1e-6;

/// What is missing of a member without another one being started: rounding is no need.
const SLIGHT: f64 = 1e-3;

/// Weight of a new start among those before.
const NEW_START: f64 = 0.3;

/// A start that took longer is taken for one of so many seconds.
const LONGEST_START: f64 = 3600.0;

/// Looks that are remembered.
const MOST_WANTED: usize = 4096;
