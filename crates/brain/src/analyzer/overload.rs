//! A look at the traffic, several times a second. It sets concurrency limits for members that send no load
//! reports (`member::concurrency`), and ejects members that answer nothing.
//!
//! If the strategy uses load, one limit holds for all members together. The strategy shares it out among
//! them, and each of many balancers has enough requests in all to measure by. Otherwise each member has a
//! limit of its own, because a weak member would fill that of the group.

use alloc::format;
use alloc::sync::Arc;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use super::Analyzer;
use super::outlier::EjectionState;
use crate::member::concurrency_limit::{AnswerWindow, ConcurrencyLimit, GroupTotals};
use crate::{Time, meter};

/// The state learnt from a group's traffic.
#[derive(Clone, Debug, Default)]
pub(super) struct OverloadDetector {
    /// The limit of all members together.
    limit: ConcurrencyLimit,
    /// The limit in requests, for plans; 0 for none.
    pub(super) group_limit: Arc<AtomicU32>,
    /// The largest delay of this balancer's own event loops since the last look.
    lag: Duration,
    totals: GroupTotals,
    /// The time to the head of the latest answers of members without load reports, the mean over members by
    /// their answers, seconds.
    answer_latency: f64,
    /// The same time over all members.
    group_latency: f64,
}

impl Analyzer {
    /// Records the delay of an event by this balancer itself: its loop was busy, or its process stood still.
    /// Such a delay is no evidence about members.
    pub fn record_loop_delay(&mut self, lag: Duration) {
        self.overload.lag = self.overload.lag.max(lag);
    }

    /// Takes a look; sets no limits if not everything in flight from here is `requests`. Returns the time
    /// until the next call.
    pub fn watch(&mut self, requests: bool, now: Time) -> Duration {
        self.advance(now);
        self.update_aperture();
        let lag = core::mem::take(&mut self.overload.lag).as_secs_f64();
        let (now, max_wait) = (self.now, self.spec.objective.unwrap_or(DEFAULT_MAX_WAIT));
        let enforce_limits = requests && self.spec.has_admission();
        let limits_group = self.spec.strategy.prefers_less_load;
        let peer_limit = if enforce_limits && limits_group { self.limit_of_peers() } else { 0 };
        let (mut group_window, mut sampled_count, mut latency_sum) = (AnswerWindow::default(), 0.0, 0.0);
        let (mut totals, mut total_latency) = (GroupTotals::default(), 0.0);
        for entry in &mut self.entries {
            let window = entry.traffic.sample(&entry.vitals, &self.overload.totals, now);
            let latency = entry.vitals.mean_latency().map_or(0.0, |nanos| f64::from(nanos) * 1e-9);
            if let Some(window) = &window {
                totals.sent += window.sent;
                totals.answered += window.answered;
                total_latency += window.answered * latency;
            }
            let window = window.map(|window| AnswerWindow { lag, ..window });
            let limit = match &window {
                Some(window) if enforce_limits && !limits_group => {
                    entry.limit.observe(window, latency, max_wait, now)
                }
                _ => {
                    entry.limit.remove_limit();
                    // The limit of a member whose knee is open; those whose knees are limits do not use it.
                    entry.vitals.current_report(now).map_or(0, |_| peer_limit)
                }
            };
            entry.vitals.set_concurrency_limit(limit);
            if let Some(window) =
                window.filter(|_| !(limits_group && entry.vitals.limiting_report(now).is_some()))
            {
                group_window.add(&window);
                latency_sum += window.answered * latency;
                sampled_count += 1.0;
            }
        }
        if totals.answered > 0.0 {
            self.overload.group_latency = total_latency / totals.answered;
        }
        let group_limit = if enforce_limits && limits_group && sampled_count > 0.0 {
            // Members are measured side by side, not one after the other.
            let mean_window = AnswerWindow {
                seconds: group_window.seconds / sampled_count,
                sample_count: 1.0,
                lag,
                ..group_window
            };
            self.overload.answer_latency = if mean_window.answered > 0.0 {
                latency_sum / mean_window.answered
            } else {
                self.overload.answer_latency
            };
            self.overload.limit.observe(&mean_window, self.overload.answer_latency, max_wait, now)
        } else {
            self.overload.limit.remove_limit();
            0
        };
        self.overload.group_limit.store(group_limit, Relaxed);
        self.overload.totals.sent += totals.sent;
        self.overload.totals.answered += totals.answered;
        if requests {
            self.eject_silent();
        }
        WATCH_INTERVAL
    }

    /// Returns the limit that the mean knee of members with bounded knees allows; 0 unless half of those that
    /// send load reports have one.
    fn limit_of_peers(&self) -> u32 {
        let (mut knee_sum, mut bounded_count, mut view_count) = (0.0, 0.0, 0.0);
        for view in self.entries.iter().filter_map(|entry| entry.vitals.current_report(self.now)) {
            view_count += 1.0;
            if !view.reading.open {
                knee_sum += f64::from(view.reading.knee);
                bounded_count += 1.0;
            }
        }
        if bounded_count > 0.0 && 2.0 * bounded_count >= view_count {
            meter::limit_at_knee(knee_sum / bounded_count)
        } else {
            0
        }
    }

    /// Ejects members that have answered none of several requests while others answer.
    fn eject_silent(&mut self) {
        let (group_latency, totals) = (self.overload.group_latency, self.overload.totals);
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            let Some(silence) = entry.traffic.significant_silence(&totals, self.now) else { continue };
            let seconds = silence.as_secs_f64();
            if entry.state.is_eligible()
                && silence >= MIN_SILENCE
                && seconds > MAX_LATENCY_RATIO * group_latency
            {
                let awaiting = entry.vitals.awaiting_here();
                let reason =
                    format!("answers none of {awaiting} requests for {seconds:.1} s while others answer");
                let inputs = [("awaited", f64::from(awaiting)), ("silent_seconds", seconds)];
                self.eject_by(index, reason, &inputs, EjectionState::begin_on_suspicion);
            }
        }
    }

    /// Fills each member's bucket with `rate` requests a second since the last call; without a rate it is
    /// unlimited. Returns the requests that all members may get now.
    ///
    /// With a rate it is to be called about every ten milliseconds, and before a plan with new members is
    /// made.
    pub fn refill_buckets(&mut self, rate: Option<f64>, now: Time) -> u32 {
        self.advance(now);
        let (now, mut total_room) = (self.now, 0_u32);
        for (entry, spec) in self.entries.iter_mut().zip(&self.spec.members) {
            let available = entry.bucket.refill(&entry.vitals, rate, now);
            if entry.state.is_eligible() {
                let limit = spec.limit.min(entry.vitals.part().unwrap_or(u32::MAX));
                total_room =
                    total_room.saturating_add(available.min(limit.saturating_sub(entry.vitals.in_flight())));
            }
        }
        total_room
    }
}

/// The time between two looks, without traffic too: a baseline that is measured a second after the first
/// request may be that of a queue.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// The default time that clients wait.
pub(crate) const DEFAULT_MAX_WAIT: Duration = Duration::from_secs(1);

/// The time without an answer after which a member is ejected: the minimum, and the multiple of the group's
/// latency.
const MIN_SILENCE: Duration = Duration::from_secs(1);
const MAX_LATENCY_RATIO: f64 = 8.0;
