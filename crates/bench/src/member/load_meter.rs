//! The meter of a member that sends a load report with each answer. It is the same meter as in an agent
//! beside a server, but within the member, where it sees every request from its head to its answer.

use std::cell::RefCell;
use std::time::Instant;

use plimsoll_brain::Time;
use plimsoll_brain::meter::{Meter, MeteredRequest, Reading};
use plimsoll_wire::load_report::{self, LoadReport, NotProcessed};

/// The meter of one member, with its clock.
pub(super) struct LoadMeter {
    start: Instant,
    meter: RefCell<Meter>,
}

impl LoadMeter {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), meter: RefCell::new(Meter::new(Time(0))) }
    }

    /// Counts a request as begun; returns the header line of a refusal if the concurrency limit is reached.
    pub(super) fn begin(&self) -> Result<CountedRequest<'_>, Vec<u8>> {
        let mut meter = self.meter.borrow_mut();
        if meter.is_full() {
            return Err(report_line(meter.reading(), true));
        }
        Ok(CountedRequest { metered: Some((self, meter.begin(self.now()))) })
    }

    fn now(&self) -> Time {
        Time(0) + self.start.elapsed()
    }
}

/// A counted request; dropped before its end, it counts as failed.
#[derive(Default)]
pub(super) struct CountedRequest<'a> {
    /// `None` if the member has no meter, or after the answer.
    metered: Option<(&'a LoadMeter, MeteredRequest)>,
}

impl CountedRequest<'_> {
    /// Ends the request; returns the header line of the answer, empty if there is no meter.
    pub(super) fn end(&mut self, succeeded: bool) -> Vec<u8> {
        let Some((load_meter, request)) = self.metered.take() else { return Vec::new() };
        let reading = load_meter.meter.borrow_mut().end(request, succeeded, load_meter.now());
        report_line(reading, false)
    }
}

impl Drop for CountedRequest<'_> {
    fn drop(&mut self) {
        self.end(false);
    }
}

fn report_line(reading: Reading, is_full: bool) -> Vec<u8> {
    let mut line = Vec::with_capacity(256);
    load_report::write(
        &LoadReport { reading, not_processed: is_full.then_some(NotProcessed::Full) },
        &mut line,
    );
    line
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::member::ServiceTime;
    use crate::member::sharing::ProcessorSharing;
    use crate::rng::SplitMix64;

    /// Ten clients with think times: the number of requests is sometimes above that of cores, sometimes
    /// below.
    #[test]
    fn the_knee_comes_near_the_number_of_cores() {
        let service: ServiceTime = "lognormal:10ms:1.2:300ms".parse().unwrap();
        let (mut processor, mut meter) = (ProcessorSharing::new(4.0, 1.0), Meter::new(Time(0)));
        let (mut rng, mut knees, mut request_times) = (SplitMix64::new(1), Vec::new(), [0.0_f64; 10]);
        while knees.len() < 2000 {
            let (client, request_time) = (0..10)
                .map(|client| (client, request_times[client]))
                .min_by(|a, b| a.1.total_cmp(&b.1))
                .unwrap();
            let next_end = processor.next_end().unwrap_or(f64::INFINITY);
            let now = Time(0) + Duration::from_secs_f64(request_time.min(next_end));
            let (client, reading) = if next_end <= request_time {
                let (client, request) = processor.pop_ended(next_end).unwrap();
                (client, meter.end(request, true, now))
            } else if meter.is_full() {
                (client, meter.reading())
            } else {
                request_times[client] = f64::INFINITY;
                processor.begin(
                    request_time,
                    service.draw(&mut rng).as_secs_f64(),
                    (client, meter.begin(now)),
                );
                continue;
            };
            knees.push(f64::from(reading.knee));
            request_times[client] = request_time.min(next_end) + rng.exponential() * 0.015;
        }
        // The mean of the reports after the learning phase. A single report may hold a trial limit, which is
        // lower to measure what is lost by it.
        let knee = knees[1000..].iter().sum::<f64>() / 1000.0;
        assert!((3.0..=6.0).contains(&knee), "{knee}");
    }
}
