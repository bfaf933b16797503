//! Side-car mode: the group is one server behind this process. A meter counts its requests, and each response
//! reports its load.
//!
//! A request is in the meter from its complete arrival to the head of its response, the last moment at which
//! the response can carry a report. A byte stream, which carries no report, is in the meter from its
//! beginning to its end.
//!
//! When balancers send an alert about the server, each connection that exists then leaves with the given
//! probability. It draws once ([`AlertState`]), and leaves at the boundary of a request, or while a byte
//! stream is idle. `http/shed_clients.rs` describes how HTTP clients leave.
//!
//! Side-cars of servers on one host count in that host's meter as well ([`HostMeter`]). A meter learns from
//! the order of events, so each has a lock, which is nearly always free. A side-car's data plane has one
//! worker for all of its servers, and the only other reader uses it ten times per second. With several
//! workers, they would contend for the host's lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_brain::Time;
use plimsoll_brain::meter::{HostedRequest, Meter, MeteredRequest, Reading, SharedHostMeter};
use plimsoll_wire::load_report::{self, LoadReport, NotProcessed};

use crate::runtime::sync::lock;

/// The meter of a host, shared by all side-cars of this process.
pub(crate) struct HostMeter(Mutex<SharedHostMeter>);

impl HostMeter {
    pub(crate) fn new(now: Time) -> Arc<Self> {
        Arc::new(Self(Mutex::new(SharedHostMeter::new(now))))
    }

    /// Returns the meter's current reading.
    pub(crate) fn reading(&self) -> Reading {
        lock(&self.0).reading()
    }
}

/// The state of the server behind a side-car.
pub(crate) struct SideCar {
    /// Always locked before the host's meter.
    meter: Mutex<Meter>,
    /// Present if other servers share the host.
    host: Option<Arc<HostMeter>>,
    /// The number of the last alert, and the bits of its share as an `f32`; 0 before the first.
    alert: AtomicU64,
}

impl SideCar {
    pub(crate) fn new(host: Option<Arc<HostMeter>>, now: Time) -> Self {
        Self { meter: Mutex::new(Meter::new(now)), host, alert: AtomicU64::new(0) }
    }

    /// Returns the current reading of the server's own meter.
    pub(crate) fn reading(&self) -> Reading {
        lock(&self.meter).reading()
    }

    /// Adds a request to the meter. If `refuse` is `true` and there is no room, returns the reading for the
    /// rejection instead.
    fn begin(&self, refuse: bool, now: Time) -> Result<MeterSlot, Reading> {
        let mut own = lock(&self.meter);
        let Some(host) = &self.host else {
            return if refuse && own.is_full() {
                Err(own.reading())
            } else {
                Ok(MeterSlot::Own(own.begin(now)))
            };
        };
        let mut host = lock(&host.0);
        if refuse && host.is_full(&own) {
            return Err(own.reading());
        }
        Ok(MeterSlot::Shared(host.begin(&mut own, now)))
    }

    /// Removes a request from the meter.
    fn end(&self, seat: MeterSlot, succeeded: bool, now: Time) -> Reading {
        let mut own = lock(&self.meter);
        match (seat, &self.host) {
            (MeterSlot::Own(job), _) => own.end(job, succeeded, now),
            (MeterSlot::Shared(jobs), Some(host)) => lock(&host.0).end(&mut own, jobs, succeeded, now),
            // A place in the host's meter implies the host.
            (MeterSlot::Shared(_), None) => own.reading(),
        }
    }

    /// Asks this share of the connections to leave: another alert, or with 0 the end of the last.
    pub(crate) fn request_shed(&self, share: f64) {
        let share = if share.is_finite() { share.clamp(0.0, 1.0) as f32 } else { 0.0 };
        let number = (self.alert.load(Relaxed) >> 32).wrapping_add(1) & u64::from(u32::MAX);
        self.alert.store(number << 32 | u64::from(share.to_bits()), Relaxed);
    }
}

/// The meter's guard of one request or byte stream, which removes it on drop at the latest. A pointer,
/// because every request has this field and only those of side-cars need the content.
#[derive(Default)]
pub(crate) struct MeterGuard(Option<Box<MeterState>>);

enum MeterState {
    /// The body is still arriving: the request is no load of the server yet.
    Arriving { side_car: Arc<SideCar> },
    /// The request is in the meter since `begun`.
    Active { side_car: Arc<SideCar>, slot: MeterSlot, begun: Time },
    /// There was no room: the header line that reports it.
    Rejected(Vec<u8>),
}

/// A request's place in the meter of its server, or in that and the host's.
enum MeterSlot {
    Own(MeteredRequest),
    Shared(HostedRequest),
}

impl MeterGuard {
    /// Adds a request to the meter if there is room, or if `refuse` is `false`.
    pub(crate) fn begin(side_car: &Arc<SideCar>, refuse: bool, now: Time) -> Self {
        let count = match side_car.begin(refuse, now) {
            Ok(seat) => MeterState::Active { side_car: Arc::clone(side_car), slot: seat, begun: now },
            Err(reading) => MeterState::Rejected(report_header(reading, Some(NotProcessed::Full))),
        };
        Self(Some(Box::new(count)))
    }

    /// Creates the guard of a request whose body is still arriving; a rejection if there is no room now.
    /// [`record_arrival`](Self::record_arrival) adds the request to the meter.
    pub(crate) fn begin_arriving(side_car: &Arc<SideCar>) -> Self {
        let full = {
            let own = lock(&side_car.meter);
            side_car.host.as_ref().map_or_else(|| own.is_full(), |host| lock(&host.0).is_full(&own))
        };
        if full {
            return Self::rejected(side_car);
        }
        Self(Some(Box::new(MeterState::Arriving { side_car: Arc::clone(side_car) })))
    }

    /// Returns `true` if the body is still arriving.
    #[inline]
    pub(crate) fn is_arriving(&self) -> bool {
        matches!(self.0.as_deref(), Some(MeterState::Arriving { .. }))
    }

    /// Adds a request to the meter whose body has arrived.
    pub(crate) fn record_arrival(&mut self, now: Time) {
        if let Some(MeterState::Arriving { side_car }) = self.0.as_deref() {
            *self = Self::begin(&Arc::clone(side_car), false, now);
        }
    }

    /// Creates the guard of a request that is rejected although there may be room, so that its client leaves.
    pub(crate) fn rejected(side_car: &SideCar) -> Self {
        Self(Some(Box::new(MeterState::Rejected(report_header(
            side_car.reading(),
            Some(NotProcessed::Full),
        )))))
    }

    /// Returns the header line of a rejection; empty if there was room.
    pub(crate) fn rejection_header(&self) -> &[u8] {
        match self.0.as_deref() {
            Some(MeterState::Rejected(line)) => line,
            _ => b"",
        }
    }

    /// Returns the header line of the balancer's own response when the server cannot be reached; empty
    /// without a side-car.
    pub(crate) fn unreachable_header(&self) -> Vec<u8> {
        match self.0.as_deref() {
            Some(MeterState::Active { side_car, .. } | MeterState::Arriving { side_car }) => {
                report_header(side_car.reading(), Some(NotProcessed::Away))
            }
            Some(MeterState::Rejected(line)) => line.clone(),
            None => Vec::new(),
        }
    }

    /// Records the head of the response, and returns the header line for it, if this is a side-car. `theirs`
    /// is the server's own value of that header. The clock is read for this: the meter would learn little
    /// from the time of an earlier event.
    pub(crate) fn record_response(
        &mut self,
        status: u16,
        theirs: Option<&[u8]>,
        tick: impl FnOnce() -> Time,
    ) -> Vec<u8> {
        if self.0.is_none() {
            return Vec::new();
        }
        let mut header =
            self.end(status < 500, tick()).map_or_else(Vec::new, |reading| report_header(reading, None));
        if let Some(theirs) = theirs {
            load_report::merge(theirs, &mut header);
        }
        header
    }

    /// Ends the request, and returns the meter's reading, if this is a side-car.
    pub(crate) fn end(&mut self, succeeded: bool, now: Time) -> Option<Reading> {
        match *self.0.take()? {
            MeterState::Active { side_car, slot: seat, .. } => Some(side_car.end(seat, succeeded, now)),
            MeterState::Arriving { side_car } => Some(side_car.reading()),
            MeterState::Rejected(_) => None,
        }
    }
}

impl Drop for MeterGuard {
    fn drop(&mut self) {
        if let Some(MeterState::Active { begun, .. }) = self.0.as_deref() {
            let begun = *begun;
            self.end(false, begun);
        }
    }
}

/// A client connection's state of alerts.
#[derive(Default)]
pub(crate) struct AlertState(Option<AlertTracker>);

struct AlertTracker {
    side_car: Arc<SideCar>,
    /// The number of the last alert for which it has drawn, or that preceded it.
    number: u32,
    /// Whether its client has left although the connection is kept, and how often.
    has_left: bool,
    departures: u32,
    /// The time until which a client that has returned is exempt.
    exempt_until: Time,
}

/// The minimum stay of a client that has returned; it doubles each further time.
const MIN_STAY: Duration = Duration::from_secs(8);

impl AlertState {
    /// Creates the state of a new connection, to which earlier alerts do not apply.
    pub(crate) fn begin(side_car: Option<&Arc<SideCar>>) -> Self {
        Self(side_car.map(|side_car| {
            let number = (side_car.alert.load(Relaxed) >> 32) as u32;
            AlertTracker {
                side_car: Arc::clone(side_car),
                number,
                has_left: false,
                departures: 0,
                exempt_until: Time(0),
            }
        }))
    }

    /// Records that its client leaves, and may return on the same connection.
    pub(crate) fn record_departure(&mut self) {
        if let Some(heard) = &mut self.0 {
            heard.has_left = true;
        }
    }

    /// Returns `true` if its client has returned recently. Then alerts do not apply to it: a few clients that
    /// go back and forth do not balance the load.
    pub(crate) fn is_exempt(&mut self, now: Time) -> bool {
        let Some(heard) = &mut self.0 else { return false };
        if std::mem::take(&mut heard.has_left) {
            heard.exempt_until = now + MIN_STAY * (1 << heard.departures.min(8));
            heard.departures += 1;
        }
        now < heard.exempt_until
    }

    /// Returns `true` if there is an alert for which it has not drawn.
    #[inline]
    pub(crate) fn has_new_alert(&self) -> bool {
        self.0.as_ref().is_some_and(|heard| (heard.side_car.alert.load(Relaxed) >> 32) as u32 != heard.number)
    }

    /// Returns `true` if the connection should leave now. Draws once for each alert, from 64 random bits;
    /// always `false` without a side-car.
    pub(crate) fn should_leave(&mut self, chance: impl FnOnce() -> u64) -> bool {
        let Some(AlertTracker { side_car, number: heard, .. }) = &mut self.0 else { return false };
        let alert = side_car.alert.load(Relaxed);
        let (number, share) = ((alert >> 32) as u32, f32::from_bits(alert as u32));
        if std::mem::replace(heard, number) == number {
            return false;
        }
        // The 24 bits of precision of a share.
        ((chance() >> 40) as f32) < share * (1 << 24) as f32
    }
}

fn report_header(reading: Reading, unseen: Option<NotProcessed>) -> Vec<u8> {
    let mut line = Vec::with_capacity(256);
    load_report::write(&LoadReport { reading, not_processed: unseen }, &mut line);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_asked_once_by_each_alert_and_not_by_those_before_them() {
        let side_car = Arc::new(SideCar::new(None, Time(0)));
        let mut early: Vec<AlertState> = (0..1000).map(|_| AlertState::begin(Some(&side_car))).collect();
        let mut chance = 0_u64;
        let mut gone = |all: &mut [AlertState]| {
            let mut count = 0;
            for one in all {
                chance = chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
                count += usize::from(one.should_leave(|| chance));
            }
            count
        };
        assert_eq!(gone(&mut early), 0);
        side_car.request_shed(0.3);
        let mut late = vec![AlertState::begin(Some(&side_car))];
        assert!(
            early[0].has_new_alert() && !late[0].has_new_alert() && !AlertState::begin(None).has_new_alert()
        );
        let share = gone(&mut early);
        assert!((250..=350).contains(&share), "{share}");
        assert_eq!((gone(&mut early), gone(&mut late)), (0, 0));
        assert!(!early[0].has_new_alert(), "it was asked");
        side_car.request_shed(1.0);
        assert_eq!((gone(&mut early), gone(&mut late)), (1000, 1));
        side_car.request_shed(1.0);
        assert_eq!(gone(&mut early), 1000);
        let mut one = early.remove(0);
        for (time, rest) in [8, 16, 32].into_iter().enumerate() {
            let back = Time(0) + Duration::from_secs(100) * time as u32;
            assert!(!one.is_exempt(back));
            one.record_departure();
            assert!(one.is_exempt(back), "it is back");
            assert!(one.is_exempt(back + Duration::from_millis(rest * 1000 - 1)));
            assert!(!one.is_exempt(back + Duration::from_secs(rest)));
        }
        side_car.request_shed(0.0);
        assert_eq!(gone(&mut early), 0);
        side_car.request_shed(f64::NAN);
        assert_eq!((gone(&mut early), AlertState::begin(None).should_leave(|| 0)), (0, false));
    }

    /// Serves bursts of requests one at a time until evidence bounds the knee. Returns the time at which that
    /// is so.
    fn bounded(side_car: &Arc<SideCar>, knee: impl Fn() -> Reading) -> Time {
        let mut now = Time(0);
        for size in [1, 6, 2, 8].into_iter().cycle().take(2_000) {
            let burst: Vec<MeterGuard> = (0..size).map(|_| MeterGuard::begin(side_car, false, now)).collect();
            for mut request in burst {
                now = now + Duration::from_millis(10);
                request.record_response(200, None, || now);
            }
            if !knee().open {
                return now;
            }
        }
        panic!("the knee is open after 2,000 bursts: {:?}", knee());
    }

    /// Begins requests until one is refused. Returns those that were not.
    fn fill(side_car: &Arc<SideCar>, now: Time) -> Vec<MeterGuard> {
        let begun = (0..64).map(|_| MeterGuard::begin(side_car, true, now));
        let held: Vec<MeterGuard> =
            begun.take_while(|request| request.rejection_header().is_empty()).collect();
        assert!((1..64).contains(&held.len()), "{}", held.len());
        held
    }

    #[test]
    fn a_meter_that_is_full_refuses_if_it_may() {
        let side_car = Arc::new(SideCar::new(None, Time(0)));
        let unknown: Vec<MeterGuard> =
            (0..1000).map(|_| MeterGuard::begin(&side_car, true, Time(0))).collect();
        assert!(
            unknown.iter().all(|one| one.rejection_header().is_empty()),
            "no evidence calls them too many"
        );
        drop(unknown);
        let side_car = Arc::new(SideCar::new(None, Time(0)));
        let now = bounded(&side_car, || side_car.reading());
        let mut held = fill(&side_car, now);
        let refused = MeterGuard::begin(&side_car, true, now);
        assert!(String::from_utf8_lossy(refused.rejection_header()).contains("full=1"));
        assert!(MeterGuard::begin(&side_car, false, now).rejection_header().is_empty());
        assert_eq!(side_car.reading().in_flight as usize, held.len());
        assert!(
            held.pop()
                .unwrap()
                .record_response(200, None, || now + Duration::from_millis(1))
                .starts_with(b"endpoint-load-metrics: TEXT ")
        );
        drop(held);
        assert_eq!(side_car.reading().in_flight, 0);
    }

    #[test]
    fn a_request_is_load_once_its_body_has_come() {
        let side_car = Arc::new(SideCar::new(None, Time(0)));
        let mut uploads: Vec<MeterGuard> = (0..100).map(|_| MeterGuard::begin_arriving(&side_car)).collect();
        assert!(uploads.iter().all(|one| one.rejection_header().is_empty()));
        assert_eq!(side_car.reading().in_flight, 0);
        uploads[0].record_arrival(Time(1_000_000));
        uploads[0].record_arrival(Time(2_000_000));
        assert_eq!(side_car.reading().in_flight, 1);
        // A response that does not wait for the body reports the server's load.
        assert!(
            uploads[1].record_response(413, None, || Time(2_000_000)).starts_with(b"endpoint-load-metrics")
        );
        drop(uploads);
        assert_eq!(side_car.reading().in_flight, 0);
        let side_car = Arc::new(SideCar::new(None, Time(0)));
        let now = bounded(&side_car, || side_car.reading());
        let _held = fill(&side_car, now);
        assert!(!MeterGuard::begin_arriving(&side_car).rejection_header().is_empty());
    }

    #[test]
    fn servers_of_one_host_refuse_for_each_other_and_share_its_slots() {
        let host = HostMeter::new(Time(0));
        let [one, other] = [(), ()].map(|()| Arc::new(SideCar::new(Some(Arc::clone(&host)), Time(0))));
        let answered = |metered: Option<MeterGuard>, at| {
            let header = metered.unwrap().record_response(200, None, || Time(at));
            String::from_utf8(header).unwrap().contains("slot=1")
        };
        let mut held: Vec<MeterGuard> = (0..2).map(|_| MeterGuard::begin(&one, true, Time(0))).collect();
        held.push(MeterGuard::begin(&other, true, Time(0)));
        assert!(!answered(held.pop(), 1_000_000), "the host's knee begins at 2, and two are in flight");
        assert_eq!(other.reading().in_flight, 0);
        assert!(answered(held.pop(), 2_000_000), "one is promised, one is there");
        assert!(!answered(Some(MeterGuard::begin(&other, true, Time(2_000_000))), 2_500_000), "and no more");
        drop(held);
        assert_eq!(host.reading().in_flight, 0);
        // Only the first server's requests bound the knee of the host.
        let now = bounded(&one, || host.reading());
        let all = fill(&other, now).len();
        let mut held: Vec<MeterGuard> = (0..2).map(|_| MeterGuard::begin(&one, true, now)).collect();
        held.extend(fill(&other, now));
        assert_eq!(held.len(), all, "the limit is of the host");
        for (side_car, own) in [(&one, "rif=2,".to_owned()), (&other, format!("rif={},", all - 2))] {
            let refused = MeterGuard::begin(side_car, true, now);
            let said = String::from_utf8_lossy(refused.rejection_header()).into_owned();
            assert!(said.contains(&own) && said.contains("full=1"), "{said}");
        }
        let counts = [one.reading().in_flight, other.reading().in_flight, host.reading().in_flight];
        assert_eq!(counts, [2, all as u32 - 2, all as u32]);
        drop(held);
        assert_eq!(host.reading().in_flight, 0);
    }
}
