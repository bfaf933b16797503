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
    received_at: AtomicU64,
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
        self.received_at.store(now.0.max(1), Relaxed);
        true
    }

    /// Returns `true` if the member has ever sent a report.
    pub(crate) fn was_ever_received(&self) -> bool {
        self.received_at.load(Relaxed) != 0
    }

    pub(crate) fn view(&self) -> Option<ReportView> {
        let received_at = self.received_at.load(Relaxed);
        let load_f32 = |cell: &AtomicU32| f32::from_bits(cell.load(Relaxed));
        (received_at != 0).then(|| ReportView {
            at: Time(received_at),
            begun: self.begun.load(Relaxed),
            reading: Reading {
                in_flight: self.in_flight.load(Relaxed),
                knee: load_f32(&self.knee).abs(),
                open: load_f32(&self.knee) < 0.0,
                work: load_f32(&self.work),
                mean_in_flight: load_f32(&self.mean_in_flight),
                sojourn: load_f32(&self.sojourn),
                slot: false,
            },
        })
    }

    /// Returns a separate copy of the present report.
    pub(crate) fn copy(&self) -> Self {
        let load_u32 = |cell: &AtomicU32| cell.load(Relaxed).into();
        Self {
            received_at: self.received_at.load(Relaxed).into(),
            begun: load_u32(&self.begun),
            in_flight: load_u32(&self.in_flight),
            knee: load_u32(&self.knee),
            work: load_u32(&self.work),
            mean_in_flight: load_u32(&self.mean_in_flight),
            sojourn: load_u32(&self.sojourn),
        }
    }

    pub(crate) fn forget(&self) {
        self.received_at.store(0, Relaxed);
    }
}

impl Reading {
    /// Returns `true` if the reading is plausible.
    pub(crate) fn is_plausible(&self) -> bool {
        let is_in_range = |value: f32, min: f32| (min..=MAX_VALUE).contains(&value);
        is_in_range(self.knee, 1.0)
            && is_in_range(self.work, MIN_SECONDS)
            && is_in_range(self.sojourn, MIN_SECONDS)
            && is_in_range(self.mean_in_flight, 0.0)
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
const MIN_SECONDS: f32 = 1e-9;

/// The greatest plausible number of seconds or requests.
const MAX_VALUE: f32 = 1e6;
