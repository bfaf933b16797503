//! A request as the meter of a side-car sees it: from its coming to the head of its answer, which is the last moment
//! at which something can still be said with it.

use std::sync::{Arc, Mutex};

use plimsoll_brain::Time;
use plimsoll_brain::meter::{Job, Meter, Reading};
use plimsoll_wire::reading::{self, Said};

use crate::group::Group;
use crate::inner::lock;

/// One request, counted out at the latest when it is dropped.
#[derive(Default)]
pub(crate) struct Metered {
    /// `None` if this is no side-car, there was no room, or the answer has gone.
    counted: Option<(Arc<Group>, Job, Time)>,
    /// The header of a refusal; empty if there was room.
    refusal: Vec<u8>,
}

impl Metered {
    /// Counts a request in, if there is room.
    pub(crate) fn begin(group: &Arc<Group>, now: Time) -> Self {
        let mut meter = lock(group.meter.get_or_init(|| Mutex::new(Meter::new(now))));
        if meter.full() {
            return Self { counted: None, refusal: line(meter.reading(), true) };
        }
        let job = meter.begin(now);
        Self { counted: Some((Arc::clone(group), job, now)), refusal: Vec::new() }
    }

    /// The header of a refusal; empty if there was room.
    pub(crate) fn refusal(&self) -> &[u8] {
        &self.refusal
    }

    /// The head of the answer is there: the header that goes with it, if this is a side-car.
    pub(crate) fn answered(&mut self, status: u16, now: Time) -> Vec<u8> {
        self.end(status < 500, now).map_or_else(Vec::new, |reading| line(reading, false))
    }

    fn end(&mut self, succeeded: bool, now: Time) -> Option<Reading> {
        let (group, job, _) = self.counted.take()?;
        Some(lock(group.meter.get()?).end(job, succeeded, now))
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        let Some(begun) = self.counted.as_ref().map(|(_, _, begun)| *begun) else { return };
        self.end(false, begun);
    }
}

fn line(reading: Reading, full: bool) -> Vec<u8> {
    let mut line = Vec::with_capacity(256);
    reading::write(&Said { reading, full }, &mut line);
    line
}
