//! The handoff of a member's live counts to the next process: all but the requests in flight, which the
//! previous process ends itself.

use core::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};

use super::Vitals;
use crate::Time;
use crate::meter::Reading;

/// The handed-off counts of one member. Both processes count time from the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct VitalsHandoff {
    begun: u32,
    streak: u32,
    lost: u32,
    ceiling: u32,
    /// Nanoseconds as f32, and the tick of the update.
    latency: Option<(f32, u32)>,
    /// The log-likelihood ratio, the outcomes, and the parole.
    suspicion: (f32, u64, bool),
    heard: Option<ReportHandoff>,
}

/// The last load report that came with an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct ReportHandoff {
    at: Time,
    begun: u32,
    reading: Reading,
}

impl Vitals {
    /// Returns the counts for the handoff.
    pub(crate) fn handoff(&self) -> VitalsHandoff {
        let packed = self.latency.load(Relaxed);
        let report = self.last_report.view();
        VitalsHandoff {
            begun: self.begun(),
            streak: self.streak(),
            lost: self.unserved(),
            ceiling: self.concurrency_limit.load(Relaxed),
            latency: self.mean_latency().map(|value| (value, packed as u32)),
            suspicion: self.failure_detector.handoff(),
            heard: report.map(|view| ReportHandoff { at: view.at, begun: view.begun, reading: view.reading }),
        }
    }

    /// Restores handed-off counts, as far as they are plausible. Nothing is in flight here yet.
    pub(crate) fn restore(&self, handoff: &VitalsHandoff, now: Time) {
        self.work.store(u64::from(handoff.begun) << 32, Relaxed);
        self.streak.store(handoff.streak, Relaxed);
        self.unserved.store(handoff.lost, Relaxed);
        self.concurrency_limit.store(handoff.ceiling, Relaxed);
        if let Some((value, tick)) = handoff.latency.filter(|(value, _)| value.is_finite() && *value >= 1.0) {
            self.latency.store(u64::from(value.to_bits()) << 32 | u64::from(tick), Relaxed);
        }
        self.failure_detector.restore(handoff.suspicion, now);
        if let Some(report) = handoff.heard.filter(|report| report.at <= now) {
            self.last_report.record(&report.reading, report.begun, report.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn what_is_left_is_what_is_taken_but_for_what_is_in_flight() {
        let (old_vitals, new_vitals, now) = (Vitals::default(), Vitals::default(), Time(5_000_000_000));
        old_vitals.begin();
        old_vitals.begin();
        old_vitals.end();
        old_vitals.record_failure();
        old_vitals.record_unserved();
        old_vitals.set_concurrency_limit(7);
        old_vitals.record_latency(Duration::from_millis(30), now, Duration::from_secs(10));
        old_vitals.failure_detector.record(true, 1e-4);
        let reading = Reading {
            in_flight: 3,
            knee: 4.0,
            work: 0.01,
            mean_in_flight: 2.0,
            sojourn: 0.02,
            ..Reading::default()
        };
        old_vitals.last_report.record(&reading, 2, now);
        let json = serde_json::to_string(&old_vitals.handoff()).unwrap();
        new_vitals.restore(&serde_json::from_str(&json).unwrap(), now);
        assert_eq!((new_vitals.in_flight(), new_vitals.begun()), (0, 2));
        assert_eq!(new_vitals.handoff(), old_vitals.handoff());
        assert_eq!(
            new_vitals.latency(now, Duration::from_secs(10)),
            old_vitals.latency(now, Duration::from_secs(10))
        );
    }

    #[test]
    fn what_cannot_be_true_is_left_out() {
        let (vitals, now) = (Vitals::default(), Time(1));
        let report = ReportHandoff {
            at: Time(9),
            begun: 1,
            reading: Reading { knee: 2.0, work: 1.0, ..Reading::default() },
        };
        let handoff = VitalsHandoff {
            latency: Some((f32::INFINITY, 1)),
            suspicion: (1.0, u64::MAX, true),
            heard: Some(report),
            ..VitalsHandoff::default()
        };
        vitals.restore(&handoff, now);
        assert_eq!(vitals.handoff(), VitalsHandoff::default());
        // Written by a version with more fields, or fewer.
        let handoff: VitalsHandoff = serde_json::from_str("{\"begun\": 3, \"colour\": \"red\"}").unwrap();
        assert_eq!(handoff, VitalsHandoff { begun: 3, ..VitalsHandoff::default() });
    }
}
