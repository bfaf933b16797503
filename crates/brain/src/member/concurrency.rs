//! A concurrency limit for members that send no load reports: how many requests from here may await an answer's head.
//!
//! The controller bounds `T`, the time from a request to its answer's head, by `T* = max(0.15 P, 3 T0)`: a part of the
//! time `P` that clients wait, or three times the baseline `T0` where requests take long anyway. A delay that clients do not
//! notice is never taken for overload, however quick members are. The balancer's own delay is subtracted from `T` before
//! anything is compared.
//!
//! | state | limit | ends when |
//! |---|---|---|
//! | open | none | the integral of `T / T* - 1`, while that is above 0, comes to [`OVER`] |
//! | limited | `L = X T*`, approached step by step | see below |
//!
//! `X` is the rate of answers. By Little's law `L` holds `T` at `T*` while the members are saturated. If they are not, `T` is
//! shorter, so that each window raises `L` by `T* / T`: the limit opens by itself as fast as it closes. All balancers before the same
//! members see the same `T` and compare it with the same `T*`, so that none of them goes on down while another has no limit.
//!
//! A limit is an experiment. It first allows [`FIRST`] of what was awaited, and then a third of what was awaited before, as long as `X` stays
//! what it was. Where more were awaited in the meantime and no more came, that is known already. If requests take that long by themselves, `X` falls with the limit. Nobody misses the answers that come less in the
//! meantime: those requests wait in the balancer for less time than their clients do.
//!
//! The limited state ends by whichever of these comes first. None of them needs a request that the limit holds back.
//!
//! * **The limit is not used:** fewer than [`USED`] of it are awaited for [`UNUSED`].
//! * **Nothing is known:** no window was complete for [`BLIND`], because no answer came.
//! * **The limit costs answers:** `X` is below [`KEPT`] of what it was by more than chance after [`JUDGED`], in which other balancers have had the time to see
//!   the overload, too. The controller waits before it limits again, twice as long each time, while `T0` follows `T`.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::Vitals;
use crate::Time;

/// The counts of a span of time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    pub(crate) seconds: f64,
    /// Requests that were sent.
    pub(crate) sent: f64,
    /// Answers whose head came.
    pub(crate) answered: f64,
    /// Looks, and the sum of the awaited answers at them.
    pub(crate) looks: f64,
    pub(crate) sum: f64,
    /// The sum, at these looks, of the delay of this balancer's own event loops, seconds.
    pub(crate) lag: f64,
}

/// Counts requests to one member from one look to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic {
    /// When the last look was; `None` before the first.
    at: Option<Time>,
    begun: u32,
    awaiting: u32,
    lost: u32,
    /// While answers are awaited and none comes.
    silence: Option<Silence>,
}

/// A time in which a member answers nothing.
#[derive(Clone, Copy, Debug)]
struct Silence {
    since: Time,
    /// Requests that were sent to the member in it, and the counts of the group when it began.
    sent: f64,
    before: Totals,
}

/// Requests sent to all members of a group, and answers of theirs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) sent: f64,
    pub(crate) answered: f64,
}

/// A limit on the answers that may be awaited from a member, or from all members of a group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ConcurrencyLimit {
    /// The baseline `T0`, seconds; 0 while it is not known.
    baseline: f64,
    /// When the baseline was measured last.
    measured: Time,
    /// Is that a mean of enough answers?
    known: bool,
    /// Answers until it was, and the seconds in which they came.
    #[serde(skip)]
    answers: f64,
    #[serde(skip)]
    seconds: f64,
    #[serde(skip)]
    window: Window,
    #[serde(skip)]
    state: State,
    /// Limits that were given up because members did not queue, in a row, and until when no other is set.
    #[serde(skip)]
    mistakes: u32,
    #[serde(skip)]
    held_off: Time,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// No limit. `over`: since when `T` has been too long.
    Open {
        over: Option<Excess>,
    },
    Limited(Limited),
}

/// A time in which answers take too long.
#[derive(Clone, Copy, Debug)]
struct Excess {
    /// Awaited answers and answers a second when it began.
    awaited: f64,
    rate: f64,
    /// The sum of `(T / T* - 1) dt`, seconds.
    sum: f64,
}

/// A time in which fewer answers are awaited than before.
#[derive(Clone, Copy, Debug)]
struct Trial {
    since: Time,
    /// Answers that came since the first of those requests, and their seconds.
    answered: f64,
    seconds: f64,
}

#[derive(Clone, Copy, Debug)]
struct Limited {
    limit: f64,
    /// Awaited answers that the limit is to bring down, and the rate of answers that it is to leave as it is.
    awaited: f64,
    rate: f64,
    /// Has it brought them down before?
    proven: bool,
    /// Since when fewer are awaited, with the answers that came since the first of those, and their seconds.
    fewer: Option<Trial>,
    /// When the limit was in use last, and when a window was complete.
    used: Time,
    known: Time,
}

impl Default for State {
    fn default() -> Self {
        Self::Open { over: None }
    }
}

impl Trial {
    fn add(&mut self, window: &Window) {
        self.answered += window.answered;
        self.seconds += window.seconds;
    }

    /// Returns whether answers come at this `rate` or more, once that can be told. That they do not may be the moment in which members
    /// that have fewer requests than others run out of them.
    fn keeps(&self, rate: f64, now: Time) -> Option<bool> {
        let (more, chance) = (self.answered - rate * self.seconds, libm::sqrt(rate * self.seconds));
        let told = self.seconds > 0.0 && (more > 2.0 * chance || now.since(self.since) >= JUDGED);
        told.then_some(more > -chance)
    }
}

impl Window {
    /// Adds the counts of a look.
    pub(crate) fn add(&mut self, look: &Self) {
        self.seconds += look.seconds;
        self.sent += look.sent;
        self.answered += look.answered;
        self.looks += look.looks;
        self.sum += look.sum;
        self.lag += look.lag;
    }

    /// The mean of the awaited answers.
    fn awaited(&self) -> f64 {
        self.sum / self.looks.max(1.0)
    }
}

impl Traffic {
    /// Takes a look, about ten times a second. Returns the counts since the last one, unless that is too long ago.
    /// `all`: the counts of the group up to then.
    pub(crate) fn look(&mut self, vitals: &Vitals, all: &Totals, now: Time) -> Option<Window> {
        let (begun, awaiting, lost) = (vitals.begun_here(), vitals.awaiting_here(), vitals.lost());
        let before = core::mem::replace(&mut self.awaiting, awaiting);
        let sent = f64::from(begun.wrapping_sub(core::mem::replace(&mut self.begun, begun)));
        let lost = f64::from(lost.wrapping_sub(core::mem::replace(&mut self.lost, lost)));
        let at = self.at.replace(now);
        // What is counted elsewhere at the same moment may make this negative by a few.
        let answered = (sent + f64::from(before) - f64::from(awaiting) - lost).max(0.0);
        let seconds = now.since(at?).as_secs_f64();
        if awaiting == 0 || answered > 0.0 || seconds > PAUSE {
            self.silence = None;
        } else {
            let silence = self.silence.get_or_insert(Silence { since: now, sent: 0.0, before: *all });
            silence.sent += sent;
        }
        let look = Window { seconds, sent, answered, looks: 1.0, sum: f64::from(awaiting), lag: 0.0 };
        (seconds <= PAUSE).then_some(look)
    }

    /// Returns for how long the member has answered nothing, if that is not chance: several requests were sent to it in that time, and if each
    /// of them stayed unanswered as often as those of the others in the same time, all of them would in less than one case in a
    /// thousand. `all`: the counts of the group by now.
    pub(crate) fn silence(&self, all: &Totals, now: Time) -> Option<Duration> {
        let silence = self.silence.as_ref()?;
        let sent = all.sent - silence.before.sent - silence.sent;
        let answered = all.answered - silence.before.answered;
        let unanswered = (1.0 - answered / sent.max(1.0)).max(LEAST_UNANSWERED);
        let chance = libm::pow(unanswered, silence.sent);
        (silence.sent >= SEVERAL && chance < FALSE_ALARM).then(|| now.since(silence.since))
    }
}

impl ConcurrencyLimit {
    /// The baseline that a process which takes over begins with.
    pub(crate) fn past(&self) -> Self {
        Self { baseline: self.baseline, measured: self.measured, known: self.known, ..Self::default() }
    }

    /// Takes over a baseline, if it can be true.
    pub(crate) fn recall(&mut self, past: Self) {
        if past.baseline.is_finite() && past.baseline >= 0.0 {
            *self = past.past();
        }
    }

    /// Removes the limit.
    pub(crate) fn open(&mut self) {
        self.state = State::default();
    }

    /// Adds the counts of a look and returns the limit in requests, 0 for none. `took`: the time `T` of the latest answers, seconds.
    /// `patience`: how long clients wait.
    pub(crate) fn follow(&mut self, look: &Window, took: f64, patience: Duration, now: Time) -> u32 {
        self.window.add(look);
        let window = self.window;
        let long = window.answered >= ENOUGH || window.seconds >= LONGEST;
        if window.seconds >= SHORTEST && long {
            self.window = Window::default();
            if window.answered > 0.0 && took > 0.0 {
                self.judge(&window, took, patience.as_secs_f64(), now);
            }
        }
        self.expire(now);
        match &self.state {
            State::Open { .. } => 0,
            State::Limited(limited) => libm::ceil(limited.limit) as u32,
        }
    }

    fn judge(&mut self, window: &Window, took: f64, patience: f64, now: Time) {
        let (rate, awaited) = (window.answered / window.seconds, window.awaited());
        let own = LAGS * window.lag / window.looks.max(1.0);
        // What the members took of it.
        let theirs = (took - own).max(0.0);
        if self.baseline <= 0.0 || now.since(self.measured) > FORGOTTEN {
            (self.baseline, self.measured) = (took, now);
            (self.answers, self.seconds, self.known) = (0.0, 0.0, false);
        }
        // The first answers are the quickest ones, and no mean.
        self.known |= self.answers >= FEWEST && self.seconds >= SOJOURNS * self.baseline;
        let known = self.known;
        let longest = (patience * NOTICED).max(TIMES * self.baseline);
        let over = known && theirs > longest;
        match &mut self.state {
            State::Open { over: since } => {
                let held_off = now < self.held_off;
                // Up only as far as chance goes, or where it was shown that requests take that long by themselves.
                let memory = if held_off { SHOWN } else { RISE };
                let part = match took < self.baseline {
                    _ if !known => window.answered / (self.answers + window.answered),
                    true => FALL,
                    false if held_off || took < 2.0 * self.baseline => (window.seconds / memory).min(FALL),
                    false => 0.0,
                };
                self.baseline += (took - self.baseline) * part;
                self.measured = now;
                if !known {
                    self.answers += window.answered;
                    self.seconds += window.seconds;
                }
                if !over || held_off {
                    *since = None;
                    return;
                }
                let more = (theirs / longest - 1.0) * window.seconds;
                let Some(excess) = since else {
                    *since = Some(Excess { awaited, rate, sum: more });
                    return;
                };
                excess.sum += more;
                if excess.sum >= OVER {
                    // More are awaited and no more are answered: they queue.
                    let proven = awaited > GROWN * excess.awaited && rate < KEEPS * excess.rate;
                    self.state = State::Limited(Limited {
                        limit: if proven { awaited / STEP } else { FIRST * awaited },
                        awaited,
                        rate: rate.max(excess.rate),
                        proven,
                        fewer: None,
                        used: now,
                        known: now,
                    });
                }
            }
            State::Limited(limited) => {
                limited.known = now;
                let used = awaited >= USED * limited.limit;
                if used {
                    limited.used = now;
                }
                if awaited <= FEWER * limited.awaited && used {
                    let begun = Trial { since: now, answered: 0.0, seconds: 0.0 };
                    let fewer = limited.fewer.get_or_insert(begun);
                    // Those that are answered at first were sent when there were more.
                    if now.since(fewer.since).as_secs_f64() >= theirs.min(LONGEST) {
                        fewer.add(window);
                    }
                    match fewer.keeps(KEPT * limited.rate, now) {
                        Some(true) => {
                            self.mistakes = 0;
                            (limited.awaited, limited.proven, limited.fewer) = (awaited, true, None);
                        }
                        Some(false) => {
                            self.mistakes = (self.mistakes + 1).min(MISTAKES);
                            self.held_off = now + HELD_OFF * (1 << self.mistakes);
                            self.state = State::default();
                            return;
                        }
                        None => {}
                    }
                }
                let wanted = rate * (longest + own);
                let wanted = wanted + libm::sqrt(wanted) + 1.0;
                let first = if limited.proven { 1.0 / STEP } else { FIRST };
                let least = (limited.limit / STEP).max(first * limited.awaited);
                limited.limit = wanted.min(STEP * limited.limit).max(least);
                if awaited > limited.awaited {
                    // What is to be brought down from here on.
                    (limited.awaited, limited.fewer) = (awaited, None);
                }
            }
        }
    }

    /// Ends a limit by time.
    fn expire(&mut self, now: Time) {
        if let State::Limited(limited) = &self.state
            && (now.since(limited.used) >= UNUSED || now.since(limited.known) >= BLIND)
        {
            self.open();
        }
    }
}

/// Seconds between two looks after which counting begins anew: there was no traffic, or this process stood still.
const PAUSE: f64 = 0.5;

/// Seconds of a window, at least; answers that it waits for, but no longer than that.
const SHORTEST: f64 = 0.15;
const ENOUGH: f64 = 16.0;
const LONGEST: f64 = 1.0;

/// Part of the time that clients wait for which a request may be with a member, or how many times the baseline if that is more.
const NOTICED: f64 = 0.15;
const TIMES: f64 = 3.0;

/// How many times its own delay this balancer adds to the time of an answer: once as it sends and once as it receives.
const LAGS: f64 = 2.0;

/// Part of the way that the baseline goes down in a window, and seconds in which it goes up: usually, and where a limit was a mistake.
const FALL: f64 = 0.25;
const RISE: f64 = 60.0;
const SHOWN: f64 = 5.0;

/// Time without an answer after which a baseline says nothing any more.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// Answers from which a baseline is known, and how many times as long as they take.
const FEWEST: f64 = 64.0;
const SOJOURNS: f64 = 3.0;

/// Seconds for which answers take twice as long as they may before there is a limit; twice as many for half of that excess.
const OVER: f64 = 0.4;

/// Part of what was awaited that the first limit allows, and factor by which a window moves a limit at most.
const FIRST: f64 = 0.7;
const STEP: f64 = 3.0;

/// How many times as many answers are awaited, and at most how many times as many come, where requests queue.
const GROWN: f64 = 1.5;
const KEEPS: f64 = 1.1;

/// Part of the awaited answers that are fewer, and part of the rate of answers that is kept: half way between what is left of it where
/// requests take that long by themselves, and all.
const FEWER: f64 = 0.75;
const KEPT: f64 = 0.85;
const JUDGED: Duration = Duration::from_secs(2);

/// Part of a limit from which it is in use; how long it stays when it is not, and how long when no answer comes.
const USED: f64 = 0.7;
const UNUSED: Duration = Duration::from_secs(1);
const BLIND: Duration = Duration::from_secs(2);

/// How long no limit is set after one that was a mistake, and how often that is doubled.
const HELD_OFF: Duration = Duration::from_secs(1);
const MISTAKES: u32 = 4;

/// Unanswered requests from which a member is silent, chance below which they are no long ones, and part of the others' requests that is taken
/// to be unanswered at least.
const SEVERAL: f64 = 3.0;
const FALSE_ALARM: f64 = 1e-3;
const LEAST_UNANSWERED: f64 = 0.05;

#[cfg(test)]
mod tests;
