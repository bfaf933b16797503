//! The concurrency limit of a member, and whether it is reached.
//!
//! A member whose load reports contain a knee may have the knee and twice its square root. That queue keeps
//! it busy through random gaps, and more would only wait (square-root staffing, Halfin and Whitt 1981). A
//! member without load reports may have its learnt limit, if there is one (`concurrency_limit`).

use super::last_report::ReportView;
use super::{Member, Vitals};
use crate::Time;

impl Vitals {
    /// Returns the member's last load report, if it still counts.
    pub(crate) fn current_report(&self, now: Time) -> Option<ReportView> {
        let view = self.last_report.view()?;
        let (begun, in_flight) = self.begun_and_in_flight();
        // Many answers without a report have come since: the member sends no reports any more.
        let is_silent = begun.wrapping_sub(view.begun).saturating_sub(in_flight) > MAX_UNREPORTED;
        (!is_silent && now.nanos_since(view.at) <= REPORT_EXPIRY_NANOS).then_some(view)
    }

    /// Returns the last load report of a member whose knee is a limit. Otherwise the member is limited like
    /// one without load reports.
    pub(crate) fn limiting_report(&self, now: Time) -> Option<ReportView> {
        self.current_report(now).filter(|view| !view.reading.open)
    }

    /// Returns the recent latency of its answers, seconds, if it still counts.
    pub(crate) fn observed_latency(&self, now: Time) -> Option<f64> {
        let (latency, age) = self.latency_and_age(now)?;
        (age <= REPORT_EXPIRY_NANOS).then(|| f64::from(latency) * 1e-9)
    }
}

impl Member {
    /// Returns the member's last load report, if it still counts.
    pub(crate) fn current_report(&self, now: Time) -> Option<ReportView> {
        self.vitals.current_report(now)
    }

    /// Returns the estimated present requests of the member.
    pub(crate) fn estimated_queue(&self, view: &ReportView, now: Time) -> f64 {
        self.estimated_queue_from(view, view.faded_in_flight(now))
    }

    /// Returns the estimated present requests of a member that `had` this number: those and the ones sent
    /// since.
    pub(crate) fn estimated_queue_from(&self, view: &ReportView, reported_in_flight: f64) -> f64 {
        let (begun, in_flight) = self.vitals.begun_and_in_flight();
        let own_in_flight = f64::from(in_flight.saturating_sub(self.vitals.streaming()));
        let queue = reported_in_flight + f64::from(begun.wrapping_sub(view.begun));
        if queue > own_in_flight { queue } else { own_in_flight }
    }

    /// Returns `true` if the member has reached its concurrency limit, by its knee or else by its learnt
    /// limit.
    pub(crate) fn is_at_limit(&self, now: Time) -> bool {
        match self.current_report(now) {
            Some(view) => self
                .concurrency_limit(now)
                .is_some_and(|limit| self.estimated_queue(&view, now) >= f64::from(limit)),
            None => self.vitals.is_at_learnt_limit(),
        }
    }

    /// Returns `true` if a report of a reached limit is so old that it may be outdated. It is not if that
    /// many are in flight from here, or if a request was sent since, whose answer brings a new report.
    pub(crate) fn may_be_outdated(&self, view: &ReportView, now: Time) -> bool {
        let (begun, awaiting) = (self.vitals.begun(), self.vitals.awaiting());
        begun == view.begun && awaiting < view.limit() && view.age_in_sojourns(now) > OUTDATED_SOJOURNS
    }

    /// Returns `true` if the member is just back from an ejection, without a success since. Requests that can
    /// be sent only once then avoid it.
    pub(crate) fn is_on_trial(&self, now: Time) -> bool {
        self.vitals.failure_detector.is_spared(now)
    }

    /// Returns the member's concurrency limit; `None` for none.
    pub(crate) fn concurrency_limit(&self, now: Time) -> Option<u32> {
        match self.current_report(now) {
            Some(view) if view.reading.open => {
                self.vitals.concurrency_limit().map(|peer_limit| peer_limit.max(view.limit()))
            }
            Some(view) => Some(view.limit()),
            None => self.vitals.concurrency_limit(),
        }
    }
}

/// Returns about `value * e^-x` for an `x` of 0 or more, to 0.012. It runs for each member that is looked at,
/// and the rate of fading is a guess anyway.
fn exp_decay(value: f64, age: f64) -> f64 {
    value / (1.0 + age * (1.0 + age * (1.0 / 2.0 + age * (1.0 / 6.0 + age * (1.0 / 24.0)))))
}

impl ReportView {
    /// Returns the age of the report, as a multiple of the time that a request takes there.
    pub(crate) fn age_in_sojourns(&self, now: Time) -> f64 {
        now.seconds_since(self.at) / f64::from(self.reading.sojourn)
    }

    /// Returns the member's requests without those sent since: the reported number, which fades into the mean
    /// within the time of a request.
    pub(crate) fn faded_in_flight(&self, now: Time) -> f64 {
        let mean = f64::from(self.reading.mean_in_flight);
        mean + exp_decay(f64::from(self.reading.in_flight) - mean, self.age_in_sojourns(now))
    }

    /// Returns the weight, 0 to 1, by which observation replaces the report.
    ///
    /// It grows as the report fades. It falls as an observation of the report's age may be outdated, so that
    /// a slow member that gets no requests is tried again.
    pub(crate) fn observation_weight(&self, now: Time) -> f64 {
        let age = self.age_in_sojourns(now);
        (1.0 - exp_decay(1.0, age / FADE_SOJOURNS)) * exp_decay(1.0, age / OBSERVATION_SOJOURNS)
    }
}

/// The age, in times of a request there, after which little is left of a report.
const OUTDATED_SOJOURNS: f64 = 2.0;

/// The age, in times of a request there, after which two thirds of a report have faded against observation.
/// Half or twice as many make no difference.
const FADE_SOJOURNS: f64 = 2.0;

/// The age, in times of a request there, after which two thirds of an observation have faded. With many
/// balancers, 64 loses half of the gain, 256 a tenth, and 1024 nothing.
const OBSERVATION_SOJOURNS: f64 = 1024.0;

/// The answers without a report after which the last report is ignored.
const MAX_UNREPORTED: u32 = 16;

/// The age after which a report is ignored, nanoseconds.
const REPORT_EXPIRY_NANOS: u64 = 10_000_000_000;
