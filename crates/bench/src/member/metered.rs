//! The meter of a member that says with each answer how loaded it is, as a server with an agent beside it does: the
//! same meter, but within the member, where it sees every request from its head to its answer.

use std::cell::RefCell;
use std::time::Instant;

use plimsoll_brain::Time;
use plimsoll_brain::meter::{Job, Meter, Reading};
use plimsoll_wire::reading::{self, Said, Unseen};

/// The meter of one member, with its clock.
pub(super) struct Gauge {
    start: Instant,
    meter: RefCell<Meter>,
}

impl Gauge {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), meter: RefCell::new(Meter::new(Time(0))) }
    }

    /// Counts a request in; the header line of a refusal if there is no room.
    pub(super) fn begin(&self) -> Result<Metered<'_>, Vec<u8>> {
        let mut meter = self.meter.borrow_mut();
        if meter.full() {
            return Err(line(meter.reading(), true));
        }
        Ok(Metered { counted: Some((self, meter.begin(self.now()))) })
    }

    fn now(&self) -> Time {
        Time(0) + self.start.elapsed()
    }
}

/// One request, counted out at the latest when it is dropped: then it has not succeeded.
#[derive(Default)]
pub(super) struct Metered<'a> {
    /// `None` if the member has no meter, or once it is answered.
    counted: Option<(&'a Gauge, Job)>,
}

impl Metered<'_> {
    /// The request is answered: the header line that goes with the answer, empty if there is no meter.
    pub(super) fn end(&mut self, succeeded: bool) -> Vec<u8> {
        let Some((gauge, job)) = self.counted.take() else { return Vec::new() };
        let reading = gauge.meter.borrow_mut().end(job, succeeded, gauge.now());
        line(reading, false)
    }
}

impl Drop for Metered<'_> {
    fn drop(&mut self) {
        self.end(false);
    }
}

fn line(reading: Reading, full: bool) -> Vec<u8> {
    let mut line = Vec::with_capacity(256);
    reading::write(&Said { reading, unseen: full.then_some(Unseen::Full) }, &mut line);
    line
}
