//! A look at the traffic, several times a second: do requests pile up, and how many may a member have that says nothing
//! of itself (`member::ceiling`)?
//!
//! They pile up where answers take several times as long as they had to, and
//!
//! * several times as many are in flight with the group as a whole as the members have to have, and they become more window
//!   after window, or many that come are not served, or it has been so for seconds (a little too much takes its time),
//! * or a tenth of those that come are given up by their clients, or fail.
//!
//! What stays for its own sake (streams, sockets) makes for more and more too, but for none that are slow. A member that has
//! become slow has more of them, and others then have fewer; work that has become longer makes for more of them, but not for
//! ever more.

use alloc::sync::Arc;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use super::Analyzer;
use crate::Time;
use crate::member::ceiling::{LOST, Limit, Window};

/// The slow path's memory of a group's traffic.
#[derive(Clone, Debug, Default)]
pub(super) struct Crowd {
    window: Window,
    /// Requests in flight, mean of the last window, and windows in a row with more of them.
    mean: f64,
    grown: u32,
    /// Windows in a row with many times as many as there have to be.
    many: u32,
    /// Windows in a row in which many were given up or failed.
    losing: u32,
    /// Least latency of answers there was, nanoseconds; 0 for none.
    floor: f64,
    /// Until this, unless requests pile up still.
    pressed: Option<Time>,
    /// How many the group may have. Where many balancers share the members each has less than one request with most of them,
    /// and no whole number is a ceiling for that; all members together it has enough of to count.
    limit: Limit,
    /// The same, for plans.
    pub(super) most: Arc<AtomicU32>,
}

impl Analyzer {
    /// Takes a look; no limits if what is in flight from here is not all `requests`. To be called again after the time that is returned, sooner or later if need be.
    pub fn watch(&mut self, requests: bool, now: Time) -> Duration {
        self.advance(now);
        let wide = self.look_through();
        if !(requests && self.spec.admits()) {
            for entry in &mut self.entries {
                entry.vitals.allow(0);
            }
            self.crowd.most.store(0, Relaxed);
            return if wide { BUSY } else { REST };
        }
        let (mut all, mut usual, mut known) = (Window::default(), 0.0, 0.0);
        for entry in &mut self.entries {
            if let Some(look) = entry.ceiling.look(&entry.vitals, self.now) {
                all.add(&look);
                known += 1.0;
            }
            usual += entry.ceiling.usual();
        }
        let busy = self.entries.iter().any(|entry| entry.vitals.in_flight() > 0);
        if known > 0.0 {
            // Members are looked at side by side, not one after the other.
            let look = Window { seconds: all.seconds / known, looks: 1.0, ..all };
            self.crowd.limit.add(&look);
            self.crowd.look(&look);
        }
        let in_flight = all.sum as u32;
        let eligible = || self.entries.iter().filter(|entry| entry.state.eligible());
        let (mut took, mut count) = (0.0, 0.0);
        for latency in eligible().filter_map(|entry| entry.vitals.blended()) {
            took += f64::from(latency);
            count += 1.0;
        }
        let near = self.crowd.limit.near(in_flight)
            || 2 * eligible().filter(|entry| entry.ceiling.near()).count() > eligible().count();
        // Without requests from here they say something of what clients have with members themselves, if anything.
        let here = all.came > 0.0 || all.sum > 0.0;
        let slower = self.crowd.slower(if here && count > 0.0 { took / count } else { 0.0 });
        if (slower > SLOW && self.crowd.piling()) || (near && slower > STILL_SLOW) {
            self.crowd.pressed = Some(self.now + CALM);
        }
        if self.crowd.pressed.is_some_and(|until| until <= self.now) {
            self.crowd.pressed = None;
        }
        let pressed = self.crowd.pressed.is_some();
        let typical = usual / self.entries.len().max(1) as f64;
        for entry in &mut self.entries {
            entry.ceiling.follow(&entry.vitals, pressed, typical);
        }
        let least = self.crowd.least();
        self.crowd.most.store(self.crowd.limit.follow(in_flight, pressed, usual, least), Relaxed);
        if busy || wide { BUSY } else { REST }
    }
}

impl Analyzer {
    /// Lets each member be given what `rate` requests a second come to since the last call, or any number without one; to be called every
    /// ten milliseconds or so where there is a rate, and before a plan with new members is made. How many may be given to all of them now.
    pub fn fill(&mut self, rate: Option<f64>, now: Time) -> u32 {
        self.advance(now);
        let (now, mut all) = (self.now, 0_u32);
        for (entry, spec) in self.entries.iter_mut().zip(&self.spec.members) {
            let more = entry.bucket.fill(&entry.vitals, rate, now);
            if entry.state.eligible() {
                let allowed = spec.limit.min(entry.vitals.part().unwrap_or(u32::MAX));
                all = all.saturating_add(more.min(allowed.saturating_sub(entry.vitals.in_flight())));
            }
        }
        all
    }
}

impl Crowd {
    fn look(&mut self, look: &Window) {
        self.window.add(look);
        if self.window.seconds < WINDOW {
            return;
        }
        let window = core::mem::take(&mut self.window);
        let mean = window.mean();
        let grows = mean > GROWTH * self.mean || window.served < SERVED * window.came;
        self.grown = if grows { self.grown.saturating_add(1) } else { 0 };
        self.mean = mean;
        let losing = window.came >= FEW && window.lost > LOST * window.came;
        self.losing = if losing { self.losing.saturating_add(1) } else { 0 };
        let usual = self.limit.usual();
        let many = usual > 0.0 && mean > FEW + MANY * usual;
        self.many = if many { self.many.saturating_add(1) } else { 0 };
    }

    /// How many times the least there was the latency of the latest answers is.
    fn slower(&mut self, latency: f64) -> f64 {
        if latency <= 0.0 {
            return 0.0;
        }
        if self.floor <= 0.0 {
            self.floor = latency;
        }
        let rise = if self.pressed.is_some() || self.grown > 0 { 0.0 } else { RISE };
        self.floor += (latency - self.floor) * if latency < self.floor { FALL } else { rise };
        latency / self.floor
    }

    /// Seconds of the least latency of answers there was.
    fn least(&self) -> f64 {
        if self.floor > 0.0 { self.floor / 1e9 } else { f64::INFINITY }
    }

    /// Do requests pile up?
    fn piling(&self) -> bool {
        self.losing >= GROWN || (self.many > 0 && (self.grown >= GROWN || self.many >= LONG))
    }
}

/// Between two looks where there is traffic, and where there is none.
const BUSY: Duration = Duration::from_millis(100);
const REST: Duration = Duration::from_secs(1);

/// Requests in flight that are never many.
const FEW: f64 = 16.0;

/// How many times as slow as they had to be answers are where requests pile up, and where they would without ceilings.
const SLOW: f64 = 3.0;
const STILL_SLOW: f64 = 1.5;

/// Shares of the way to a lower and to a higher latency that the least goes in a look.
const FALL: f64 = 0.05;
const RISE: f64 = 0.001;

/// How long ceilings stay when neither the group nor half of the members are near theirs.
const CALM: Duration = Duration::from_secs(2);

/// Seconds of a window.
const WINDOW: f64 = 0.25;

/// How many times as many as in the window before are more, and for how many windows in a row.
const GROWTH: f64 = 1.08;
const GROWN: u32 = 4;

/// For how many windows in a row many are too many though they hardly become more.
const LONG: u32 = 8;

/// How many times as many as the members have to have are many: work five times as long as before is not too much.
const MANY: f64 = 10.0;

/// Share of the requests that come that is served where nothing piles up, at least.
const SERVED: f64 = 0.9;
