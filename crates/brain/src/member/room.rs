//! Has a member room for one more, by what is known of it?
//!
//! One that says with its answers how many requests it can work on at once (its knee) has room below that and twice the square
//! root of it: what queues there then keeps it busy through what comes by chance, and more would only wait (square-root
//! staffing, Halfin and Whitt 1981). One that says nothing has room below its ceiling, if one was found for it (`ceiling`).

use super::heard::View;
use super::{Member, Vitals};
use crate::Time;

impl Vitals {
    /// What the member last said, if that still means something.
    pub(crate) fn view(&self, now: Time) -> Option<View> {
        let view = self.heard.view()?;
        let (begun, in_flight) = self.work();
        // Answers that came without a word since: nobody speaks for this member any more.
        let silent = begun.wrapping_sub(view.begun).saturating_sub(in_flight) > SILENT;
        (!silent && now.nanos_since(view.at) <= STALE).then_some(view)
    }

    /// Returns the same of a member whose knee is a limit; without one it is limited like a member without load
    /// reports.
    pub(crate) fn limited(&self, now: Time) -> Option<View> {
        self.view(now).filter(|view| !view.reading.open)
    }

    /// What its answers took lately, seconds, if that still means something.
    pub(crate) fn seen(&self, now: Time) -> Option<f64> {
        let (latency, age) = self.blended_at(now)?;
        (age <= STALE).then(|| f64::from(latency) * 1e-9)
    }
}

impl Member {
    /// What the member last said, if that still means something.
    pub(crate) fn view(&self, now: Time) -> Option<View> {
        self.vitals.view(now)
    }

    /// Requests that the member has now, as far as can be known.
    pub(crate) fn queue(&self, view: &View, now: Time) -> f64 {
        self.queue_of(view, view.had(now))
    }

    /// The same: what it `had`, and what was sent to it since.
    pub(crate) fn queue_of(&self, view: &View, had: f64) -> f64 {
        let (begun, in_flight) = self.vitals.work();
        let here = f64::from(in_flight.saturating_sub(self.vitals.streaming()));
        let queue = had + f64::from(begun.wrapping_sub(view.begun));
        if queue > here { queue } else { here }
    }

    /// Has it as much to do as it can work on: by its knee, where it says that; else by the limit that was found for it?
    pub(crate) fn busy(&self, now: Time) -> bool {
        match self.view(now) {
            Some(said) => self.most(now).is_some_and(|most| self.queue(&said, now) >= f64::from(most)),
            None => self.vitals.crowded(),
        }
    }

    /// Is it so long since it said so, that it may be so no longer? Not if it has that many from here. Once something was sent there its
    /// answer tells.
    pub(crate) fn may_be_so_no_longer(&self, view: &View, now: Time) -> bool {
        let (begun, awaiting) = (self.vitals.begun(), self.vitals.awaiting());
        begun == view.begun && awaiting < view.limit() && view.sojourns(now) > OLD
    }

    /// Is it just back from an ejection, without a request that succeeded since? Then who can be sent only once does not try it.
    pub(crate) fn on_trial(&self, now: Time) -> bool {
        self.vitals.suspicion.spared(now)
    }

    /// How many requests it may have by the same; `None` for any number.
    pub(crate) fn most(&self, now: Time) -> Option<u32> {
        match self.view(now) {
            Some(said) if said.reading.open => self.vitals.ceiling().map(|peers| peers.max(said.limit())),
            Some(said) => Some(said.limit()),
            None => self.vitals.ceiling(),
        }
    }
}

/// `value` times e^-x for an `x` of 0 or more, to 0.012 of it: for each member that is looked at, and what fades is a guess.
fn fading(value: f64, x: f64) -> f64 {
    value / (1.0 + x * (1.0 + x * (1.0 / 2.0 + x * (1.0 / 6.0 + x * (1.0 / 24.0)))))
}

impl View {
    /// How old it is, in times that a request takes there.
    pub(crate) fn sojourns(&self, now: Time) -> f64 {
        now.seconds_since(self.at) / f64::from(self.reading.sojourn)
    }

    /// Requests that it had, but for what was sent there since: what it said, on its way to its mean for as long as a request takes.
    pub(crate) fn had(&self, now: Time) -> f64 {
        let mean = f64::from(self.reading.mean_in_flight);
        mean + fading(f64::from(self.reading.in_flight) - mean, self.sojourns(now))
    }

    /// By how much what is seen of it counts in place of what it said, 0 to 1: as much as has faded of that, and for as long as what was
    /// seen is no older than that it may be so. So a member that was slow, and is not asked for that, is tried again.
    pub(crate) fn faded(&self, now: Time) -> f64 {
        let age = self.sojourns(now);
        (1.0 - fading(1.0, age / FADES)) * fading(1.0, age / SEEN)
    }
}

/// Times that a request takes there, after which little is left of what it said last.
const OLD: f64 = 2.0;

/// Times that a request takes there, in which two thirds fade of what it said last, as against what is seen. Half or twice as many make no difference.
const FADES: f64 = 2.0;

/// Times that a request takes there, in which two thirds fade of what was seen. With 64 half of what is won by it is lost where there are many
/// balancers, with 256 a tenth, with 1024 nothing.
const SEEN: f64 = 1024.0;

/// Answers without a reading after which what the member said before is forgotten.
const SILENT: u32 = 16;

/// Nanoseconds after which what a member said is forgotten.
const STALE: u64 = 10_000_000_000;
