//! The last load report that a member sent with an answer, readable by all cores.
//!
//! Fields are written one by one: two answers at the same moment on two cores may leave a mixture of both,
//! which is as good as either.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::Time;
use crate::meter::{Reading, limit_at_knee};

/// The last [`Reading`] of a member and the time of its arrival.
#[derive(Debug, Default)]
pub(crate) struct LastReport {
    /// The time of arrival, nanoseconds; 0 for never.
    at: AtomicU64,
    /// The requests begun at the member by then.
    begun: AtomicU32,
    in_flight: AtomicU32,
    /// Negative while the knee is open.
    knee: AtomicU32,
    work: AtomicU32,
    mean_in_flight: AtomicU32,
    sojourn: AtomicU32,
}

/// A copy of the report at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportView {
    pub(crate) at: Time,
    pub(crate) begun: u32,
    /// The report. Its numbers are finite and not negative, `knee` is at least 1, `work` and `sojourn` are
    /// above 0.
    pub(crate) reading: Reading,
}

impl LastReport {
    /// Records a reading and returns `true`, or returns `false` if it is implausible.
    pub(crate) fn record(&self, reading: &Reading, begun: u32, now: Time) -> bool {
        if !reading.is_plausible() {
            return false;
        }
        self.begun.store(begun, Relaxed);
        self.in_flight.store(reading.in_flight, Relaxed);
        let knee = if reading.open { -reading.knee } else { reading.knee };
        self.knee.store(knee.to_bits(), Relaxed);
        self.work.store(reading.work.to_bits(), Relaxed);
        self.mean_in_flight.store(reading.mean_in_flight.to_bits(), Relaxed);
        self.sojourn.store(reading.sojourn.to_bits(), Relaxed);
        self.at.store(now.0.max(1), Relaxed);
        true
    }

    /// Returns `true` if the member has ever sent a report.
    pub(crate) fn was_ever_received(&self) -> bool {
        self.at.load(Relaxed) != 0
    }

    pub(crate) fn view(&self) -> Option<ReportView> {
        let at = self.at.load(Relaxed);
        let float = |cell: &AtomicU32| f32::from_bits(cell.load(Relaxed));
        (at != 0).then(|| ReportView {
            at: Time(at),
            begun: self.begun.load(Relaxed),
            reading: Reading {
                in_flight: self.in_flight.load(Relaxed),
                knee: float(&self.knee).abs(),
                open: float(&self.knee) < 0.0,
                work: float(&self.work),
                mean_in_flight: float(&self.mean_in_flight),
                sojourn: float(&self.sojourn),
                slot: false,
            },
        })
    }

    /// Returns a separate copy of the present report.
    pub(crate) fn copy(&self) -> Self {
        let four = |cell: &AtomicU32| cell.load(Relaxed).into();
        Self {
            at: self.at.load(Relaxed).into(),
            begun: four(&self.begun),
            in_flight: four(&self.in_flight),
            knee: four(&self.knee),
            work: four(&self.work),
            mean_in_flight: four(&self.mean_in_flight),
            sojourn: four(&self.sojourn),
        }
    }

    pub(crate) fn forget(&self) {
        self.at.store(0, Relaxed);
    }
}

impl Reading {
    /// Returns `true` if the reading is plausible.
    pub(crate) fn is_plausible(&self) -> bool {
        let sound = |value: f32, least: f32| (least..=MOST).contains(&value);
        sound(self.knee, 1.0)
            && sound(self.work, LEAST)
            && sound(self.sojourn, LEAST)
            && sound(self.mean_in_flight, 0.0)
    }
}

impl ReportView {
    /// Returns the number of requests at which balancers send the member no more; a lower bound of it while
    /// the knee is open.
    pub(crate) fn limit(&self) -> u32 {
        limit_at_knee(f64::from(self.reading.knee))
    }
}

/// The shortest plausible time, seconds: a nanosecond.
const LEAST: f32 = 1e-9;

/// The greatest plausible number of seconds or requests.
const MOST: f32 = 1e6;
