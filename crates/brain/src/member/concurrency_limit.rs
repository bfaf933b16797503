//! A concurrency limit for members that send no load reports: the number of requests from here that may await
//! an answer's head.
//!
//! The controller bounds `T`, the time from a request to its answer's head, by `T* = max(0.15 P, 3 T0)`. `P`
//! is the time that clients wait; `T0` is the baseline, which decides where requests take long anyway. A
//! delay that clients do not notice never counts as overload, however fast members are. The balancer's own
//! delay is subtracted from `T` before any comparison.
//!
//! | state | limit | ends when |
//! |---|---|---|
//! | open | none | the integral of `T / T* - 1`, while that is above 0, reaches [`OVER`] |
//! | limited | `L = X T*`, approached step by step | see below |
//!
//! `X` is the rate of answers. By Little's law `L` holds `T` at `T*` while the members are saturated. If they
//! are not, `T` is shorter, so that each window raises `L` by `T* / T`: the limit opens by itself as fast as
//! it closes. All balancers in front of the same members see the same `T` and compare it with the same `T*`.
//! So none of them lowers its limit further while another has none.
//!
//! A limit is an experiment. It first allows [`FIRST`] of the awaited requests, and then a third of the
//! awaited requests before, as long as `X` stays the same. If more were awaited meanwhile and no more answers
//! came, the result is already known. If requests take that long by themselves, `X` falls with the limit. The
//! lower rate of answers harms no client meanwhile: those requests wait in the balancer for less time than
//! their clients do.
//!
//! The limited state ends by whichever of these comes first. None of them needs a request that the limit
//! holds back.
//!
//! - **The limit is not used:** fewer than [`USED`] of it are awaited for [`UNUSED`].
//! - **Nothing is known:** no window was complete for [`BLIND`], because no answer came.
//! - **The limit costs answers:** `X` is below [`KEPT`] of what it was, by more than chance, after
//!   [`JUDGED`]. By then other balancers have had the time to see the overload, too. The controller waits
//!   before it limits again, twice as long each time, while `T0` follows `T`.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::Vitals;
use crate::Time;

/// The counts of a span of time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AnswerWindow {
    pub(crate) seconds: f64,
    /// Sent requests.
    pub(crate) sent: f64,
    /// Answers whose head came.
    pub(crate) answered: f64,
    /// The number of looks, and the sum of the awaited answers at them.
    pub(crate) sample_count: f64,
    pub(crate) awaiting_sum: f64,
    /// The sum, over these looks, of the delay of this balancer's own event loops, seconds.
    pub(crate) lag: f64,
}

/// The counts of requests to one member from one look to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrafficSampler {
    /// The time of the last look; `None` before the first.
    sampled_at: Option<Time>,
    begun: u32,
    awaiting: u32,
    unserved: u32,
    /// The silence, while answers are awaited and none comes.
    silence: Option<SilentSpan>,
}

/// A span in which a member sends no answer.
#[derive(Clone, Copy, Debug)]
struct SilentSpan {
    since: Time,
    /// The requests sent to the member in it, and the counts of the group when it began.
    sent: f64,
    totals_at_start: GroupTotals,
}

/// The requests sent to all members of a group, and their answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GroupTotals {
    pub(crate) sent: f64,
    pub(crate) answered: f64,
}

/// A limit on the answers that may be awaited from a member, or from all members of a group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ConcurrencyLimit {
    /// The baseline `T0`, seconds; 0 while it is not known.
    baseline: f64,
    /// The time of the last measurement of the baseline.
    measured: Time,
    /// Whether the baseline is a mean of enough answers.
    known: bool,
    /// The answers until it was, and the seconds in which they came.
    #[serde(skip)]
    answers: f64,
    #[serde(skip)]
    seconds: f64,
    #[serde(skip)]
    window: AnswerWindow,
    #[serde(skip)]
    state: LimitState,
    /// The number of consecutive limits given up because members did not queue, and the time before which no
    /// other limit is set.
    #[serde(skip)]
    mistakes: u32,
    #[serde(skip)]
    held_off: Time,
}

#[derive(Clone, Copy, Debug)]
enum LimitState {
    /// No limit. `over`: the excess, while `T` is too long.
    Open {
        excess: Option<LatencyExcess>,
    },
    Limited(ActiveLimit),
}

/// A span in which answers take too long.
#[derive(Clone, Copy, Debug)]
struct LatencyExcess {
    /// The awaited answers, and the answers a second, when it began.
    awaiting: f64,
    rate: f64,
    /// The sum of `(T / T* - 1) dt`, seconds.
    accumulated_excess: f64,
}

/// A span in which fewer answers are awaited than before.
#[derive(Clone, Copy, Debug)]
struct LimitTrial {
    since: Time,
    /// The answers since the first of those requests, and their seconds.
    answered: f64,
    seconds: f64,
}

#[derive(Clone, Copy, Debug)]
struct ActiveLimit {
    limit: f64,
    /// The awaited answers, which the limit is to reduce, and the rate of answers, which it is to keep.
    awaiting: f64,
    rate: f64,
    /// Whether it is known that fewer awaited answers leave their rate as it is.
    proven: bool,
    /// The span with fewer awaited answers.
    trial: Option<LimitTrial>,
    /// The last time at which the limit was in use, and at which a window was complete.
    last_used: Time,
    last_evaluated: Time,
}

impl Default for LimitState {
    fn default() -> Self {
        Self::Open { excess: None }
    }
}

impl LimitTrial {
    fn add(&mut self, window: &AnswerWindow) {
        self.answered += window.answered;
        self.seconds += window.seconds;
    }

    /// Returns whether answers come at this `rate` or more, once that can be decided. A lower rate may come
    /// from the moment in which members with fewer requests than others run out of them.
    fn keeps_rate(&self, rate: f64, now: Time) -> Option<bool> {
        let (surplus, deviation) = (self.answered - rate * self.seconds, libm::sqrt(rate * self.seconds));
        let is_decided =
            self.seconds > 0.0 && (surplus > 2.0 * deviation || now.since(self.since) >= TRIAL_DURATION);
        is_decided.then_some(surplus > -deviation)
    }
}

impl AnswerWindow {
    /// Adds the counts of a look.
    pub(crate) fn add(&mut self, sample: &Self) {
        self.seconds += sample.seconds;
        self.sent += sample.sent;
        self.answered += sample.answered;
        self.sample_count += sample.sample_count;
        self.awaiting_sum += sample.awaiting_sum;
        self.lag += sample.lag;
    }

    /// Returns the mean of the awaited answers.
    fn mean_awaiting(&self) -> f64 {
        self.awaiting_sum / self.sample_count.max(1.0)
    }
}

impl TrafficSampler {
    /// Takes a look, about ten times a second. Returns the counts since the last look, unless that is too
    /// long ago. `all`: the counts of the group up to then.
    pub(crate) fn sample(
        &mut self,
        vitals: &Vitals,
        totals: &GroupTotals,
        now: Time,
    ) -> Option<AnswerWindow> {
        let (begun, awaiting, unserved) = (vitals.begun_here(), vitals.awaiting_here(), vitals.unserved());
        let previous_awaiting = core::mem::replace(&mut self.awaiting, awaiting);
        let sent = f64::from(begun.wrapping_sub(core::mem::replace(&mut self.begun, begun)));
        let newly_unserved =
            f64::from(unserved.wrapping_sub(core::mem::replace(&mut self.unserved, unserved)));
        let previous_sample = self.sampled_at.replace(now);
        // Concurrent updates may make this negative by a few.
        let answered = (sent + f64::from(previous_awaiting) - f64::from(awaiting) - newly_unserved).max(0.0);
        let seconds = now.since(previous_sample?).as_secs_f64();
        if awaiting == 0 || answered > 0.0 || seconds > MAX_SAMPLE_GAP {
            self.silence = None;
        } else {
            let silence =
                self.silence.get_or_insert(SilentSpan { since: now, sent: 0.0, totals_at_start: *totals });
            silence.sent += sent;
        }
        let sample = AnswerWindow {
            seconds,
            sent,
            answered,
            sample_count: 1.0,
            awaiting_sum: f64::from(awaiting),
            lag: 0.0,
        };
        (seconds <= MAX_SAMPLE_GAP).then_some(sample)
    }

    /// Returns the length of the member's silence, if it is not chance. `all`: the counts of the group by
    /// now.
    ///
    /// Several requests must have been sent in that time. If each stayed unanswered as often as the others'
    /// requests in the same time, the probability that all of them do must be below one in a thousand.
    pub(crate) fn significant_silence(&self, totals: &GroupTotals, now: Time) -> Option<Duration> {
        let silence = self.silence.as_ref()?;
        let sent = totals.sent - silence.totals_at_start.sent - silence.sent;
        let answered = totals.answered - silence.totals_at_start.answered;
        let unanswered = (1.0 - answered / sent.max(1.0)).max(MIN_UNANSWERED_SHARE);
        let probability = libm::pow(unanswered, silence.sent);
        (silence.sent >= MIN_SILENT_REQUESTS && probability < SILENCE_FALSE_ALARM)
            .then(|| now.since(silence.since))
    }
}

impl ConcurrencyLimit {
    /// Returns the baseline for the handoff to the next process.
    pub(crate) fn handoff(&self) -> Self {
        Self { baseline: self.baseline, measured: self.measured, known: self.known, ..Self::default() }
    }

    /// Takes over a baseline, if it is plausible.
    pub(crate) fn restore(&mut self, previous: Self) {
        if previous.baseline.is_finite() && previous.baseline >= 0.0 {
            *self = previous.handoff();
        }
    }

    /// Removes the limit.
    pub(crate) fn remove_limit(&mut self) {
        self.state = LimitState::default();
    }

    /// Adds the counts of a look and returns the limit in requests, 0 for none. `took`: the time `T` of the
    /// latest answers, seconds. `patience`: the time that clients wait.
    pub(crate) fn observe(
        &mut self,
        sample: &AnswerWindow,
        latency: f64,
        max_latency: Duration,
        now: Time,
    ) -> u32 {
        self.window.add(sample);
        let window = self.window;
        let is_complete = window.answered >= MIN_WINDOW_ANSWERS || window.seconds >= MAX_WINDOW;
        if window.seconds >= MIN_WINDOW && is_complete {
            self.window = AnswerWindow::default();
            if window.answered > 0.0 && latency > 0.0 {
                self.evaluate(&window, latency, max_latency.as_secs_f64(), now);
            }
        }
        self.expire(now);
        match &self.state {
            LimitState::Open { .. } => 0,
            LimitState::Limited(limited) => libm::ceil(limited.limit) as u32,
        }
    }

    fn evaluate(&mut self, window: &AnswerWindow, latency: f64, max_latency: f64, now: Time) {
        let (rate, awaiting) = (window.answered / window.seconds, window.mean_awaiting());
        let client_lag = LAG_FACTOR * window.lag / window.sample_count.max(1.0);
        // The members' part of the time.
        let member_latency = (latency - client_lag).max(0.0);
        if self.baseline <= 0.0 || now.since(self.measured) > BASELINE_EXPIRY {
            (self.baseline, self.measured) = (latency, now);
            (self.answers, self.seconds, self.known) = (0.0, 0.0, false);
        }
        // The first answers are the fastest ones, and no mean.
        self.known |=
            self.answers >= MIN_BASELINE_ANSWERS && self.seconds >= MIN_BASELINE_SOJOURNS * self.baseline;
        let baseline_known = self.known;
        let allowed_latency = (max_latency * LATENCY_FRACTION).max(BASELINE_FACTOR * self.baseline);
        let is_over = baseline_known && member_latency > allowed_latency;
        match &mut self.state {
            LimitState::Open { excess } => {
                let is_held_off = now < self.held_off;
                // The baseline rises only as far as chance goes, or if a limit has shown that requests take
                // that long by themselves.
                let memory = if is_held_off { HOLDOFF_RISE_SECONDS } else { BASELINE_RISE_SECONDS };
                let weight = match latency < self.baseline {
                    _ if !baseline_known => window.answered / (self.answers + window.answered),
                    true => BASELINE_FALL,
                    false if is_held_off || latency < 2.0 * self.baseline => {
                        (window.seconds / memory).min(BASELINE_FALL)
                    }
                    false => 0.0,
                };
                self.baseline += (latency - self.baseline) * weight;
                self.measured = now;
                if !baseline_known {
                    self.answers += window.answered;
                    self.seconds += window.seconds;
                }
                if !is_over || is_held_off {
                    *excess = None;
                    return;
                }
                let excess_share = (member_latency / allowed_latency - 1.0) * window.seconds;
                let Some(latency_excess) = excess else {
                    *excess = Some(LatencyExcess { awaiting, rate, accumulated_excess: excess_share });
                    return;
                };
                latency_excess.accumulated_excess += excess_share;
                if latency_excess.accumulated_excess >= EXCESS_THRESHOLD {
                    // More requests are awaited and no more are answered: they queue.
                    let is_proven = awaiting > GROWN_QUEUE_FACTOR * latency_excess.awaiting
                        && rate < STEADY_RATE_FACTOR * latency_excess.rate;
                    self.state = LimitState::Limited(ActiveLimit {
                        limit: if is_proven {
                            awaiting / MAX_LIMIT_STEP
                        } else {
                            FIRST_LIMIT_FACTOR * awaiting
                        },
                        awaiting,
                        rate: rate.max(latency_excess.rate),
                        proven: is_proven,
                        trial: None,
                        last_used: now,
                        last_evaluated: now,
                    });
                }
            }
            LimitState::Limited(limited) => {
                limited.last_evaluated = now;
                let is_used = awaiting >= USED_LIMIT_SHARE * limited.limit;
                if is_used {
                    limited.last_used = now;
                }
                if awaiting <= TRIAL_AWAITING_SHARE * limited.awaiting && is_used {
                    let new_trial = LimitTrial { since: now, answered: 0.0, seconds: 0.0 };
                    let trial = limited.trial.get_or_insert(new_trial);
                    // The first answers belong to requests that were sent when more were awaited.
                    if now.since(trial.since).as_secs_f64() >= member_latency.min(MAX_WINDOW) {
                        trial.add(window);
                    }
                    match trial.keeps_rate(KEPT_RATE_SHARE * limited.rate, now) {
                        Some(true) => {
                            self.mistakes = 0;
                            (limited.awaiting, limited.proven, limited.trial) = (awaiting, true, None);
                        }
                        Some(false) => {
                            self.mistakes = (self.mistakes + 1).min(MAX_MISTAKES);
                            self.held_off = now + HOLD_OFF_DURATION * (1 << self.mistakes);
                            self.state = LimitState::default();
                            return;
                        }
                        None => {}
                    }
                }
                let target = rate * (allowed_latency + client_lag);
                let target = target + libm::sqrt(target) + 1.0;
                let first_factor = if limited.proven { 1.0 / MAX_LIMIT_STEP } else { FIRST_LIMIT_FACTOR };
                let min_limit = (limited.limit / MAX_LIMIT_STEP).max(first_factor * limited.awaiting);
                limited.limit = target.min(MAX_LIMIT_STEP * limited.limit).max(min_limit);
                if awaiting > limited.awaiting {
                    // The new number to reduce.
                    (limited.awaiting, limited.trial) = (awaiting, None);
                }
            }
        }
    }

    /// Ends a limit by time.
    fn expire(&mut self, now: Time) {
        if let LimitState::Limited(limited) = &self.state
            && (now.since(limited.last_used) >= UNUSED_EXPIRY
                || now.since(limited.last_evaluated) >= UNEVALUATED_EXPIRY)
        {
            self.remove_limit();
        }
    }
}

/// Seconds between two looks after which counting restarts: there was no traffic, or this process stood
/// still.
const MAX_SAMPLE_GAP: f64 = 0.5;

/// The minimum seconds of a window, the answers that it waits for, and its maximum seconds.
const MIN_WINDOW: f64 = 0.15;
const MIN_WINDOW_ANSWERS: f64 = 16.0;
const MAX_WINDOW: f64 = 1.0;

/// The maximum time of a request at a member, as a part of the time that clients wait, or as a multiple of
/// the baseline if that is more.
const LATENCY_FRACTION: f64 = 0.15;
const BASELINE_FACTOR: f64 = 3.0;

/// The number of times that this balancer's own delay enters the time of an answer: in sending and in
/// receiving.
const LAG_FACTOR: f64 = 2.0;

/// The part of the way that the baseline falls in a window, and the seconds in which it rises: usually, and
/// after a mistaken limit.
const BASELINE_FALL: f64 = 0.25;
const BASELINE_RISE_SECONDS: f64 = 60.0;
const HOLDOFF_RISE_SECONDS: f64 = 5.0;

/// The time without an answer after which a baseline is outdated.
const BASELINE_EXPIRY: Duration = Duration::from_secs(600);

/// The number of answers, and the multiple of their time, from which a baseline is known.
const MIN_BASELINE_ANSWERS: f64 = 64.0;
const MIN_BASELINE_SOJOURNS: f64 = 3.0;

/// The seconds of answers at twice the allowed time before there is a limit; with half of that excess it
/// takes twice as long.
const EXCESS_THRESHOLD: f64 = 0.4;

/// The part of the awaited requests that the first limit allows, and the maximum factor of a limit's change
/// in a window.
const FIRST_LIMIT_FACTOR: f64 = 0.7;
const MAX_LIMIT_STEP: f64 = 3.0;

/// The minimum growth of the awaited answers, and the maximum growth of their rate, if requests queue.
const GROWN_QUEUE_FACTOR: f64 = 1.5;
const STEADY_RATE_FACTOR: f64 = 1.1;

/// The part of the awaited answers that counts as fewer, and the part of the answer rate that counts as kept.
/// The latter is half way between the whole rate and the rate that is left if requests take that long by
/// themselves.
const TRIAL_AWAITING_SHARE: f64 = 0.75;
const KEPT_RATE_SHARE: f64 = 0.85;
const TRIAL_DURATION: Duration = Duration::from_secs(2);

/// The part of a limit from which it is in use, its life when it is not used, and its life without an answer.
const USED_LIMIT_SHARE: f64 = 0.7;
const UNUSED_EXPIRY: Duration = Duration::from_secs(1);
const UNEVALUATED_EXPIRY: Duration = Duration::from_secs(2);

/// The time without a limit after a mistaken one, and the maximum number of its doublings.
const HOLD_OFF_DURATION: Duration = Duration::from_secs(1);
const MAX_MISTAKES: u32 = 4;

/// The unanswered requests from which a member is silent, the probability below which that is not chance, and
/// the least assumed part of unanswered requests of the others.
const MIN_SILENT_REQUESTS: f64 = 3.0;
const SILENCE_FALSE_ALARM: f64 = 1e-3;
const MIN_UNANSWERED_SHARE: f64 = 0.05;

#[cfg(test)]
mod tests;
