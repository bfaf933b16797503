//! How many requests a member that says nothing of itself may have from here, learned on the slow path.
//!
//! Below what it can do, a member has as many requests as come, times what one takes. Above, they pile up: ever
//! more are in flight, and no more are served. So where requests pile up in the whole group (`analyzer::watch` sees
//! that), a member that has several times as many as it had to have at the lowest latency there was (Little's law) gets
//! a ceiling. It comes down step by step to that number, and each step is taken back if fewer are served for it:
//! what takes long because it is much work shows in that. When hardly anybody comes near it any more, all go.
//!
//! A balancer sees its share only, and limits its share only. Overload comes to all balancers of a fleet at the same
//! time, so they go down together, and each has its share of what is served still; one that goes down alone loses by
//! it, and stops. What it had to have it learns while nothing piles up, and keeps: beyond the capacity what is served here
//! follows what is in flight here, and those that went by it took from one another until some had next to nothing.
//!
//! What clients have with members themselves (leases, xds) is to this as another balancer's: part of what takes so long, and not counted.
//!
//! With many balancers each has less than one request with most members, and a ceiling of a whole request at each is many
//! times too many for all. So there is the same for the group as a whole, which is what holds then.

use serde::{Deserialize, Serialize};

use super::Vitals;
use crate::Time;

/// The slow path's memory of one member.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ceiling {
    /// When it was last looked at; `None` for never.
    at: Option<Time>,
    begun: u32,
    in_flight: u32,
    lost: u32,
    limit: Limit,
}

/// How many requests a member may have, or a group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Limit {
    /// Of this window.
    window: Window,
    /// About the lowest latency there was, seconds; 0 for none.
    floor: f64,
    /// Requests in flight that this latency makes of what is served; 0 for not known.
    usual: f64,
    /// By how much more is allowed for, because steps down had to be taken back; at least 1.
    leave: f64,
    /// Requests; 0 for none.
    ceiling: f64,
    /// Requests served a second before the last step down, if that is not judged yet.
    before: Option<f64>,
}

/// What was seen for a while.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Window {
    pub(crate) seconds: f64,
    /// Requests that came, that were served, and that never will be: they failed, or their clients gave up.
    pub(crate) came: f64,
    pub(crate) served: f64,
    pub(crate) lost: f64,
    /// Looks, and the sum of the requests in flight at them.
    pub(crate) looks: f64,
    pub(crate) sum: f64,
}

impl Window {
    /// Adds what one look found.
    pub(crate) fn add(&mut self, look: &Self) {
        self.seconds += look.seconds;
        self.came += look.came;
        self.served += look.served;
        self.lost += look.lost;
        self.looks += look.looks;
        self.sum += look.sum;
    }

    /// Requests in flight.
    pub(crate) fn mean(&self) -> f64 {
        self.sum / self.looks.max(1.0)
    }
}

impl Ceiling {
    /// What was learned, for a process that takes over.
    pub(crate) fn past(&self) -> Limit {
        Limit { window: Window::default(), ..self.limit.clone() }
    }

    /// Goes on with what a process before this one learned, if it can be true.
    pub(crate) fn recall(&mut self, past: Limit) {
        let numbers = [past.floor, past.usual, past.leave, past.ceiling, past.before.unwrap_or_default()];
        if numbers.iter().all(|number| number.is_finite() && *number >= 0.0) {
            self.limit = past;
        }
    }

    /// Takes a look; about ten times a second. What it found, unless it is the first for a while.
    pub(crate) fn look(&mut self, vitals: &Vitals, now: Time) -> Option<Window> {
        let (begun, in_flight, lost) = (vitals.begun_here(), vitals.in_flight_here(), vitals.lost());
        let before = core::mem::replace(&mut self.in_flight, in_flight);
        let came = f64::from(begun.wrapping_sub(core::mem::replace(&mut self.begun, begun)));
        let failed = f64::from(lost.wrapping_sub(core::mem::replace(&mut self.lost, lost)));
        let seconds = now.since(self.at.replace(now)?).as_secs_f64();
        if seconds > PAUSE {
            self.limit.window = Window::default();
            return None;
        }
        // What is counted elsewhere at the same moment may make this negative by a few.
        let served = (came + f64::from(before) - f64::from(in_flight) - failed).max(0.0);
        let look = Window { seconds, came, served, lost: failed, looks: 1.0, sum: f64::from(in_flight) };
        self.limit.add(&look);
        Some(look)
    }

    /// What follows from it; `pressed` if requests pile up in the group, where members have to have `typical` of them.
    pub(crate) fn follow(&mut self, vitals: &Vitals, pressed: bool, typical: f64) {
        vitals.allow(self.limit.follow(self.in_flight, pressed, typical, f64::INFINITY));
    }

    /// Has it nearly as many as it may have?
    pub(crate) fn near(&self) -> bool {
        self.limit.near(self.in_flight)
    }

    /// How many requests are about as many as it has to have; 0 for not known.
    pub(crate) fn usual(&self) -> f64 {
        self.limit.usual()
    }
}

impl Limit {
    /// Adds what a look found.
    pub(crate) fn add(&mut self, look: &Window) {
        self.window.add(look);
    }

    /// How many there may be, 0 for any number, when so many are in flight; `pressed` and `typical` as of
    /// [`Ceiling::follow`]. `least` is the latency, seconds, that answers had at best by another measure: what is in flight
    /// where it becomes more and more says too much.
    pub(crate) fn follow(&mut self, in_flight: u32, pressed: bool, typical: f64, least: f64) -> u32 {
        let window = self.window;
        let long = window.seconds >= SHORTEST && (window.served >= ENOUGH || window.seconds >= LONGEST);
        if long {
            self.window = Window::default();
            // Too little tells nothing: a ceiling stays for when more comes.
            if window.came >= FEWEST {
                self.judge(&window, pressed, least);
            }
        }
        if !pressed {
            (self.ceiling, self.before) = (0.0, None);
        } else if self.ceiling <= 0.0 {
            // One without a ceiling would get what all others have no room for.
            self.usual = if self.usual > 0.0 { self.usual } else { typical };
            self.ceiling = self.enough().max(f64::from(in_flight) / 2.0);
        }
        libm::ceil(self.ceiling) as u32
    }

    /// How many requests are about as many as there have to be; 0 for not known.
    pub(crate) fn usual(&self) -> f64 {
        self.usual
    }

    /// Are there nearly as many as there may be?
    pub(crate) fn near(&self, in_flight: u32) -> bool {
        self.ceiling > 0.0 && f64::from(in_flight) >= NEAR * self.ceiling
    }

    fn judge(&mut self, window: &Window, pressed: bool, least: f64) {
        let (rate, mean) = (window.served / window.seconds, window.mean());
        if window.served >= FEWEST {
            let latency = mean / rate;
            if self.floor <= 0.0 {
                self.floor = latency;
            }
            // It does not rise while requests pile up: it would soon be what they wait.
            let rise = if pressed || latency > WAITING * self.floor { 0.0 } else { RISE };
            self.floor = self.floor.min(least);
            self.floor += (latency - self.floor) * if latency < self.floor { FALL } else { rise };
        }
        if let Some(before) = self.before.take() {
            // Where clients give up what they wait for, fewer are served because of those that were let in before.
            let less = rate < KEPT * before && window.lost < LOST * window.came;
            self.leave *= if less { 1.4 } else { 0.75 };
            self.ceiling /= if less { STEP } else { 1.0 };
        }
        self.leave = self.leave.clamp(1.0, MOST_LEAVE);
        let usual = rate * self.floor;
        // Where more comes than can be served, what is served follows what is in flight: balancers that share the members
        // would each go by what the others left it. So it keeps nearly what it had, unless less comes here.
        let full = self.ceiling > 0.0 && mean > NEAR * self.ceiling;
        let came = if full { f64::INFINITY } else { window.came / window.seconds * self.floor };
        self.usual = if pressed { usual.max((KEEPS * self.usual).min(came)) } else { usual };
        let enough = self.enough();
        if self.ceiling <= 0.0 {
            return;
        }
        if mean > enough && mean > NEAR * self.ceiling {
            self.ceiling = enough.max(STEP * self.ceiling);
            self.before = Some(rate);
        } else {
            self.ceiling = enough.max(self.ceiling).min(self.ceiling / STEP);
        }
    }

    /// Requests in flight beyond which one more only waits.
    fn enough(&self) -> f64 {
        let usual = TIMES * self.leave.max(1.0) * self.usual;
        usual + 1.5 * libm::sqrt(usual) + 1.0
    }
}

/// Seconds of a window, at least; requests served that it waits for, but no longer than that.
const SHORTEST: f64 = 0.25;
const ENOUGH: f64 = 16.0;
const LONGEST: f64 = 2.0;

/// Seconds between two looks after which a window starts anew: there was no traffic.
const PAUSE: f64 = 0.5;

/// Requests of a window from which it says something.
const FEWEST: f64 = 8.0;

/// How many times what it has to have is too much.
const TIMES: f64 = 2.0;

/// Shares of the way to a lower and to a higher latency that the lowest goes in a window.
const FALL: f64 = 0.25;
const RISE: f64 = 0.005;

/// How many times the lowest latency is no latency to rise to.
const WAITING: f64 = 3.0;

/// Share of the ceiling from which it counts that it is one.
const NEAR: f64 = 0.8;

/// A step down, and the share of what is served that is to be left after it: half way between none lost and all.
const STEP: f64 = 0.75;
const KEPT: f64 = 0.87;

/// Share of what it had to have that it keeps in a window.
const KEEPS: f64 = 0.97;

/// Share of the requests from which it says something that they were not served.
pub(crate) const LOST: f64 = 0.1;

const MOST_LEAVE: f64 = 4.0;
