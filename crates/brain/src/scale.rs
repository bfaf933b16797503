//! The autoscaler: the number of members of a group, and the members to remove.
//!
//! It is a value driven from outside, about once a second. [`Scaler::observe`] takes the state of the group,
//! and returns the action of the moment, the desired number, and the reason. It starts and stops nothing; a
//! `Crew` ([`crew`]) does.
//!
//! All quantities are *capacity*, of which a member has its configured amount (by default 1), so that unequal
//! members count by their size. Each look has four steps:
//!
//! 1. **Demand** (`demand`): the capacity that is fully in use, by the load line, by agents' processor
//!    utilization, or by response times. Arriving requests count, not served ones: a full group would
//!    otherwise look as if it had just enough.
//! 2. **Forecast** (`forecast`): Holt's level and trend of the demand, as far ahead as a member takes to
//!    start, with the upper end of the forecast's error band.
//! 3. **Want**: the greater of the demand now and ahead, over the part of the capacity that the target allows
//!    to be in use.
//! 4. **Bounds**: `min` and `max`, steps, cool-downs. A member is removed only if the rest would have been
//!    enough at every look of the last `stabilize`, by the want of the time.
//!
//! A started member that does not serve yet counts with its full capacity: it is not started twice. A member
//! that cannot be used counts as nothing, and is replaced. If no member can be used, or nothing is known, the
//! group keeps its members.
//!
//! The exception needs no model: requests are rejected for want of room, or wait for it at two looks in a
//! row. Then one more member is started, and the next one when that serves.
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

/// The target state of a group's members.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// The part of their capacity in use; above 0, below 1.
    Utilization(f64),
    /// The maximum time of 95 of 100 requests, seconds; above 0.
    ResponseTime(f64),
    /// The free part of their load line; above 0, below 1.
    HeadRoom(f64),
}

/// The settings of a scaler.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// The minimum number of members, including those that it cannot remove.
    pub min: u32,
    /// The maximum number of members; at least `min`.
    pub max: u32,
    /// The target.
    pub target: Target,
    /// The capacity of a member that it starts; above 0.
    pub unit: f64,
    /// The time after a start before the next start.
    pub cool_up: Duration,
    /// The time after a start or a removal before a removal.
    pub cool_down: Duration,
    /// The maximum number of members started at once; at least 1.
    pub step_up: u32,
    /// The maximum number of members removed at once; at least 1.
    pub step_down: u32,
    /// The time for which the want of a look must be kept.
    pub stabilize: Duration,
    /// The time that a member takes to start, until it was measured.
    pub start_time: Duration,
}

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It can be chosen.
    Usable,
    /// It was started, and has not served yet.
    Coming,
    /// It exists, and cannot be chosen: down, ejected, disabled by an operator.
    Lost,
    /// It is being removed.
    Leaving,
}

/// A member in a look.
#[derive(Clone, Copy, Debug)]
pub struct MemberSeen<'a> {
    /// The configured name.
    pub name: &'a str,
    /// The capacity relative to the others; above 0.
    pub capacity: f64,
    /// The state.
    pub standing: Standing,
    /// Whether the scaler can remove it.
    pub ours: bool,
    /// The requests in flight.
    pub in_flight: u32,
    /// The used part of its whole host's processors, if an agent reports it.
    pub utilization: Option<f64>,
    /// The requests a second that it can serve for all balancers of the fleet, by the load line, if known.
    /// Ignored unless [`Seen::proven`].
    pub line: Option<f64>,
    /// The group's part of its host's capacity, above 0 and at most 1: 1 without other groups there.
    pub share: f64,
}

impl MemberSeen<'_> {
    /// Returns its capacity for this group: the capacity of a host counts once, however many groups are
    /// there.
    fn worth(&self) -> f64 {
        self.capacity * self.share
    }

    fn is(&self, standing: Standing) -> bool {
        self.standing == standing
    }
}

/// The state of a group in a look.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// All of its members.
    pub members: &'a [MemberSeen<'a>],
    /// `true` if the load line of the group is a number. While it is a range, known members show nothing
    /// about the others.
    pub proven: bool,
    /// The requests a second that came since the last look, whatever their outcome, to all balancers of the
    /// fleet.
    pub rate: f64,
    /// The part of those that came to other balancers.
    pub elsewhere: f64,
    /// The requests that wait for a member.
    pub waiting: f64,
    /// The requests a second that were rejected for want of room since the last look.
    pub refused: f64,
    /// The 95th percentile of the times of requests that ended since the last look, seconds; `None` if too
    /// few did.
    pub response: Option<f64>,
}

/// The action, and its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The number of members that the target needs, within `min` and `max`.
    pub desired: u32,
    /// The number of members that are present or coming.
    pub have: u32,
    /// The number of members to start now.
    pub add: u32,
    /// The names of the members to remove now; they are drained first.
    pub remove: Vec<String>,
    /// Whether it differs from the desired number of the previous look.
    pub news: bool,
    /// A keyword for a counter.
    pub reason: Reason,
    /// A sentence for display.
    pub why: String,
    /// The numbers behind the decision, by name; all finite.
    pub inputs: Vec<(String, f64)>,
}

/// The response to a lack of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pressed {
    /// One more is started.
    More,
    /// One is coming already.
    Coming,
    /// The maximum is reached.
    Most,
}

/// The scaler of one group.
#[derive(Clone, Debug)]
pub struct Scaler {
    rules: Rules,
    demand: Demand,
    forecast: Forecast,
    /// The mean time that members took to start; seconds.
    start: f64,
    /// The time of its first look.
    since: Option<Time>,
    /// The times of the last start and of the last removal.
    up: Option<Time>,
    down: Option<Time>,
    /// The wants of the last `stabilize` with their times: those that no later one exceeds.
    wanted: VecDeque<(Time, f64)>,
    /// The last desired number.
    desired: Option<u32>,
    /// Whether requests waited at the previous look.
    waited: bool,
    paused: bool,
}

impl Scaler {
    /// Returns a scaler without history.
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

    /// Applies other settings and keeps the learnt state.
    pub fn rule(&mut self, rules: Rules) {
        if rules.target != self.rules.target {
            self.wanted.clear();
        }
        self.rules = rules;
    }

    /// Returns the settings.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Sets whether it is paused. While paused, nothing is started or removed, except to reach `min`.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Returns `true` if it is paused.
    pub fn paused(&self) -> bool {
        self.paused
    }

    /// Records the time of a member from its start until it could be used.
    pub fn started(&mut self, took: Duration) {
        let took = took.as_secs_f64().min(LONGEST_START);
        self.start += (took - self.start) * NEW_START;
        self.forecast.reach(self.start);
    }

    /// Returns the known time that members take to start; seconds.
    pub fn start_seconds(&self) -> f64 {
        self.start
    }

    /// Takes a look, and decides. `dry`: the action is not performed, so no cool-down begins.
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
            // Bounds hold even if nothing is known.
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
        // A number that proved too small is not returned to at the next look.
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

    /// Returns the response to a lack of room, whatever the known load: requests are rejected for it, or
    /// still wait. If no member can be used, room is not the problem.
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

    /// Returns the action for the desired number.
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
        // Members missing below the minimum ignore cool-downs.
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
            // The wants before its first look are unknown.
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

    /// Records a want; the greatest of the last `stabilize` is at the front.
    fn remember(&mut self, want: f64, now: Time) {
        while self.wanted.back().is_some_and(|(_, before)| *before <= want) {
            self.wanted.pop_back();
        }
        self.wanted.push_back((now, want));
        let stabilize = self.rules.stabilize;
        while self.wanted.front().is_some_and(|(at, _)| now.since(*at) > stabilize) {
            self.wanted.pop_front();
        }
        // Looks in quick succession must not fill the memory.
        while self.wanted.len() > MOST_WANTED {
            let second = self.wanted.remove(1);
            if second.is_none() {
                break;
            }
        }
    }
}

/// Returns the number of members of one size for the missing capacity.
fn members_for(missing: f64, unit: f64) -> u32 {
    if missing <= unit * SLIGHT {
        return 0;
    }
    libm::ceil(missing / unit - SLIGHT).min(f64::from(u32::MAX / 2)) as u32
}

/// The margin for the usual error of load lines and agents.
const MARGIN: f64 = 1.03;

/// The minimum of a capacity.
const LEAST: f64 = 1e-6;

/// The missing part of a member that starts no other: rounding is no need.
const SLIGHT: f64 = 1e-3;

/// The weight of a new start time among earlier ones.
const NEW_START: f64 = 0.3;

/// The maximum of a start time, seconds.
const LONGEST_START: f64 = 3600.0;

/// The maximum number of remembered wants.
const MOST_WANTED: usize = 4096;
