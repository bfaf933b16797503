//! The concurrency limit of a member, and whether it is reached.
//!
//! A member whose load reports contain a knee may have the knee and twice its square root. That queue keeps
//! it busy through random gaps, and more would only wait (square-root staffing, Halfin and Whitt 1981). A
//! member without load reports may have its learnt limit, if there is one (`concurrency`).

use super::heard::View;
use super::{Member, Vitals};
use crate::Time;

impl Vitals {
    /// Returns the member's last load report, if it still counts.
    pub(crate) fn view(&self, now: Time) -> Option<View> {
        let view = self.heard.view()?;
        let (begun, in_flight) = self.work();
        // Many answers without a report have come since: the member sends no reports any more.
        let silent = begun.wrapping_sub(view.begun).saturating_sub(in_flight) > SILENT;
        (!silent && now.nanos_since(view.at) <= STALE).then_some(view)
    }

    /// Returns the last load report of a member whose knee is a limit. Otherwise the member is limited like
    /// one without load reports.
    pub(crate) fn limited(&self, now: Time) -> Option<View> {
        self.view(now).filter(|view| !view.reading.open)
    }

    /// Returns the recent latency of its answers, seconds, if it still counts.
    pub(crate) fn seen(&self, now: Time) -> Option<f64> {
        let (latency, age) = self.blended_at(now)?;
        (age <= STALE).then(|| f64::from(latency) * 1e-9)
    }
}

impl Member {
    /// Returns the member's last load report, if it still counts.
    pub(crate) fn view(&self, now: Time) -> Option<View> {
        self.vitals.view(now)
    }

    /// Returns the estimated present requests of the member.
    pub(crate) fn queue(&self, view: &View, now: Time) -> f64 {
        self.queue_of(view, view.had(now))
    }

    /// Returns the estimated present requests of a member that `had` this number: those and the ones sent
    /// since.
    pub(crate) fn queue_of(&self, view: &View, had: f64) -> f64 {
        let (begun, in_flight) = self.vitals.work();
        let here = f64::from(in_flight.saturating_sub(self.vitals.streaming()));
        let queue = had + f64::from(begun.wrapping_sub(view.begun));
        if queue > here { queue } else { here }
    }

    /// Returns `true` if the member has reached its concurrency limit, by its knee or else by its learnt
    /// limit.
    pub(crate) fn busy(&self, now: Time) -> bool {
        match self.view(now) {
            Some(said) => self.most(now).is_some_and(|most| self.queue(&said, now) >= f64::from(most)),
            None => self.vitals.crowded(),
        }
    }

    /// Returns `true` if a report of a reached limit is so old that it may be outdated. It is not if that
    /// many are in flight from here, or if a request was sent since, whose answer brings a new report.
    pub(crate) fn may_be_so_no_longer(&self, view: &View, now: Time) -> bool {
        let (begun, awaiting) = (self.vitals.begun(), self.vitals.awaiting());
        begun == view.begun && awaiting < view.limit() && view.sojourns(now) > OLD
    }

    /// Returns `true` if the member is just back from an ejection, without a success since. Requests that can
    /// be sent only once then avoid it.
    pub(crate) fn on_trial(&self, now: Time) -> bool {
        self.vitals.suspicion.spared(now)
    }

    /// Returns the member's concurrency limit; `None` for none.
    pub(crate) fn most(&self, now: Time) -> Option<u32> {
        match self.view(now) {
            Some(said) if said.reading.open => self.vitals.ceiling().map(|peers| peers.max(said.limit())),
            Some(said) => Some(said.limit()),
            None => self.vitals.ceiling(),
        }
    }
}

/// Returns about `value * e^-x` for an `x` of 0 or more, to 0.012. It runs for each member that is looked at,
/// and the rate of fading is a guess anyway.
fn fading(value: f64, x: f64) -> f64 {
    value / (1.0 + x * (1.0 + x * (1.0 / 2.0 + x * (1.0 / 6.0 + x * (1.0 / 24.0)))))
}

impl View {
    /// Returns the age of the report, as a multiple of the time that a request takes there.
    pub(crate) fn sojourns(&self, now: Time) -> f64 {
        now.seconds_since(self.at) / f64::from(self.reading.sojourn)
    }

    /// Returns the member's requests without those sent since: the reported number, which fades into the mean
    /// within the time of a request.
    pub(crate) fn had(&self, now: Time) -> f64 {
        let mean = f64::from(self.reading.mean_in_flight);
        mean + fading(f64::from(self.reading.in_flight) - mean, self.sojourns(now))
    }

    /// Returns the weight, 0 to 1, by which observation replaces the report.
    ///
    /// It grows as the report fades. It falls as an observation of the report's age may be outdated, so that
    /// a slow member that gets no requests is tried again.
    pub(crate) fn faded(&self, now: Time) -> f64 {
        let age = self.sojourns(now);
        (1.0 - fading(1.0, age / FADES)) * fading(1.0, age / SEEN)
    }
}

/// The age, in times of a request there, after which little is left of a report.
const OLD: f64 = 2.0;

/// The age, in times of a request there, after which two thirds of a report have faded against observation.
/// Half or twice as many make no difference.
const FADES: f64 = 2.0;

/// The age, in times of a request there, after which two thirds of an observation have faded. With many
/// balancers, 64 loses half of the gain, 256 a tenth, and 1024 nothing.
const SEEN: f64 = 1024.0;

/// The answers without a report after which the last report is ignored.
const SILENT: u32 = 16;

/// The age after which a report is ignored, nanoseconds.
const STALE: u64 = 10_000_000_000;
